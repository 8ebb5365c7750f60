"""What is no number, in a request or in the model: an error in each dialect's own format, for that request alone."""

import asyncio
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import jax
import numpy as np
import pytest

from apps.llm.http.app import http_app
from apps.llm.served.text_model import TextModel
from tests.http_servers import served
from tests.llm.serve.serving import MODEL, LocalServer, held, local_server, wait_until

CHAT = {"model": MODEL, "max_tokens": 200, "messages": [{"role": "user", "content": "Tell me of ants."}]}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "completions": ("/v1/completions", {"prompt": "Ants", "max_tokens": 200, "ignore_eos": True}),
    "chat": ("/v1/chat/completions", CHAT),
    "responses": ("/v1/responses", {"model": MODEL, "input": "Tell me of ants.", "store": False}),
    "anthropic": ("/v1/messages", CHAT),
    "jetstream": ("/generate", {"prompt": "Ants", "max_tokens": 200}),
    "saxml": ("/generate", {"query": "Ants"}),
}
READS: dict[str, tuple[str, dict[str, Any]]] = {
    "embeddings": ("/v1/embeddings", {"input": "Ants"}),
    "score": ("/score", {"prefix": "Ants", "suffix": ["are small"]}),
    "rerank": ("/v1/rerank", {"query": "Ants", "documents": ["They are small.", "Bees"]}),
    "echo": ("/v1/completions", {"prompt": "Ants", "echo": True, "logprobs": 1, "max_tokens": 0}),
}


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server() as server:
        yield server


@contextmanager
def poisoned(server: LocalServer) -> Iterator[None]:
    """Every token's embedding is NaN: what is asked now must fail, what was answered before must not have changed."""
    params = server.engine.tokens.loops[0].executor.params
    sound = params["embed"]
    params["embed"] = jax.device_put(np.full(sound.shape, np.nan, sound.dtype), sound.sharding)
    try:
        yield
    finally:
        params["embed"] = sound


def no_constant(name: str) -> None:
    raise AssertionError(f"{name} is not JSON")


def message(reply: httpx.Response) -> str:
    body = reply.json()
    error = body.get("error")
    return error["message"] if isinstance(error, dict) else body.get("detail") or body["Error"]


@pytest.mark.parametrize("name", ASKED | READS)
def test_a_model_that_computes_no_numbers_answers_500(server: LocalServer, name: str) -> None:
    path, body = (ASKED | READS)[name]
    before = httpx.post(server.url + "/v1/completions", json={"prompt": "Bees", "temperature": 0}).json()
    with poisoned(server):
        reply = httpx.post(server.url + path, json=body, timeout=60)
    assert reply.status_code == 500 and "not finite" in message(reply)
    assert "retry-after" not in reply.headers
    after = httpx.post(server.url + "/v1/completions", json={"prompt": "Bees", "temperature": 0}).json()
    assert after["choices"] == before["choices"]
    assert httpx.get(server.url + "/health").status_code == 200


@pytest.mark.parametrize("name", ASKED)
def test_a_stream_ends_with_an_error(server: LocalServer, name: str) -> None:
    """One event says so, and no event says that the answer is complete."""
    path, body = ASKED[name]
    if name == "saxml":
        body = body | {"extra_inputs": {"per_example_max_decode_steps": 200}}
    with held(server.engine):
        pass  # nothing is left of the tests before
    with httpx.stream("POST", server.url + path, json=body | {"stream": True}, timeout=60) as stream:
        assert stream.status_code == 200
        pieces = stream.iter_text()
        first = next(pieces)
        with poisoned(server):
            rest = first + "".join(pieces)
    assert "not finite" in rest
    assert not any(end in rest for end in ("message_stop", "response.completed", '"finish_reason":"stop"'))
    wait_until(lambda: server.engine.stats().pages_used == 0)


