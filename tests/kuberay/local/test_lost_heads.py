"""A real run whose Ray head loses its GCS, as on GKE when the head's container is killed for its memory; and its end.

The oracle of the answers is the same one, undisturbed.
"""

import os
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import httpx
import pytest

from tests.kuberay.local.local_runs import LocalRun, wait_until

LONG = {"prompt": "Once", "max_tokens": 900, "ignore_eos": True, "temperature": 0, "stream": True}
TOGETHER = 8
"""Streams at a time, as many as the model computes together: another request waits for its turn."""


def named(processes: set[int], name: str) -> list[int]:
    return [pid for pid in processes if Path(f"/proc/{pid}/comm").read_text().strip() == name]


def streamed(run: LocalRun, begun: Barrier) -> bytes:
    """The whole answer, but for what tells it from another like it."""
    with httpx.stream("POST", f"{run.url}/v1/completions", json=LONG, timeout=300) as answer:
        begun.wait(120)
        whole = answer.read()
    return re.sub(rb'"(id|created)": ?("[^"]*"|\d+)', b"", whole)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_gcs_is_killed_and_the_service_comes_back(local_run, config_file):
    run = local_run(config_file("max_batch_size=8, max_step_tokens=8"))
    run.wait_for(r"ready after \d+ s", 400)
    undisturbed = streamed(run, Barrier(1))
    assert undisturbed.endswith(b"data: [DONE]\n\n")
    (gcs,) = named(run.processes(), "gcs_server")
    os.kill(gcs, signal.SIGKILL)
    run.wait_for("Ray's head ended: Ray's gcs_server ended with status -9. It is recreated with every host")
    wait_until(lambda: run.output.count("ready after") == 2, 400, lambda: run.process.poll() is not None, run)
    wait_until(run.answers, 120, lambda: run.process.poll() is not None, run)

    processes, begun = run.processes(), Barrier(TOGETHER + 1)
    with ThreadPoolExecutor(TOGETHER + 1) as pool:
        streams = [pool.submit(streamed, run, begun) for _ in range(TOGETHER)]
        begun.wait(120)
        waits = pool.submit(run.ask)
        time.sleep(0.5)  # it is on its way
        assert not all(stream.done() for stream in streams)
        assert run.interrupt() == 0, run.output
        assert {stream.result() for stream in streams} == {undisturbed}
        assert waits.result().json()["response"]
    run.leaves_nothing(processes)
