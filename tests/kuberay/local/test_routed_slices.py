"""Streams behind routers, over slices of two hosts: hosts are killed while they answer, until no slice is left.

The oracle is the undisturbed answer, token for token.
"""

import json
import subprocess
import sys
import threading
import time

import httpx
import pytest

from kuberay.local.folder import RunFolder
from tests.kuberay.local.local_runs import REPOSITORY, LocalRun

CONFIG = """
from ray_configs.capacity import Spot
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
llm = LLMConfig(model="meta-llama/Meta-Llama-3-8B", slice="v5e:2x4:4t", routers=2, min_replicas=2, max_replicas=2)
service = Service(name="routed", applications=(Application(config=llm, capacity=Spot()),))
"""
ASKED = {"prompt": "the quick brown fox", "max_tokens": 40, "stream": True, "ignore_eos": True}
STREAMS = 4


def tokens(run: LocalRun, seed: int) -> tuple[list[int], int]:
    """The answer's token ids, and how many comments came before or between them."""
    ids, comments = list[int](), 0
    body = ASKED | {"seed": seed, "return_token_ids": True}
    with httpx.stream("POST", f"{run.url}/v1/completions", json=body, timeout=900) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            comments += line.startswith(": waiting for a replica on v5e:2x4:4t")
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                ids += [token for choice in event["choices"] for token in choice["token_ids"]]
    return ids, comments


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_no_stream_is_lost_with_its_slice(local_run, tmp_path):
    config = tmp_path / "routed.py"
    config.write_text(CONFIG)
    run = local_run(str(config), "--tiny")
    run.wait_for(r"ready after \d+ s", 900)
    expected = [tokens(run, seed)[0] for seed in range(STREAMS)]
    assert [len(ids) for ids in expected] == [40] * STREAMS
    answers, failures, asking = list[tuple[int, list[int], int]](), list[str](), threading.Event()

    def ask(seed: int) -> None:
        while not asking.is_set():
            try:
                answers.append((seed, *tokens(run, seed)))
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=ask, args=[seed]) for seed in range(STREAMS)]
    for thread in threads:
        thread.start()
    try:
        time.sleep(2)
        for victim in ("0:1", "1:0"):  # the second one before the first slice's replica runs again
            kill = [sys.executable, "-m", "kuberay", "local", str(config), "--port", str(run.port)]
            subprocess.run([*kill, "--kill-host", victim], cwd=REPOSITORY, check=True, capture_output=True)
            run.wait_for(rf"host tpu-v5e-2x4-4t-{victim.replace(':', '-')} was killed")
        for slice in (0, 1):
            run.wait_for(f"slice tpu-v5e-2x4-4t-{slice} is up again", 600)
    finally:
        asking.set()
        for thread in threads:
            thread.join()
    assert not failures
    assert all(ids == expected[seed] for seed, ids, _ in answers)
    assert sum(comments for _, _, comments in answers), "readers were told what they waited for"
    controllers = list(RunFolder(run.port).path.glob("session_2*/logs/serve/controller_[0-9]*.log"))
    assert controllers
    for log in controllers:
        assert "did not shut down after grace period" not in log.read_text(), "the next replica waits for its CPU"
    processes = run.processes()
    assert run.interrupt() == 0, run.output
    run.leaves_nothing(processes)
