"""Two replicas of vLLM behind a router, under Ray Serve, with OpenAI's client.

The oracle of a stream whose replica is killed, drained or replaced is the undisturbed answer of the same service.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import openai
import psutil
import pytest

from tests.llm.engines.vllm.test_vllm_engine import SCHEMA
from tests.llm.router.deployed.running import replicas
from tests.llm.serve.serving import serve_cli, wait_until

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

APP = "by-vllm"
OPTIONS: dict[str, Any] = {
    "engine": "vllm",
    "dtype": "float32",
    "max_batch_size": 8,
    "max_model_len": 512,
    "vllm_args": '{"enforce_eager": true, "block_size": 32}',
    "routers": 1,
    "min_replicas": 2,
    "max_replicas": 2,
}
ASKED: dict[str, Any] = {
    "model": "podslice-demo",
    "messages": [{"role": "user", "content": "What are the days of the week?"}],
}
LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 400, "extra_body": {"ignore_eos": True}}
WEIGHT = {"type": "integer", "minimum": 0, "maximum": 99}
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weigh",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"grams": WEIGHT},
            "required": ["grams"],
            "additionalProperties": False,
        },
    },
}


def run(address: str, **changes: Any) -> None:
    done = serve_cli(
        *("run", "--non-blocking", "--address", address, "--name", APP, "--route-prefix", f"/{APP}", "apps.llm:build"),
        *(f"{key}={value}" for key, value in (OPTIONS | changes).items()),
        timeout_s=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def url(ray_cluster: str, serve_url: str) -> Iterator[str]:
    run(ray_cluster)
    yield f"{serve_url}/{APP}"
    from ray import serve

    serve.delete(APP)
    wait_until(lambda: not [p for p in psutil.Process().children(recursive=True) if "VLLM" in p.name()], 60)


@pytest.fixture(scope="module")
def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=600)


def engines() -> list[int]:
    return list(replicas(APP, "LLMEngine").values())


def running(pid: int) -> float:
    """CPU seconds that a replica's vLLM has used."""
    family = psutil.Process(pid).children(recursive=True)
    return sum(sum(process.cpu_times()[:2]) for process in family)


def busiest() -> psutil.Process:
    """The replica whose vLLM computes."""
    pids = engines()
    before = {pid: running(pid) for pid in pids}
    time.sleep(1)
    return psutil.Process(max(pids, key=lambda pid: running(pid) - before[pid]))


def streamed(client: openai.OpenAI, begun: threading.Event | None = None, **params: Any) -> str:
    text = ""
    for chunk in client.chat.completions.create(**ASKED | LONG | params, stream=True):
        text += chunk.choices[0].delta.content or ""
        if begun is not None and len(text) > 20:
            begun.set()
    return text


def test_answers_of_every_kind(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**ASKED, temperature=0)
    assert "Monday" in (answer.choices[0].message.content or "") and answer.choices[0].finish_reason == "stop"
    form = {"type": "json_schema", "json_schema": {"name": "day", "schema": SCHEMA, "strict": True}}
    held = client.chat.completions.create(**ASKED, response_format=form, max_tokens=100)
    jsonschema.validate(json.loads(held.choices[0].message.content or ""), SCHEMA)
    called = client.chat.completions.create(
        **ASKED, tools=[TOOL], tool_choice="required", temperature=0, max_tokens=300
    )
    call, *_ = called.choices[0].message.tool_calls or ()
    assert isinstance(json.loads(call.function.arguments)["grams"], int)
    several = client.completions.create(model="podslice-demo", prompt="x", n=3, seed=1, logprobs=2, max_tokens=5)
    assert len(several.choices) == 3
    assert all(len(choice.logprobs.tokens) == 5 for choice in several.choices if choice.logprobs)
    assert (
        streamed(client, max_tokens=20)
        == client.chat.completions.create(**ASKED | LONG | {"max_tokens": 20}).choices[0].message.content
    )
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.embeddings.create(model="podslice-demo", input="x")
    with pytest.raises(openai.BadRequestError, match="max_tokens"):
        client.chat.completions.create(**ASKED, max_tokens=-1)


def test_its_metrics_are_vllms_own_counts(client: openai.OpenAI, url: str) -> None:
    client.completions.create(model="podslice-demo", prompt="x", max_tokens=7)
    assert "vllm:num_requests_running" in httpx.get(f"{url}/metrics").text


def test_a_killed_vllm_loses_no_stream_that_can_go_on(client: openai.OpenAI) -> None:
    whole = streamed(client)
    wait_until(lambda: len(engines()) == 2, 600)
    begun = [threading.Event() for _ in range(5)]
    texts: dict[int, str] = {}
    held: list[str] = []

    def plain(number: int) -> None:
        texts[number] = streamed(client, begun[number])

    def within() -> None:
        try:
            streamed(client, begun[4], presence_penalty=0.5)
            held.append("ended well")
        except openai.APIError as error:
            held.append(str(error))

    threads = [threading.Thread(target=plain, args=(number,)) for number in range(4)]
    threads.append(threading.Thread(target=within))
    for thread in threads:
        thread.start()
    for each in begun:
        assert each.wait(300)
    victim = busiest()
    for process in victim.children(recursive=True):
        if "EngineCore" in process.name():
            os.kill(process.pid, signal.SIGKILL)
    for thread in threads:
        thread.join()
    assert texts == dict.fromkeys(range(4), whole)
    # It was in one of the two: it has ended well, or its reader was told why not.
    assert held == ["ended well"] or "presence_penalty: the engine can't continue" in held[0]
    wait_until(lambda: victim.pid not in engines() and len(engines()) == 2, 600)  # Serve has replaced the replica
    assert streamed(client) == whole


def test_replacing_all_replicas_loses_no_stream(client: openai.OpenAI, ray_cluster: str) -> None:
    whole = streamed(client)
    before, asking, texts = set(engines()), threading.Event(), list[str]()

    def ask() -> None:
        while not asking.is_set():
            texts.append(streamed(client))
            time.sleep(3)  # two cores also start the new ones

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        run(ray_cluster, max_batch_size=4)
        wait_until(lambda: len(engines()) == 2 and not before & set(engines()), 900)
    finally:
        asking.set()
        for thread in threads:
            thread.join()
    assert set(texts) == {whole} and len(texts) > 2
