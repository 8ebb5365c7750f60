"""Who shares the prefix cache with whom.

The oracle is the undisturbed run: what a caller is told, where nobody has asked before. Anything else would tell it
what others ask.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import jax.numpy as jnp
import numpy as np
import pytest

from apps.llm.engine.adapters import stack
from apps.llm.engine.adapters.low_rank import LowRank
from apps.llm.http.app import http_app
from apps.serving.ingress.api_keys import principals
from tests.llm.serve.serving import MODEL, LocalServer, local_server

KEYS = principals(["alice=a", "bob=b", "carol=c", "dave=d", "eve=e"])
CALLERS = {"carol": {"cache_group": "team"}, "dave": {"cache_group": "team"}, "eve": {"cache_group": "alice"}}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server(callers=CALLERS) as server:
        yield server


def cached(server: LocalServer, key: str | None, path: str, text: str, **fields: Any) -> tuple[int, int]:
    """`cached_tokens` that a caller is told, and those that the engine counts for it."""
    before = server.engine.stats().prefix_hit_tokens
    app = http_app(server.model, KEYS if key else {})
    body: dict[str, Any] = {"model": MODEL, "max_tokens": 1, "temperature": 0} | fields
    if path == "/v1/responses":
        body |= {"input": text}
    elif path == "/v1/completions":
        body |= {"prompt": text}
    else:
        body |= {"messages": [{"role": "user", "content": text}]}

    async def ask() -> Any:
        headers = {"x-api-key": key} if key else {}
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
            reply = await client.post(path, json=body, headers=headers)
            assert reply.status_code == 200, reply.text
            return reply.json()["usage"]

    usage = asyncio.run(ask())
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    told = usage["cache_read_input_tokens"] if path == "/v1/messages" else details["cached_tokens"]
    return told, server.engine.stats().prefix_hit_tokens - before


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_key_is_not_told_what_another_has_asked(server: LocalServer, path: str) -> None:
    secret = f"{path}: the quarter's figures are worse than we said, by about a third " * 4
    undisturbed = cached(server, "b", path, secret.replace("worse", "other"))
    assert undisturbed[0] == 0
    assert cached(server, "a", path, secret)[0] == 0
    assert cached(server, "b", path, secret) == undisturbed
    assert cached(server, "a", path, secret)[0] > 32, "its own prefix is reused"
    assert cached(server, None, path, secret)[0] == 0


def test_a_group_shares(server: LocalServer) -> None:
    text = "what carol and dave both ask about their common text, word for word " * 4
    assert cached(server, "c", "/v1/completions", text)[0] == 0
    assert cached(server, "d", "/v1/completions", text)[0] > 32
    assert cached(server, "a", "/v1/completions", text)[0] == 0
    assert cached(server, "e", "/v1/completions", text)[0] == 0, "a group named as a key is not that key's"


@pytest.mark.slow
def test_a_requests_own_salt_as_in_vllm(server: LocalServer) -> None:
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        text = f"{path}: one key serves many people, each with a salt of their own " * 4
        assert cached(server, "a", path, text, cache_salt="one")[0] == 0
        assert cached(server, "a", path, text, cache_salt="one")[0] > 32
        assert cached(server, "a", path, text, cache_salt="two")[0] == 0
        assert cached(server, "b", path, text, cache_salt="one")[0] == 0
        assert cached(server, "a", path, text)[0] == 0


@pytest.mark.parametrize("salt", ["", 7, "x" * 1001])
def test_a_salt_that_is_none_is_refused(server: LocalServer, salt: Any) -> None:
    reply = httpx.post(f"{server.url}/v1/completions", json={"prompt": "x", "cache_salt": salt})
    assert reply.status_code == 400 and reply.json()["error"]["param"] == "cache_salt"


def test_without_keys_all_share(server: LocalServer) -> None:
    text = "nobody has a key, and everyone the same long instructions " * 4
    assert cached(server, None, "/v1/completions", text)[0] == 0
    assert cached(server, None, "/v1/completions", text)[0] > 32


def test_an_adapters_key_is_its_weights() -> None:
    """numpy's own random matrices: equal weights in another process have the same key, one other number does not."""

    def layers(seed: int, changed: float = 0.0) -> list[dict[str, LowRank]]:
        random = np.random.default_rng(seed)
        a, b = random.standard_normal((8, 4)), random.standard_normal((4, 8))
        b[-1, -1] += changed
        return [{"qkv": LowRank(a.astype(jnp.bfloat16), b.astype(jnp.bfloat16))}]

    assert stack.digest(layers(0)) == stack.digest(layers(0)) and len(stack.digest(layers(0))) == 16
    assert stack.digest(layers(0)) != stack.digest(layers(0, changed=1.0)) != stack.digest(layers(1))
    assert stack.digest([]) != stack.digest(layers(0))