NUMBERS = ("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty")
BAD = ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e308")
FIELDS = [("completions", field) for field in NUMBERS] + [("chat", field) for field in NUMBERS]
FIELDS += [(name, field) for name in ("responses", "anthropic") for field in ("temperature", "top_p")]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("name", "field"), [*FIELDS, ("completions", "logit_bias"), ("saxml", "temperature")])
def test_a_field_that_is_no_number_is_refused(server: LocalServer, name: str, field: str, bad: str) -> None:
    """Python's json reads these; JSON has no such numbers."""
    path, body = ASKED[name]
    if name == "saxml":
        body = body | {"extra_inputs": {field: "HERE"}}
    else:
        body = body | {field: {"5": "HERE"} if field == "logit_bias" else "HERE"}
    sent = json.dumps(body).replace('"HERE"', bad)
    reply = httpx.post(server.url + path, content=sent, headers={"Content-Type": "application/json"}, timeout=60)
    assert reply.status_code == 400, reply.text
    assert field in message(reply)


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", ASKED)
def test_nothing_that_is_no_number_breaks_an_answer(server: LocalServer, name: str, bad: str) -> None:
    """In fields of any type, which are passed on, written back, or of another type: never a 500, always JSON."""
    path, body = ASKED[name]
    schema = {"type": "object", "properties": {"a": {"type": "number", "maximum": "HERE"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    flat = {"type": "function", "name": "f", "parameters": schema}
    more = {
        "completions": [{"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}, {"n": "HERE"}],
        "chat": [{"tools": [tool]}, {"messages": "HERE"}, {"chat_template_kwargs": {"x": "HERE"}}],
        "responses": [{"tools": [flat]}, {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}],
        "anthropic": [{"tools": [{"name": "f", "input_schema": schema}]}, {"max_tokens": "HERE"}],
        "jetstream": [{"prompt": "HERE"}, {"max_tokens": "HERE"}],
        "saxml": [{"query": "HERE"}, {"extra_inputs": {"per_example_top_k": "HERE"}}],
    }[name]
    for change in [*more, {"metadata": {"a": "HERE"}}, {"unknown": ["HERE"]}]:
        limit = {"max_output_tokens": 4} if name == "responses" else {"max_tokens": 4}
        sent = json.dumps(body | limit | change).replace('"HERE"', bad)
        reply = httpx.post(server.url + path, content=sent, headers={"Content-Type": "application/json"}, timeout=60)
        assert reply.status_code in (200, 400, 422), (change, reply.text)
        json.loads(reply.text, parse_constant=no_constant)


def test_log_probabilities_are_json_whatever_the_bias(server: LocalServer) -> None:
    """-100 on a token leaves it a probability; its logarithm is a number."""
    body = {"prompt": "Ants", "max_tokens": 3, "logprobs": 5, "logit_bias": {"5": -100.0, "6": 100.0}}
    choice = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()["choices"][0]
    assert all(math.isfinite(number) for number in choice["logprobs"]["token_logprobs"])


@pytest.mark.parametrize("name", ASKED | READS)
def test_a_stuck_engine_holds_no_request_longer_than_its_deadline(server: LocalServer, name: str) -> None:
    """No step ends while the engine is held; the answer comes all the same, and later ones are as before."""
    path, body = (ASKED | READS)[name]
    model = TextModel(MODEL, server.engine, step_deadline_s=0.5)
    with served(http_app(model)) as url, held(server.engine):
        reply = httpx.post(url + path, json=body, timeout=50)
        assert reply.status_code == 503 and "in one step" in message(reply)
        assert httpx.get(f"{url}/health").status_code == 503
    wait_until(lambda: server.engine.stats().pages_used == 0 and not server.engine.stats().waiting)
    assert httpx.post(server.url + path, json=body, timeout=60).status_code == 200


@pytest.mark.parametrize("name", ASKED)
def test_a_stream_of_a_stuck_engine_ends_with_an_error(server: LocalServer, name: str) -> None:
    path, body = ASKED[name]
    model = TextModel(MODEL, server.engine, step_deadline_s=0.5)
    with (
        served(http_app(model)) as url,
        held(server.engine, after=3),
        httpx.stream("POST", url + path, json=body | {"stream": True}, timeout=60) as stream,
    ):
        rest = "".join(stream.iter_text())
    assert "in one step" in rest
    assert not any(end in rest for end in ("message_stop", "response.completed", '"finish_reason":"stop"'))
    wait_until(lambda: server.engine.stats().pages_used == 0)


def test_a_watched_engine_that_goes_on_keeps_its_requests(server: LocalServer) -> None:
    """A pause shorter than the deadline ends nothing; a heartbeat beside it shows that the loop was never held."""
    model = TextModel(MODEL, server.engine, step_deadline_s=30)

    async def ask() -> tuple[int, int]:
        beats = 0

        async def beat() -> None:
            nonlocal beats
            while True:
                await asyncio.sleep(0.01)
                beats += 1

        beating = asyncio.create_task(beat())
        with held(server.engine):
            asked = asyncio.create_task(model.embed(["Ants"]))
            while beats < 20:
                await asyncio.sleep(0.01)
        vectors = await asked
        beating.cancel()
        return len(vectors), beats

    vectors, beats = asyncio.run(ask())
    assert vectors == 1 and beats >= 20
