"""Offline generation on a slice of two hosts: the answers of one process, though a host dies on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from apps.llm.text import Engine, SamplingParams
from ray_configs.llm import LLMConfig
from tests.llm.slice.emulated import Emulated

REPOSITORY = Path(__file__).parents[3]
SIZES = {"max_batch_size": 4, "max_step_tokens": 16, "max_model_len": 128, "dtype": "float32", "num_cpus": 0.5}
LINES, TOKENS = 120, 16


@pytest.fixture
def cluster() -> Iterator[Emulated]:
    cluster = Emulated(1, 2, 2)
    yield cluster
    cluster.close()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_dead_host_costs_no_line(cluster: Emulated, tmp_path: Path) -> None:
    prompts = [f"What is {i} plus {i + 1}?" for i in range(LINES)]
    source, output = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    with source.open("w") as file:
        for prompt in prompts:
            line = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
            file.write(json.dumps(line) + "\n")
    sizes = SIZES | {"slice": "v5e:2x4:4t", "compile_cache": str(tmp_path / "cache")}
    changes = [part for name, value in sizes.items() for part in ("--set", f"{name}={value}")]
    command = [sys.executable, "-m", "apps.jobs.generate", source, output, "--address", cluster.address(), *changes]
    run = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True)
    try:
        while not list(Path(f"{output}.parts").glob("part-*.jsonl")):
            assert run.poll() is None, run.stderr.read()
            time.sleep(0.02)
        first = cluster.state()["pids"]
        os.kill(first[1], signal.SIGKILL)
        cluster.until(lambda state: len(state["pids"]) == 2 and not set(first) & set(state["pids"]), 240)
        said = run.communicate(timeout=240)[1]
    finally:
        run.kill()
    assert run.returncode == 0 and f"has all {LINES} lines" in said, said
    found = [json.loads(line) for line in output.read_text().splitlines()]
    assert [line["index"] for line in found] == list(range(LINES))
    alone = Engine.load(LLMConfig(**SIZES))
    try:
        greedy = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
        assert [line["text"] for line in found] == alone.generate(prompts, greedy)
    finally:
        alone.shutdown()
    cluster.until(lambda state: state["free"] == 1 and not state["groups"], 30)
