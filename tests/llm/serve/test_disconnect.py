"""A client that leaves frees its request, streamed or not, however its packets came."""

import json
import socket
import time

import httpx
import pytest

FORMAT = {"type": "object", "properties": {"a": {"type": "array", "minItems": 400}}, "required": ["a"]}
MESSAGE = {
    "model": "podslice-demo",
    "max_tokens": 900,
    "messages": [{"role": "user", "content": "x"}],
    "output_config": {"format": {"type": "json_schema", "schema": FORMAT}},  # long: there is no ignore_eos
}
LONG = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True}
# JetStream's and Saxml's bodies have no ignore_eos. Greedily answered, this goes on and on; sampled, as Saxml's is
# by default, it may end before anybody sees it run.
LAUGH = "ha" * 30
GOES_ON = {"temperature": 0, "per_example_max_decode_steps": 900}


def leave(url: str, path: str, body: dict, split: bool) -> None:
    """Sends a request, waits until it runs, and closes the connection."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Length: {len(content)}\r\n\r\n".encode()
    with socket.create_connection((httpx.URL(url).host, httpx.URL(url).port)) as connection:
        connection.sendall(head)
        if split:
            time.sleep(0.05)
        connection.sendall(content)
        deadline = time.monotonic() + 10
        while not httpx.get(f"{url}/health").json()["models"]["podslice-demo"]["running"]:
            assert time.monotonic() < deadline, "never seen running"


@pytest.mark.parametrize("split", [False, True], ids=["one packet", "body apart"])
@pytest.mark.parametrize(
    ("path", "extra"),
    [
        ("/v1/completions", {"stream": True}),
        ("/v1/completions", {"stream": False}),
        ("/v1/completions", {"n": 2, "prompt": ["x", "y"]}),
        ("/v1/messages", MESSAGE | {"stream": True}),
        ("/v1/messages", MESSAGE),
        ("/generate", {"prompt": LAUGH, "stream": False}),
        ("/generate", {"query": LAUGH, "stream": True, "extra_inputs": GOES_ON}),
        ("/v1/embeddings", {"input": [[token % 200 + 10] * 500 for token in range(300)]}),
        ("/score", {"prefix": "x", "suffix": ["ha" * (300 + more) for more in range(100)]}),
    ],
    ids=["stream", "whole", "many", "messages stream", "messages", "jetstream", "saxml", "embeddings", "score"],
)
def test_leaving_frees_the_request(llm_url, stats, path, extra, split):
    leave(llm_url, path, LONG | extra, split)
    done = stats()["steps"]
    deadline = time.monotonic() + 30
    while (now := stats())["running"] or now["waiting"]:
        assert time.monotonic() < deadline, "still running"
    assert now["pages_used"] == 0
    assert now["steps"] - done < 300, "of 500 and more for what nobody would have read"
