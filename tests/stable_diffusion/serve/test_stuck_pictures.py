"""A picture engine that is stuck holds no request longer than its deadline, in any dialect."""

import httpx
import pytest

from tests.stable_diffusion.engine.loop_backend import LoopBackend, wait_for
from tests.stable_diffusion.serve.picture_serving import MODEL, local_server

ASKED = {
    "imagine": ("GET", "/imagine?prompt=x"),
    "openai": ("POST", "/v1/images/generations"),
    "sdapi": ("POST", "/sdapi/v1/txt2img"),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_request_to_a_stuck_engine_ends_with_503(name: str) -> None:
    backend = LoopBackend()
    method, path = ASKED[name]
    body = None if method == "GET" else {"model": MODEL, "prompt": "x", "width": 16, "height": 16, "steps": 3}
    with local_server(backend, health_step_deadline_s=0.5) as server:
        backend.gate.clear()
        reply = httpx.request(method, server.url + path, json=body, timeout=50)
        assert reply.status_code == 503 and "in one step" in reply.text
        backend.gate.set()
        wait_for(lambda: not server.engine.stats().running)
        reply = httpx.request(method, server.url + path, json=body, timeout=50)
        assert reply.status_code == 200


def test_a_stream_of_a_stuck_engine_ends_with_an_error() -> None:
    backend = LoopBackend()
    with local_server(backend, health_step_deadline_s=0.5) as server:
        backend.gate.clear()
        with httpx.stream("GET", f"{server.url}/imagine?prompt=x&stream=true", timeout=50) as stream:
            text = "".join(stream.iter_text())
        assert "in one step" in text and "event: finished" not in text
        backend.gate.set()
