"""A full queue, an engine that fails, and API keys: without Ray, with a hand on the engine."""

import asyncio
import json

import httpx
import openai
import pytest
from serving import MODEL, local_server, wait_until

from apps.llm.engine import EngineStopped
from apps.llm.http.app import http_app
from apps.serving.ingress.api_keys import principals

ENDLESS = {"prompt": "x", "max_tokens": 1000, "ignore_eos": True, "stream": True}


@pytest.fixture(scope="module")
def server():
    with local_server(max_waiting=2) as server:
        yield server


def test_a_full_queue_answers_429(server):
    url = f"{server.url}/v1/completions"
    with httpx.stream("POST", url, json=ENDLESS | {"n": 4}) as running:
        next(running.iter_lines())

        async def overload() -> list[httpx.Response]:
            async with httpx.AsyncClient() as client:
                # Short: bare uvicorn does not cancel what its client no longer waits for, so it runs to its end below.
                queued = asyncio.create_task(client.post(url, json=ENDLESS | {"n": 2, "max_tokens": 4}))
                while server.engine.stats().waiting < 2:
                    await asyncio.sleep(0.01)
                paths = {
                    "/v1/completions": ENDLESS,
                    "/v1/embeddings": {"input": "x"},
                    "/generate": {},
                    "/generate?saxml": {"query": "x"},
                    "/score": {"prefix": "x", "suffix": "y"},
                }
                replies = [await client.post(server.url + path, json=body) for path, body in paths.items()]
                queued.cancel()
                return replies

        openai_reply, embeddings, jetstream, *saxml = asyncio.run(overload())
    assert openai_reply.status_code == 429 and int(openai_reply.headers["retry-after"]) >= 1
    assert openai_reply.json()["error"]["code"] == "rate_limit_exceeded"
    assert embeddings.status_code == 429 and embeddings.json()["error"]["code"] == "rate_limit_exceeded"
    for reply in saxml:
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


def test_keys(server):
    app = http_app({MODEL: server.model}, principals(["right", "also right"]))

    def ask(key: str | None, path: str = "/v1/models") -> httpx.Response:
        async def call() -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                return await client.get(path, headers={"Authorization": key} if key else {})

        return asyncio.run(call())

    assert ask("Bearer right").status_code == ask("bearer also right").status_code == 200
    for refused in (None, "Bearer wrong", "Bearer", "Basic right", "Bearer righ", "Bearer rightright"):
        reply = ask(refused)
        assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
        assert reply.json()["error"]["code"] == "invalid_api_key"
    assert ask(None, "/generate").status_code == 401  # not even which methods there are
    assert ask(None, "/healthcheck").status_code == ask(None, "/health").status_code == 200


def test_an_engine_that_fails_says_so_to_everyone():
    with local_server() as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        stream = client.completions.create(
            model=MODEL, prompt="x", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}
        )
        assert next(stream).choices[0] is not None

        def broken(*_):
            raise RuntimeError("the device is gone")

        server.engine.loops[0].executor.launch = broken
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
        assert httpx.post(f"{server.url}/v1/embeddings", json={"input": "x"}).status_code == 503
        assert httpx.post(f"{server.url}/generate", json={}).status_code == 503
