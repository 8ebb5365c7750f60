"""The smoke test of a slice: real processes in one JAX program on CPU devices, and what they say of hosts that miss."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from apps.jobs.smoke import Hosts

ROOT = Path(__file__).parents[2]


def started(*options: object, worker: int | None = None, hosts: int = 2, devices: int = 2) -> "subprocess.Popen[str]":
    """On host `worker` of `hosts`, in the environment that GKE gives an Indexed Job's Pods; None: on a laptop."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TPU_")}
    environment |= {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    if worker is not None:
        names = ",".join(["localhost", "127.0.0.1", "127.0.0.2"][:hosts])
        environment |= {"TPU_WORKER_HOSTNAMES": names, "TPU_WORKER_ID": str(worker)}
    command = [sys.executable, "-m", "apps.jobs.smoke", *map(str, options)]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(*processes: "subprocess.Popen[str]") -> list[tuple[int, str, str]]:
    """Status, what was printed, what was said of errors."""
    outputs = [process.communicate(timeout=240) for process in processes]
    return [(process.returncode, *output) for process, output in zip(processes, outputs)]


@pytest.mark.slow
def test_two_hosts_are_one_slice(free_tcp_port: int) -> None:
    options = "--port", free_tcp_port, "--expect", 4
    for worker, (status, out, err) in enumerate(ended(*(started(*options, worker=worker) for worker in (1, 0)))):
        assert status == 0, err
        assert "no TPU: JAX runs on 4 cpu devices" in out and "devices of this host: 2" in out
        assert f"hosts: 2, this is {1 - worker}" in out
        assert re.search(r"sum over 4 devices, 4 MiB each: right, [\d.]+ ms", out)


@pytest.mark.slow
def test_prepared_programs_run_on_a_slice_of_two_hosts(
    free_tcp_port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On first contact with a slice: they run, or it is said why they do not."""
    monkeypatch.setenv("PODSLICE_PROGRAMS_KEY", "a key of the tests, long enough")
    source = tmp_path / "tiny.py"
    source.write_text(
        "from ray_configs.llm import LLMConfig\nfrom ray_configs.service import Application, Service\n"
        "config = LLMConfig(tiny=True, slice='v5e:2x4:4t', max_batch_size=2, max_step_tokens=8, max_model_len=64)\n"
        "service = Service(name='tiny', applications=(Application(config=config),))\n"
    )
    command = [sys.executable, "-m", "apps.jobs.prepare", str(source), "--to", str(tmp_path / "to"), "--emulated"]
    subprocess.run(command, check=True, env=os.environ | {"XLA_FLAGS": ""}, timeout=900)
    options = "--port", free_tcp_port, "--timeout", 240, "--programs", tmp_path / "to"
    for status, out, err in ended(*(started(*options, worker=worker, devices=4) for worker in (0, 1))):
        assert status == 0, err
        assert re.search(r"programs \w{16}: all \d+ loaded and ran, in [\d.]+ s", out)
    for status, _, err in ended(*(started(*options, worker=worker, devices=2) for worker in (0, 1))):
        assert status == 1 and "none of the 1 sets of programs is for this machine" in err
    monkeypatch.delenv("PODSLICE_PROGRAMS_KEY")
    ((status, _, err),) = ended(started(*options))
    assert status == 1 and "PODSLICE_PROGRAMS_KEY is not set" in err
    ((status, _, err),) = ended(started("--programs", tmp_path / "nothing"))
    assert status == 1 and "has no programs: `podslice prepare CONFIG --to" in err


@pytest.mark.slow
def test_a_host_that_never_comes_is_named_by_all_others(free_tcp_port: int) -> None:
    options = "--port", free_tcp_port, "--timeout", 20
    for status, _, err in ended(*(started(*options, worker=worker, hosts=3) for worker in (0, 2))):
        assert status == 1
        assert "error: not all hosts came within 20 s; missing: 1 (127.0.0.1)" in err


def test_two_hosts_of_one_number(free_tcp_port: int) -> None:
    options = "--port", free_tcp_port, "--timeout", 120
    found = ended(*(started(*options, worker=worker, hosts=3) for worker in (0, 1, 1)))
    assert [status for status, *_ in found] == [1, 1, 1]
    assert "two hosts say that they are host 1 (127.0.0.1): see TPU_WORKER_ID" in found[0][2]


def test_host_0_is_not_there(free_tcp_port: int) -> None:
    ((status, _, err),) = ended(started("--port", free_tcp_port, "--timeout", 1, worker=1))
    assert status == 1
    assert "error: host 0 (localhost) could not be reached within 1 s: Connection refused" in err


@pytest.mark.slow
def test_one_host_without_a_tpu() -> None:
    well, asked, short = ended(
        started("--platform", "any", "--expect", 3, devices=3),
        started("--platform", "tpu", devices=3),
        started("--expect", 4, devices=3),
    )
    assert well[0] == 0 and "no TPU: JAX runs on 3 cpu devices" in well[1] and "sum over 3 devices" in well[1]
    assert asked[0] == 1 and "a TPU was asked for (--platform tpu), but JAX runs on 3 cpu devices" in asked[2]
    assert short[0] == 1 and "there are 3 devices over 1 hosts, not 4 (--expect)" in short[2]


@pytest.mark.parametrize("own", ["", "2", "-1", "x"])
def test_an_environment_that_makes_no_sense(own: str) -> None:
    with pytest.raises(ValueError, match=rf"TPU_WORKER_ID is '{own}'; .* it must be from 0 to 1"):
        Hosts.of({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": own})


def test_hosts() -> None:
    assert Hosts.of({}) == Hosts(("localhost",), 0)
    assert Hosts.of({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}) == Hosts(("localhost",), 0)
    assert Hosts.of({"TPU_WORKER_HOSTNAMES": "a-0.a,a-1.a", "TPU_WORKER_ID": "1"}) == Hosts(("a-0.a", "a-1.a"), 1)
