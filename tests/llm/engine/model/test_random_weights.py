"""Random weights are drawn where they belong: the same bits on any devices, and no device ever holds a whole matrix."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llm.engine import tiny_models


def draw(kind: str, devices: int, *hosts: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("draw_weights.py")), kind, *hosts],
        env=tiny_models.environment(XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def check(process: subprocess.Popen) -> None:
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors[-3000:]
    found = json.loads(out.splitlines()[-1])
    assert found["same"], "what is drawn does not follow from how many devices draw"
    for name, (whole, shard) in found["sizes"].items():
        if whole > 1000 and "norm" not in name:
            assert shard == whole / 4, name
    assert found["gathered"] == [], "nor is a whole matrix made on the way"
    assert found["programs"] <= 10, "one for each form of parameter, whatever the number of layers"


@pytest.mark.parametrize("kind", ["none", "int8"])
@pytest.mark.slow
def test_on_four_devices(kind: str) -> None:
    check(draw(kind, 4))


@pytest.mark.slow
def test_on_two_hosts() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{free.getsockname()[1]}"
    hosts = [draw("int8", 2, coordinator, str(rank), "2") for rank in range(2)]
    try:
        for process in hosts:
            check(process)
    finally:
        for process in hosts:
            process.kill()
