"""A real run whose Ray head loses its GCS, as on GKE when the head's container is killed for its memory."""

import os
import signal
from pathlib import Path

import pytest

from tests.kuberay.local.local_runs import wait_until


def named(processes: set[int], name: str) -> list[int]:
    return [pid for pid in processes if Path(f"/proc/{pid}/comm").read_text().strip() == name]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_gcs_is_killed_and_the_service_comes_back(local_run, config_file):
    run = local_run(config_file("max_batch_size=4, max_step_tokens=8"))
    run.wait_for(r"ready after \d+ s")
    assert run.ask().json()["response"]
    (gcs,) = named(run.processes(), "gcs_server")
    os.kill(gcs, signal.SIGKILL)
    run.wait_for("Ray's head ended: Ray's gcs_server ended with status -9. It is recreated with every host")
    wait_until(lambda: run.output.count("ready after") == 2, 300, lambda: run.process.poll() is not None, run)
    wait_until(run.answers, 120, lambda: run.process.poll() is not None, run)
    processes = run.processes()
    assert run.interrupt() == 0, run.output
    run.leaves_nothing(processes)
