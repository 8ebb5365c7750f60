"""A full queue, an engine that fails, and API keys, without Ray."""

import asyncio
import json

import httpx
import openai
import pytest

from apps.llm.api import CALLER, Caller
from apps.llm.http.app import http_app
from apps.llm.text import EngineStopped
from apps.llm.text_api import SamplingParams
from apps.serving.ingress.api_keys import principals
from tests.llm.serve.serving import MODEL, LocalServer, held, local_server, wait_until

HELLO = {"model": MODEL, "max_tokens": 2, "messages": [{"role": "user", "content": "x"}]}
LONG_ANSWER = {
    "type": "json_schema",
    "schema": {"type": "object", "properties": {"a": {"type": "array", "minItems": 400}}, "required": ["a"]},
}
SHORT = {"prompt": "x", "max_tokens": 4, "ignore_eos": True, "stream": True}


@pytest.fixture
def server(crowded_server: LocalServer) -> LocalServer:
    return crowded_server


def test_a_full_queue_answers_429_or_as_its_dialect_has_it(server):
    url = f"{server.url}/v1/completions"
    paths = {
        "/v1/completions": SHORT,
        "/v1/embeddings": {"input": "x"},
        "/v1/messages": HELLO,
        "/v1/messages?beta=true": HELLO | {"stream": True},
        "/generate": {},
        "/generate?saxml": {"query": "x"},
        "/score": {"prefix": "x", "suffix": ["y"]},
    }

    async def overload() -> list[httpx.Response]:
        async with httpx.AsyncClient() as client:
            with held(server.engine):
                taken = [asyncio.create_task(client.post(url, json=SHORT | {"n": 4}))]
                while server.engine.stats().running < 4:
                    await asyncio.sleep(0.01)
                taken.append(asyncio.create_task(client.post(url, json=SHORT | {"n": 2})))
                while server.engine.stats().waiting < 2:
                    await asyncio.sleep(0.01)
                replies = [await client.post(server.url + path, json=body) for path, body in paths.items()]
            assert [reply.status_code for reply in await asyncio.gather(*taken)] == [200, 200]
            return replies

    openai_reply, embeddings, *anthropic, jetstream, saxml, score = asyncio.run(overload())
    assert openai_reply.status_code == 429 and int(openai_reply.headers["retry-after"]) >= 1
    assert openai_reply.json()["error"]["code"] == "rate_limit_exceeded"
    assert embeddings.status_code == 429 and embeddings.json()["error"]["code"] == "rate_limit_exceeded"
    for reply in anthropic:
        assert reply.status_code == 529 and int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["type"] == "overloaded_error" and "busy" in reply.json()["error"]["message"]
    for reply in (saxml, score):
        assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
        assert "busy" in reply.json()["Error"] == reply.json()["detail"]
    assert jetstream.status_code == 429 and jetstream.json()["detail"] and "retry-after" in jetstream.headers
    wait_until(lambda: server.engine.stats().pages_used == 0)
    assert httpx.post(url, json={"prompt": "x", "max_tokens": 1}).status_code == 200


def test_many_embeddings_wait_for_room_and_leave_with_their_reader(server):
    prompts = [[token % 200 + 10] * 100 for token in range(200)]

    async def ask() -> None:
        assert len(await server.model.embed(prompts[:30], "mean")) == 30  # of which the queue holds two
        for request in (server.model.embed(prompts, "mean"), server.model.score(prompts[0], prompts[:100])):
            task = asyncio.create_task(request)
            while not server.engine.stats().running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: server.engine.stats().pages_used == 0)
            assert server.engine.stats().waiting == 0

    asyncio.run(ask())


def test_requests_are_those_of_the_tasks_caller(server):
    async def ask(**held) -> Caller:
        CALLER.set(Caller(background=True))
        stream = await server.model.submit(SamplingParams(max_tokens=1, **held), "x")
        assert [output async for outputs in stream.outputs() for output in outputs]
        return stream._generations[0].caller

    assert asyncio.run(ask()).background and asyncio.run(ask(json_schema={})).background


def test_keys(server):
    app = http_app(server.model, principals(["right", "also right"]))

    def ask(key: str | None, path: str = "/v1/models", header: str = "Authorization") -> httpx.Response:
        async def call() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                return await client.get(path, headers={header: key} if key else {})

        return asyncio.run(call())

    assert ask("Bearer right").status_code == ask("bearer also right").status_code == 200
    for refused in (None, "Bearer wrong", "Bearer", "Basic right", "Bearer righ", "Bearer rightright"):
        reply = ask(refused)
        assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["code"] == "invalid_api_key"
        reply = ask(refused, "/v1/messages")
        assert reply.status_code == 401 and reply.json()["error"]["type"] == "authentication_error"
        assert reply.json()["type"] == "error" and reply.json()["request_id"] == reply.headers["request-id"]
    assert ask("right", "/v1/messages", "x-api-key").status_code == 405  # a GET, with a valid key
    assert ask("wrong", "/v1/messages", "x-api-key").status_code == 401
    assert ask(None, "/generate").status_code == 401  # without a key, not even the methods are revealed
    assert ask(None, "/healthcheck").status_code == ask(None, "/health").status_code == 200


def test_an_engine_that_fails_says_so_to_everyone():
    def broken(*_):
        raise RuntimeError("the device is gone")

    with local_server() as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model=MODEL, prompt="x", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
        )
        assert next(stream).choices[0] is not None
        long = HELLO | {"max_tokens": 900, "stream": True, "output_config": {"format": LONG_ANSWER}}
        with httpx.stream("POST", f"{server.url}/v1/messages", json=long) as messages:
            lines = messages.iter_lines()
            assert next(lines) == "event: message_start"
            server.engine.tokens.loops[0].executor.launch = broken
            last = list(lines)
        failed = json.loads(last[last.index("event: error") + 1].removeprefix("data: "))
        assert failed["type"] == "error" and failed["error"]["type"] == "api_error"
        assert "the device is gone" in failed["error"]["message"] and "event: message_stop" not in last

        with pytest.raises(openai.APIError, match="the device is gone"):  # an event, not silence
            list(stream)
        with pytest.raises(EngineStopped, match="the device is gone"):
            server.model.check()
        with pytest.raises(openai.InternalServerError) as refused:
            client.completions.create(model=MODEL, prompt="x")
        assert refused.value.status_code == 503 and int(refused.value.response.headers["retry-after"]) >= 1
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503 and "device" in json.dumps(health.json())
        assert httpx.get(f"{server.url}/healthcheck").status_code == 500
        for path, body in {"/generate": {"query": "x"}, "/score": {"prefix": "x", "suffix": "y"}}.items():
            reply = httpx.post(server.url + path, json=body)
            assert reply.status_code == 503 and "the device is gone" in reply.json()["Error"]
            assert int(reply.headers["retry-after"]) >= 1
        reply = httpx.post(f"{server.url}/v1/messages", json=HELLO)
        assert (reply.status_code, reply.json()["error"]["type"]) == (503, "api_error") and reply.headers["retry-after"]
        assert httpx.post(f"{server.url}/v1/embeddings", json={"input": "x"}).status_code == 503
        assert httpx.post(f"{server.url}/generate", json={}).status_code == 503
