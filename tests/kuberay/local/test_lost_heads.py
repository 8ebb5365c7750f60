"""A real run whose Ray head loses its GCS, as on GKE when the head's container is killed for its memory; and its end.

The model is tests/podslice/slow_server.py's. The oracle of the answers is the same one, undisturbed.
"""

import os
import signal
import time
from pathlib import Path

import httpx
import pytest

from tests.kuberay.local.local_runs import LocalRun, alive, wait_until
from tests.podslice.slow_server import pieces
from tests.podslice.test_draining import LONG, Asked

CONFIG = """
from typing import ClassVar
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
class Slow(LLMConfig):
    import_path: ClassVar[str] = "tests.podslice.slow_server:build"
service = Service(name="slow", applications=(Application(config=Slow()),))
"""
READY_S = 600


def named(processes: set[int], name: str) -> list[int]:
    return [pid for pid in processes if alive(pid) and Path(f"/proc/{pid}/comm").read_text().strip() == name]


def answers(run: LocalRun) -> bool:
    try:
        return httpx.get(f"{run.url}/v1/models", timeout=30).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_the_gcs_is_killed_and_the_service_comes_back(local_run, tmp_path):
    config = tmp_path / "slow.py"
    config.write_text(CONFIG)
    run = local_run(str(config))
    run.wait_for(r"ready after \d+ s", READY_S)
    (gcs,) = named(run.processes(), "gcs_server")
    os.kill(gcs, signal.SIGKILL)
    run.wait_for("Ray's head ended: Ray's gcs_server ended with status -9. It is recreated with every host")
    wait_until(lambda: run.output.count("ready after") == 2, READY_S, lambda: run.process.poll() is not None, run)
    wait_until(lambda: answers(run), 120, lambda: run.process.poll() is not None, run)

    streams = [Asked(f"{run.url}/stream/{LONG}") for _ in range(3)]
    assert all(stream.begun.wait(240) for stream in streams)
    time.sleep(1)
    processes = run.processes()
    assert run.interrupt() == 0, run.output
    for stream in streams:
        stream.join(60)
    assert [(stream.failure, stream.body == pieces(LONG)) for stream in streams] == [(None, True)] * 3
    run.leaves_nothing(processes)
