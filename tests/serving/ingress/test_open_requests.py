"""A replica that drains: what is open ends as if nothing had been, what comes later is refused with Retry-After."""

import asyncio

import httpx
import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from apps.serving.ingress.dialects import anthropic_errors
from apps.serving.ingress.open_requests import Draining, OpenRequests


class Slow:
    """Answers when it is told to; /fail raises then."""

    def __init__(self) -> None:
        self.asked, self.go_on = asyncio.Event(), asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.set()
        await self.go_on.wait()
        if scope["path"] == "/fail":
            raise ZeroDivisionError
        await PlainTextResponse("whole")(scope, receive, send)


def behind(slow: Slow, requests: OpenRequests) -> httpx.AsyncClient:
    app = Draining(slow, requests, anthropic_errors.by_path)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server")


@pytest.mark.parametrize("ending", ["answered", "failed", "client gone"])
def test_drained_when_the_last_open_request_has_ended(ending: str) -> None:
    answer = asyncio.run(_drained(ending))
    assert (isinstance(answer, httpx.Response) and answer.text == "whole") == (ending == "answered")


async def _drained(ending: str) -> object:
    slow, requests = Slow(), OpenRequests()
    async with behind(slow, requests) as client:
        asked = asyncio.create_task(client.get("/fail" if ending == "failed" else "/generate"))
        await slow.asked.wait()
        assert await requests.drain(0.01) == 1
        drained = asyncio.create_task(requests.drain(60))
        await asyncio.sleep(0.01)
        assert not drained.done()
        if ending == "client gone":
            asked.cancel()
        slow.go_on.set()
        assert await drained == 0
        return (await asyncio.gather(asked, return_exceptions=True))[0]


def test_nothing_open_is_drained_at_once() -> None:
    assert asyncio.run(OpenRequests().drain(0)) == 0


def test_newcomers_are_refused_in_their_own_format() -> None:
    openai, anthropic, watching = asyncio.run(_refused())
    assert (openai.status_code, openai.headers["retry-after"]) == (503, "5")
    assert openai.json()["error"]["code"] == "server_stopping"
    assert (anthropic.status_code, anthropic.headers["retry-after"]) == (503, "5")
    assert anthropic.json()["type"] == "error" and anthropic.json()["error"]["type"] == "api_error"
    assert watching.status_code == 200, "by which a client watches its open request"


async def _refused() -> tuple[httpx.Response, httpx.Response, httpx.Response]:
    slow, requests = Slow(), OpenRequests()
    slow.go_on.set()
    await requests.drain(0)
    async with behind(slow, requests) as client:
        openai = await client.post("/v1/completions", json={})
        anthropic = await client.post("/v1/messages", json={})
        return openai, anthropic, await client.get("/sdapi/v1/progress")
