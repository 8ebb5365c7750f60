"""Routers and engines under Ray Serve: engines are killed, frozen and stopped while they answer.

The oracle is the undisturbed answer of the same service, byte for byte but for ids and times.
"""

import json
import os
import random
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.llm.router.deployed.running import pages_used, replicas
from tests.llm.serve.serving import SMALL, serve_cli, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

APP, ENGINES = "routed", 2
TOOL = {
    "type": "function",
    "function": {
        "name": "weigh",
        "parameters": {
            "type": "object",
            "properties": {"what": {"type": "string", "maxLength": 20}, "grams": {"type": "integer"}},
            "required": ["what", "grams"],
        },
    },
}
OBJECT = {
    "type": "json_schema",
    "json_schema": {
        "name": "o",
        "schema": {
            "type": "object",
            "properties": {"a": {"type": "string", "minLength": 90, "maxLength": 120}},
            "required": ["a"],
        },
    },
}
ASKED = {"messages": [{"role": "user", "content": "What are the days of the week?"}], "stream": True}
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"seed": 1, "temperature": 1.0},
    "penalties": {"seed": 2, "presence_penalty": 1.0, "frequency_penalty": 0.5},
    "logprobs": {"seed": 3, "logprobs": True, "top_logprobs": 2},
    "several": {"seed": 4, "n": 3},
    "object": {"seed": 5, "response_format": OBJECT},
    "tool": {"seed": 6, "tools": [TOOL], "tool_choice": "required"},
    "stop": {"seed": 7, "stop": ["zq", "the", "\n\n"]},
}


@pytest.fixture(scope="module")
def service(ray_cluster: str, serve_url: str) -> Iterator[str]:
    options = SMALL | {"min_replicas": ENGINES, "max_replicas": ENGINES, "routers": 1, "dtype": "float32"}
    arguments = ("--name", APP, "--route-prefix", f"/{APP}", "apps.llm:build")
    done = serve_cli(
        "run",
        "--non-blocking",
        "--address",
        ray_cluster,
        *arguments,
        *(f"{key}={value}" for key, value in options.items()),
    )
    assert done.returncode == 0, done.stdout + done.stderr
    yield f"{serve_url}/{APP}"
    from ray import serve

    serve.delete(APP)


def engines() -> dict[str, int]:
    """Process ids of the engines that run, by their actors' names."""
    return replicas(APP, "LLMEngine")


def events(url: str, kind: str, max_tokens: int = 160) -> list[Any]:
    """The events of a stream, without what differs each time."""
    body = ASKED | {"max_tokens": max_tokens, "ignore_eos": kind not in ("object", "tool")} | KINDS[kind]
    read = []
    with httpx.stream("POST", f"{url}/v1/chat/completions", json=body, timeout=600) as answer:
        assert answer.status_code == 200, answer.read()
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                for varies in ("id", "created"):
                    event.pop(varies, None)
                read.append(event)
    assert line == "" or line == "data: [DONE]", line
    return joined(read)


def joined(read: list[Any]) -> Any:
    """Each choice's deltas put together: where one ends and the next begins is a matter of time."""
    choices = dict[int, dict[str, Any]]()
    for event in read:
        for choice in event["choices"]:
            whole = choices.setdefault(
                choice["index"], {"content": "", "calls": {}, "tokens": [], "logprobs": [], "reason": None}
            )
            delta = choice["delta"]
            whole["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                known = whole["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
                known["name"] += call["function"].get("name") or ""
                known["arguments"] += call["function"].get("arguments") or ""
            for token in (choice.get("logprobs") or {}).get("content") or []:
                top = [each["token"] for each in token["top_logprobs"]]
                whole["tokens"].append((token["token"], top))
                whole["logprobs"] += [token["logprob"], *(each["logprob"] for each in token["top_logprobs"])]
            whole["reason"] = choice["finish_reason"] or whole["reason"]
    return choices


def alike(answer: dict[int, dict[str, Any]], expected: dict[int, dict[str, Any]]) -> bool:
    """The same, but for the last digits of log probabilities: prefill and decode add in another order."""
    numbers = [[choice["logprobs"] for choice in whole.values()] for whole in (answer, expected)]
    words = [[choice | {"logprobs": None} for choice in whole.values()] for whole in (answer, expected)]
    return words[0] == words[1] and all(
        given == pytest.approx(right, abs=1e-4) for given, right in zip(*numbers, strict=True)
    )


def counted(metric: str) -> dict[str, float]:
    """A metric's sum for each deployment, as Ray's endpoint has it."""
    import ray

    port = ray.nodes()[0]["MetricsExportPort"]
    sums = dict[str, float]()
    for line in httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=60).text.splitlines():
        if line.startswith(f"ray_podslice_{metric}{{") and f'application="{APP}"' in line:
            deployment = re.search(r'deployment="(\w+)"', line)[1]
            sums[deployment] = sums.get(deployment, 0) + float(line.rsplit(" ", 1)[1])
    return sums


def killed(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def frozen(pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(6, os.kill, (pid, signal.SIGCONT)).start()


def test_a_router_has_no_jax(service: str) -> None:
    """Nor its memory and threads, after it has answered: its process never mapped jaxlib, as an engine's has."""
    assert events(service, "object", 20)
    mapped = {
        deployment: {"jaxlib" in Path(f"/proc/{pid}/maps").read_text() for pid in replicas(APP, deployment).values()}
        for deployment in ("LLMRouter", "LLMEngine")
    }
    assert mapped == {"LLMRouter": {False}, "LLMEngine": {True}}


@pytest.mark.parametrize("harm", [killed, frozen])
def test_no_stream_is_lost_or_changed(service: str, harm: Callable[[int], None]) -> None:
    expected = {kind: events(service, kind) for kind in KINDS}
    wait_until(lambda: len(engines()) == ENGINES, 300)
    answers, failures, asking = list[tuple[str, Any]](), list[str](), threading.Event()

    def ask(first: int) -> None:
        kinds = list(KINDS)
        number = first
        while not asking.is_set():
            kind = kinds[number % len(kinds)]
            number += 1
            try:
                answers.append((kind, events(service, kind)))
            except Exception as error:
                failures.append(f"{kind}: {type(error).__name__}: {error}")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    drawn = random.Random(1)
    try:
        for _ in range(4):
            time.sleep(drawn.uniform(1, 3))
            harm(drawn.choice(list(engines().values())))
            time.sleep(8)
            wait_until(lambda: len(engines()) == ENGINES, 300)
    finally:
        asking.set()
        for thread in threads:
            thread.join()
    assert not failures, failures
    wrong = [kind for kind, answer in answers if not alike(answer, expected[kind])]
    assert not wrong and len(answers) > 16, (wrong, len(answers))
    wait_until(lambda: pages_used(service) == 0, 60)
    wait_until(lambda: counted("pause_s_count").get("LLMRouter", 0) > 0, 60)
    assert counted("generated_tokens_total").keys() == {"LLMEngine"}, "counted once, by whoever computes them"
    before = counted("time_to_first_token_s_count")["LLMRouter"]
    events(service, "greedy", 4)
    wait_until(lambda: counted("time_to_first_token_s_count")["LLMRouter"] > before, 60)
