"""Callers' weights and limits over HTTP: refusals in each dialect's format, and metrics by caller."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
import ray.serve.metrics

from apps.llm.api import CallerStats
from apps.llm.http.app import http_app
from apps.llm.served.metrics import CallerMetrics
from apps.serving.ingress.api_keys import principals
from tests.llm.serve.serving import MODEL, local_server, wait_until

KEYS = principals(["alice=key-a", "bob=key-b", "key-c"])
CALLERS = {"alice": {"tokens_per_minute": 30}, "bob": {"max_requests": 1}, "anonymous": {"max_requests": 1}}
HELLO = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
LONG = {"prompt": "x", "max_tokens": 300, "ignore_eos": True}
PATHS = {
    "/v1/completions": {"prompt": "x", "max_tokens": 2},
    "/v1/chat/completions": HELLO,
    "/v1/embeddings": {"input": "x"},
    "/v1/messages": HELLO,
    "/generate": {},
    "/generate?saxml": {"query": "x"},
    "/score": {"prefix": "x", "suffix": "y"},
}


@pytest.fixture(scope="module")
def server():
    with local_server(callers=CALLERS) as server:
        yield server


def asked(server: Any, requests: list[tuple[str, dict[str, Any]]], key: str | None, address: str) -> list[Any]:
    """Sends all requests at once, with this key and from this address; returns the answers."""
    app = http_app(server.model, KEYS if key else {})
    headers = {"Authorization": f"Bearer {key}"} if key else {}

    async def ask() -> list[Any]:
        transport = httpx.ASGITransport(app, client=(address, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            return await asyncio.gather(*(client.post(path, json=body) for path, body in requests))

    return asyncio.run(ask())


def test_a_limit_is_named_with_the_time_to_come_again(server):
    (first,) = asked(server, [("/v1/completions", LONG)], "key-a", "1")
    assert first.status_code == 200
    for path, body in PATHS.items():
        (reply,) = asked(server, [(path, body)], "key-a", "1")
        assert reply.status_code == 429, path
        assert 60 <= int(reply.headers["retry-after"]) <= 600, path  # 270 tokens over the limit, at 30 a minute
        assert "alice has used up its token limit (tokens_per_minute 30)" in reply.text, path
        assert "key-a" not in reply.text
    (reply,) = asked(server, [("/v1/chat/completions", HELLO)], "key-a", "1")
    error = reply.json()["error"]
    assert (error["code"], error["param"]) == ("rate_limit_exceeded", "tokens_per_minute")
    (reply,) = asked(server, [("/v1/messages", HELLO)], "key-a", "1")
    assert reply.json()["error"]["type"] == "rate_limit_error"
    for key in ("key-b", "key-c"):
        assert asked(server, [("/v1/completions", PATHS["/v1/completions"])], key, "1")[0].status_code == 200
    assert server.engine.callers()["alice"].refused == len(PATHS) + 2


@pytest.mark.parametrize("key", ["key-b", None])
def test_a_limit_of_requests_at_a_time(server, key):
    short = PATHS["/v1/completions"]
    replies = asked(server, [("/v1/completions", LONG)] * 3, key, "10.0.0.1")
    assert Counter(reply.status_code for reply in replies) == {200: 1, 429: 2}
    refused = next(reply for reply in replies if reply.status_code == 429)
    assert "max_requests 1" in refused.json()["error"]["message"] and int(refused.headers["retry-after"]) >= 1
    name = "bob" if key else "anonymous"
    wait_until(lambda: server.engine.callers()[name].requests == 0)
    assert asked(server, [("/v1/completions", short)], key, "10.0.0.1")[0].status_code == 200
    inputs = {"input": [f"text {i}" for i in range(5)]}  # each waits for the one before
    assert asked(server, [("/v1/embeddings", inputs)], key, "10.0.0.1")[0].status_code == 200


def test_each_address_is_a_caller(server):
    async def ask(address: str) -> int:
        transport = httpx.ASGITransport(http_app(server.model), client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return (await client.post("/v1/completions", json=LONG)).status_code

    async def both() -> list[int]:
        return await asyncio.gather(ask("10.0.0.1"), ask("10.0.0.2"))

    assert asyncio.run(both()) == [200, 200]


def test_metrics_are_by_name(monkeypatch):
    told: dict[tuple[str, str], float] = {}

    class Recorded:
        def __init__(self, name: str, *_: Any):
            self.name = name

        def set_default_tags(self, tags: dict[str, str]) -> None:
            assert tags == {"model": "m"}

        def set(self, value: float, tags: dict[str, str]) -> None:
            told[self.name, tags["caller"]] = value

        def inc(self, value: float, tags: dict[str, str]) -> None:
            told[self.name, tags["caller"]] = told.get((self.name, tags["caller"]), 0) + value

        observe = set

    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(ray.serve.metrics, kind, Recorded)
    metrics = CallerMetrics("m")
    metrics.record(CallerStats(requests=2, waiting=1, tokens=10), caller="alice")
    metrics.record(CallerStats(requests=1, tokens=15), caller="alice")
    metrics.record(CallerStats(refused=3), caller="anonymous")
    metrics.observe("ttft", 0.5, caller="alice")
    assert told == {
        ("podslice_caller_requests", "alice"): 1,
        ("podslice_caller_requests", "anonymous"): 0,
        ("podslice_caller_waiting", "alice"): 0,
        ("podslice_caller_waiting", "anonymous"): 0,
        ("podslice_caller_tokens", "alice"): 15,
        ("podslice_caller_refused", "anonymous"): 3,
        ("podslice_caller_time_to_first_token_s", "alice"): 0.5,
    }
