"""A client that disconnects frees its request, streamed or not, however its packets were split."""

import contextlib
import json
import socket
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

FORMAT = {"type": "object", "properties": {"a": {"type": "array", "minItems": 400}}, "required": ["a"]}
MESSAGE = {
    "model": "podslice-demo",
    "max_tokens": 900,
    "messages": [{"role": "user", "content": "x"}],
    "output_config": {"format": {"type": "json_schema", "schema": FORMAT}},  # a long answer, as there is no ignore_eos
}
LONG = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True}
# JetStream's and Saxml's bodies have no ignore_eos. Greedily answered, this goes on and on; sampled, as Saxml's is
# by default, it may end before anybody sees it run.
LAUGH = "ha" * 30
GOES_ON = {"temperature": 0, "per_example_max_decode_steps": 900}
RUNNING, COPIES = 4, 6
"""So many run at a time, of so many sent at once: one alone, whose drafts are all right, ends before it is left. What
waits may end without any work, so only less than all work of those that run says that these were ended."""


Stats = Callable[[], dict[str, Any]]


def work_of(stats: dict[str, Any]) -> int:
    """Tokens and vectors computed since the start."""
    return stats["generated_tokens"] + stats["scored_tokens"] + stats["embeddings"]


def work_after_leaving(url: str, stats: Stats, path: str, body: dict, split: bool) -> int:
    """Sends requests, closes their connections while the first runs, waits until all have ended; returns the work."""
    content = json.dumps(body).encode()
    host = httpx.URL(url).netloc.decode()
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    before, deadline = stats(), time.monotonic() + 120
    with contextlib.ExitStack() as connections:
        for _ in range(COPIES):
            address = httpx.URL(url).host, httpx.URL(url).port
            connection = connections.enter_context(socket.create_connection(address))
            connection.sendall(head)
            if split:
                time.sleep(0.05)
            connection.sendall(content)
        # If this process stalls, the whole request may have run unseen.
        while not (now := stats())["running"] and now["steps"] == before["steps"]:
            assert time.monotonic() < deadline, "never seen running"
    while (now := stats())["running"] or now["waiting"]:
        assert time.monotonic() < deadline, "still running"
    assert now["pages_used"] == 0
    return work_of(now) - work_of(before)


@pytest.mark.parametrize("split", [False, True], ids=["one packet", "body apart"])
@pytest.mark.parametrize(
    ("path", "extra", "whole"),
    [
        ("/v1/completions", {"stream": True}, 1000),
        ("/v1/completions", {"stream": False}, 1000),
        ("/v1/completions", {"n": 2, "prompt": ["x", "y"]}, 4000),
        ("/v1/messages", MESSAGE | {"stream": True}, 800),
        ("/v1/messages", MESSAGE, 800),
        ("/generate", {"prompt": LAUGH, "stream": False}, 900),
        ("/generate", {"query": LAUGH, "stream": True, "extra_inputs": GOES_ON}, 900),
        ("/v1/embeddings", {"input": [[token % 200 + 10] * 500 for token in range(300)]}, 300),
        ("/score", {"prefix": "x", "suffix": ["ha" * (300 + more) for more in range(100)]}, 30_000),
    ],
    ids=["stream", "whole", "many", "messages stream", "messages", "jetstream", "saxml", "embeddings", "score"],
)
def test_leaving_frees_the_request(llm_url: str, stats: Stats, path: str, extra: dict, whole: int, split: bool) -> None:
    # A busy machine may finish the request before it notices the disconnect, but not in every try.
    done = [RUNNING * whole]
    while done[-1] >= done[0] and len(done) < 6:
        done.append(work_after_leaving(llm_url, stats, path, LONG | extra, split))
    assert done[-1] < done[0], done


def test_who_named_its_request_finds_it_again_and_who_did_not_is_not_waited_for(llm_url: str, stats: Stats) -> None:
    """Through Serve, which gives an X-Request-Id to every request. Oracle: the bytes of the first answer."""
    body = {"prompt": LAUGH, "max_tokens": 40, "ignore_eos": True}
    said = [
        httpx.post(f"{llm_url}/v1/completions", json=body, headers=headers)
        for headers in ({"X-Request-Id": "mine"}, {"X-Request-Id": "mine"}, {}, {})
    ]
    assert ["idempotent-replayed" in reply.headers for reply in said] == [False, True, False, False]
    assert said[0].content == said[1].content and len({reply.headers["x-request-id"] for reply in said}) == 3


@pytest.mark.slow
def test_clients_that_leave_end_their_schemas_compiling(llm_url: str) -> None:
    """Each schema would be compiled for seconds, one after the other, and the last request would be refused.

    Oracle: the number that the last one's schema leaves."""
    for i in range(12):
        with pytest.raises(httpx.TimeoutException):
            httpx.post(f"{llm_url}/v1/completions", json=constrained(3000017 + 2 * i), timeout=0.3)
    schema = {"allOf": [{"type": "integer", "minimum": 7}, {"maximum": 7}]}
    reply = httpx.post(f"{llm_url}/v1/completions", json=constrained(1) | formatted(schema), timeout=60)
    assert reply.status_code == 200 and reply.json()["choices"][0]["text"].strip() == "7"


def constrained(step: int) -> dict[str, Any]:
    return {"prompt": "x", "max_tokens": 20} | formatted({"type": "integer", "multipleOf": step})


def formatted(schema: dict[str, Any]) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}
