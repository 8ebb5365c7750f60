"""A full queue, an engine that fails, requests that fail alone, and API keys: with a hand on the engine."""

import asyncio
import json
import threading

import httpx
import openai
import pytest

from apps.serving.errors import EngineStopped
from apps.serving.ingress.api_keys import principals
from apps.stable_diffusion.http.app import http_app
from tests.stable_diffusion.engine.loop_backend import LoopBackend
from tests.stable_diffusion.serve.picture_serving import MODEL, LocalServer, events_of, local_server, wait_until


def ask_aside(server: LocalServer, **params) -> threading.Thread:
    """A request that somebody else waits for."""
    thread = threading.Thread(
        target=lambda: httpx.get(f"{server.url}/imagine", params={"prompt": "x", **params}, timeout=60)
    )
    thread.start()
    return thread


def test_a_full_queue_answers_429():
    backend = LoopBackend(batch_sizes=(1,), step_s=0.001)
    with local_server(backend, max_waiting=1) as server:
        httpx.get(f"{server.url}/imagine", params={"prompt": "timed", "num_inference_steps": 5})
        backend.began.clear()
        backend.gate.clear()
        others = [ask_aside(server)]
        assert backend.began.wait(240)
        others.append(ask_aside(server))
        wait_until(lambda: server.engine.stats().waiting == 1)
        openai_reply = httpx.post(f"{server.url}/v1/images/generations", json={"prompt": "x"})
        plain = httpx.get(f"{server.url}/imagine", params={"prompt": "x"})
        web_ui = httpx.post(f"{server.url}/sdapi/v1/txt2img", json={"prompt": "x"})
        backend.gate.set()
        for other in others:
            other.join(60)
        for reply in (openai_reply, plain):
            assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
            assert reply.json()["error"]["code"] == "rate_limit_exceeded"
        assert web_ui.status_code == 429 and "wait already" in web_ui.json()["detail"]
        assert int(web_ui.headers["retry-after"]) >= 1
        assert httpx.get(f"{server.url}/imagine", params={"prompt": "x"}).status_code == 200


def test_keys():
    with local_server(LoopBackend()) as server:
        app = http_app(server.model, principals(["right"]))

        def ask(key: str | None, path: str) -> httpx.Response:
            async def call() -> httpx.Response:
                async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                    return await client.get(path, headers={"Authorization": key} if key else {})

            return asyncio.run(call())

        for path in ("/v1/models", "/imagine?prompt=x", "/sdapi/v1/progress"):
            assert ask("Bearer right", path).status_code == 200
            for wrong in (None, "Bearer wrong", "Basic right"):
                reply = ask(wrong, path)
                assert reply.status_code == 401 and reply.json()["error"]["code"] == "invalid_api_key"
        assert ask(None, "/health").status_code == 200


def test_an_engine_that_fails_says_so_to_everyone():
    backend = LoopBackend(step_s=0.01)
    with (
        local_server(backend) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = client.images.generate(
            model=MODEL, prompt="x", stream=True, extra_body={"steps": 100, "progress": True}
        )
        assert next(stream).type == "image_generation.step"
        backend.broken = RuntimeError("the device is gone")
        with pytest.raises(openai.APIError, match="the device is gone"):  # an event, not silence
            list(stream)
        with pytest.raises(EngineStopped, match="the device is gone"):
            server.model.check()
        with pytest.raises(openai.InternalServerError) as refused:
            client.images.generate(model=MODEL, prompt="x")
        assert refused.value.status_code == 503 and int(refused.value.response.headers["retry-after"]) >= 1
        health = httpx.get(f"{server.url}/health")
        assert health.status_code == 503 and "device" in json.dumps(health.json())
        assert httpx.get(f"{server.url}/imagine", params={"prompt": "x"}).status_code == 503
        assert httpx.post(f"{server.url}/sdapi/v1/txt2img", json={"prompt": "x"}).status_code == 503


def test_a_stream_that_fails_under_way_ends_with_an_error_event():
    backend = LoopBackend(step_s=0.06)
    with local_server(backend) as server:
        params = {"prompt": "x", "stream": "true", "num_inference_steps": "50"}
        with httpx.stream("GET", f"{server.url}/imagine", params=params) as reply:
            parts = reply.iter_text()
            text = next(parts)
            backend.broken = RuntimeError("the device is gone")
            text += "".join(parts)
        name, data = events_of(text)[-1]
        assert name == "error" and "the device is gone" in data["error"]["message"]


def test_a_request_that_fails_alone_is_500_and_the_rest_goes_on():
    def fail(request):
        if request.prompt == "odd":
            raise ArithmeticError("an odd prompt")

    with local_server(LoopBackend(at_start=fail)) as server:
        reply = httpx.get(f"{server.url}/imagine", params={"prompt": "odd"})
        assert reply.status_code == 500 and "an odd prompt" in reply.json()["error"]["message"]
        assert httpx.get(f"{server.url}/imagine", params={"prompt": "even"}).status_code == 200
        assert httpx.get(f"{server.url}/health").json()["models"][MODEL]["failed"] == 1


def test_health_says_how_busy_it_is():
    with local_server(LoopBackend()) as server:
        httpx.get(f"{server.url}/imagine", params={"prompt": "x", "num_inference_steps": 3})
        report = httpx.get(f"{server.url}/health").json()
        assert report["status"] == "ok"
        model = report["models"][MODEL]
        assert (model["pictures"], model["steps"], model["running"], model["device"]) == (1, 3, 0, "cpu")
