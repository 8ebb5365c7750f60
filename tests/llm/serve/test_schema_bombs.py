"""Schemas that never end compiling, through every door: each is refused, and nobody else waits for it."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from apps.llm.text_api import SamplingParams
from tests.llm.serve.serving import MODEL, LocalServer

HELLO = [{"role": "user", "content": "Rain in Lyon?"}]
INPUT = {"model": MODEL, "input": "Rain in Lyon?"}
MESSAGE = {"model": MODEL, "max_tokens": 20, "messages": HELLO}
QUICK = {"chat_template_kwargs": {"enable_thinking": False}}
LETTERS = "abcdefghijklmnopqrst"


def number(seed: int) -> dict[str, Any]:
    return {"type": "integer", "multipleOf": 3000017 + 2 * seed}


def patterns(seed: int) -> dict[str, Any]:
    return {"allOf": [{"type": "string", "pattern": f".*{seed}{letter}.*"} for letter in LETTERS]}


def within(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": schema}, "required": ["a"]}


def completion(schema: dict[str, Any]) -> dict[str, Any]:
    format_ = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return {"prompt": "x", "max_tokens": 20, "response_format": format_}


def chat(schema: dict[str, Any]) -> dict[str, Any]:
    return QUICK | {"messages": HELLO} | {name: value for name, value in completion(schema).items() if name != "prompt"}


def required(schema: dict[str, Any]) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "f", "parameters": within(schema)}}]
    return QUICK | {"messages": HELLO, "tools": tools, "tool_choice": "required", "max_tokens": 20}


def strict(schema: dict[str, Any]) -> dict[str, Any]:
    tools = [{"type": "function", "function": {"name": "f", "parameters": within(schema), "strict": True}}]
    return QUICK | {"messages": HELLO, "tools": tools, "max_tokens": 20}


def response(schema: dict[str, Any]) -> dict[str, Any]:
    return INPUT | {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}


def function(schema: dict[str, Any]) -> dict[str, Any]:
    tools = [{"type": "function", "name": "f", "parameters": within(schema), "strict": False}]
    return INPUT | {"tools": tools, "tool_choice": "required"}


def message(schema: dict[str, Any]) -> dict[str, Any]:
    return MESSAGE | {"output_config": {"format": {"type": "json_schema", "schema": schema}}}


def tool_use(schema: dict[str, Any]) -> dict[str, Any]:
    return MESSAGE | {"tools": [{"name": "f", "input_schema": within(schema)}], "tool_choice": {"type": "any"}}


DOORS: list[tuple[str, Callable[[dict[str, Any]], dict[str, Any]], str]] = [
    ("/v1/completions", completion, "response_format"),
    ("/v1/chat/completions", chat, "response_format"),
    ("/v1/chat/completions", required, "tools[0].function.parameters"),
    ("/v1/chat/completions", strict, "tools[0].function.parameters"),
    ("/v1/responses", response, "text.format.schema"),
    ("/v1/responses", function, "tools[0].parameters"),
    ("/v1/messages", message, "output_config.format.schema"),
    ("/v1/messages", tool_use, "tools[0].input_schema"),
]


@pytest.fixture
def url(chat_server: LocalServer) -> Iterator[str]:
    yield chat_server.url
    deadline = time.monotonic() + 240
    while any(vars_of(chat_server)):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def vars_of(server: LocalServer) -> tuple[int, int]:
    stats = server.engine.stats()
    return stats.running, stats.waiting


@pytest.mark.slow
def test_eight_at_once(url: str) -> None:
    """Oracles: /health and ordinary requests beside them, and the stream that was there before, as it is alone."""
    asked = {"prompt": "Once", "max_tokens": 300, "ignore_eos": True, "temperature": 0}
    alone = httpx.post(f"{url}/v1/completions", json=asked, timeout=120).json()["choices"][0]["text"]
    over, beats, fine = threading.Event(), [0], list[str]()

    def others() -> None:
        while not over.is_set():
            assert httpx.get(f"{url}/health", timeout=30).status_code == 200
            plain = completion(within({"type": "integer", "maximum": beats[0]}))
            assert httpx.post(f"{url}/v1/completions", json=plain, timeout=30).status_code == 200
            fine.append(httpx.post(f"{url}/v1/completions", json=asked, timeout=60).json()["choices"][0]["text"])
            beats[0] += 1

    with ThreadPoolExecutor(20) as pool:
        beside = pool.submit(others)
        sent = []
        for i, (path, body, field) in enumerate(DOORS):
            content = body((number, patterns)[i % 2](i))
            sent.append((field, pool.submit(httpx.post, url + path, json=content, timeout=120)))
        replies = [(field, reply.result()) for field, reply in sent]
        over.set()
        beside.result()
    assert beats[0] >= 3 and set(fine) == {alone}
    for field, reply in replies:  # one caller's are compiled one after the other; those that wait too long are told so
        busy = 529 if "overloaded_error" in reply.text else 429  # Anthropic's, or everybody else's
        assert reply.status_code in (400, busy), reply.text
        assert reply.status_code == busy or field in reply.text
    assert any(reply.status_code == 400 and "too complex" in reply.text for _, reply in replies)


@pytest.mark.parametrize("door", range(len(DOORS)))
def test_each_door_takes_what_it_took(url: str, door: int) -> None:
    """A schema that is not surely cheap, though ordinary, is followed. Oracle: the number that it leaves."""
    path, body, _ = DOORS[door]
    schema = {"allOf": [{"type": "integer", "minimum": 7}, {"maximum": 7}]}
    asked = body(within(schema) if "parameters" not in path else schema)
    if "max_tokens" in asked:
        asked["max_tokens"] = 90  # the grammar allows some spaces, which the random model may write
    reply = httpx.post(url + path, json=asked, timeout=120)
    assert reply.status_code == 200, reply.text
    assert "7" in reply.text


def test_requests_that_are_cancelled(chat_server: LocalServer) -> None:
    """As Serve cancels those of clients that leave: they keep no next one waiting. Oracle: an ordinary complex schema
    is compiled, which has to wait for its caller's others."""

    async def all_leave() -> None:
        bombs = [asyncio.create_task(submitted(number(100 + i))) for i in range(10)]
        await asyncio.sleep(0.5)
        for bomb in bombs:
            bomb.cancel()
        await asyncio.gather(*bombs, return_exceptions=True)
        await submitted({"allOf": [{"type": "integer", "minimum": 7}, {"maximum": 7}]})

    async def submitted(schema: dict[str, Any]) -> None:
        (await chat_server.model.submit(SamplingParams(json_schema=schema, max_tokens=5), "x")).abort()

    asyncio.run(all_leave())


def test_log_lines_cannot_be_forged(url: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture) -> None:
    """Whatever a schema says, no line of a log or of standard error begins with its text."""
    forged = "\n2026-01-01 00:00:00 ERROR forged\x1b[31m"
    for schema in (
        {"type": forged},
        {"type": "string", "format": forged},
        {"type": "string", "pattern": f"({forged}"},
        {"$ref": forged},
        {"properties": {forged: {"type": forged}}},
        {"oneOf": [{"const": forged}, {"const": forged}]},
        {"type": "string", forged: 1, "x-guidance": {"lenient": True, "whitespace_pattern": forged}},
    ):
        assert httpx.post(f"{url}/v1/completions", json=completion(schema), timeout=60).status_code in (200, 400)
    written = caplog.text + "".join(capfd.readouterr())
    assert not any(line.startswith("2026-01-01") for line in written.splitlines())
    assert "\x1b[31m" not in written
