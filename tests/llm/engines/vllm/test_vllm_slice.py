"""A replica whose vLLM spans a slice of two hosts (`vllm serve --nnodes 2`), on an emulated slice.

The oracle is transformers. Each host of the emulation is a Ray node of this machine, and has a core's process of vLLM.
"""

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from ray_configs.llm import DEMO_MODEL
from tests.llm.serve.serving import wait_until
from tests.llm.slice.emulated import Emulated

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

SETTINGS: dict[str, Any] = {
    "engine": "vllm",
    "dtype": "float32",
    "max_batch_size": 4,
    "max_model_len": 256,
    "tensor_parallel": 2,  # the emulation has fewer devices than a slice has chips
    "vllm_args": {"enforce_eager": True},
    "num_cpus": 0.5,
    "routers": 0,
}
PROMPT = "How many days are in a week?"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Emulated]:
    cluster = Emulated(1, 2, 1)
    yield cluster
    cluster.close()


@pytest.fixture(scope="module")
def url(cluster: Emulated) -> str:
    url = cluster.serve()
    cluster.deploy(SETTINGS)
    return url


def asked(url: str, **more: Any) -> Any:
    body = {"model": "podslice-demo", "prompt": PROMPT, "max_tokens": 20, "temperature": 0, "return_token_ids": True}
    answer = httpx.post(f"{url}/v1/completions", json=body | {"ignore_eos": True} | more, timeout=600)
    return answer.json() | {"status": answer.status_code}


def nodes_of_vllm() -> dict[str, psutil.Process]:
    """The first process of `vllm serve` of each rank."""
    found = dict[str, psutil.Process]()
    for process in sorted(psutil.process_iter(["cmdline"]), key=lambda process: process.pid):
        line = process.info["cmdline"] or []
        if "--node-rank" in line and process.name().startswith("vllm"):
            found.setdefault(line[line.index("--node-rank") + 1], process)
    return dict(sorted(found.items()))


def test_two_hosts_compute_one_model(url: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    prompt = AutoTokenizer.from_pretrained(DEMO_MODEL)(PROMPT, return_tensors="pt").input_ids
    whole = model.generate(prompt, max_new_tokens=20, do_sample=False, eos_token_id=-1, pad_token_id=0)[0].tolist()
    answer = asked(url)
    assert answer["status"] == 200, answer
    assert answer["choices"][0]["token_ids"] == whole[prompt.shape[1] :]
    assert [(rank, "--headless" in process.info["cmdline"]) for rank, process in nodes_of_vllm().items()] == [
        ("0", False),
        ("1", True),
    ]


def test_the_loss_of_a_host_ends_the_slice_and_another_replica_takes_it(url: str, cluster: Emulated) -> None:
    before = cluster.state()["pids"]
    second = nodes_of_vllm()["1"]
    for process in [*second.children(recursive=True), second]:
        os.kill(process.pid, signal.SIGKILL)

    def back(state: dict[str, Any]) -> bool:
        return state["hosts"] == 2 and not set(before) & set(state["pids"])

    cluster.until(back, 600)
    wait_until(lambda: answers(url), 600)
    assert not second.is_running()


def answers(url: str) -> bool:
    try:
        return asked(url)["status"] == 200
    except (httpx.HTTPError, ValueError):
        return False
