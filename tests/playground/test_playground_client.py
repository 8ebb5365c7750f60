"""The playground's HTTP: which pages a service gets, and a clear sentence for whatever goes wrong."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse

from apps.playground.client import Client, ServiceProblem, applications
from tests.http_servers import served
from tests.ports import free_port

CHAT = {"paths": {"/v1/chat/completions": {}, "/v1/models": {}}}
PICTURES = {"paths": {"/v1/images/generations": {}}}
CELL = {"paths": {"/publish": {}, "/v1/chat/completions": {}}}
EVENTS = 'data: {"n": "a\u2028b"}\n\n: alive\n\ndata: {"n": 2}\r\n\ndata: [DONE]\n\ndata: {"n": 3}\n\n'


@pytest.fixture(scope="module")
def services() -> Iterator[str]:
    """Services of several kinds, each under a path of its own."""
    routes = {"/": "llm", "/pictures": "pictures", "/cell": "cell", "/cell/sax/test/demo": "sax.test.demo"}
    answers: dict[str, Any] = {
        "/three/-/routes": routes,
        "/three/openapi.json": CHAT,
        "/three/pictures/openapi.json": PICTURES,
        "/three/cell/openapi.json": CELL,
        "/partly/-/routes": {"/": "llm", "/pictures": "pictures"},
        "/partly/openapi.json": CHAT,
        "/lone/openapi.json": PICTURES,
        "/other/openapi.json": {"paths": {"/pets": {}}},
    }

    async def answer(request: Request) -> Response:
        path = request.url.path
        if path.startswith("/locked") and request.headers.get("Authorization") != "Bearer right":
            return JSONResponse({"error": {"message": "No API key."}}, 401)
        if path == "/html/openapi.json":
            return HTMLResponse("<html>a router</html>")
        if path == "/locked/openapi.json":
            return JSONResponse(CHAT)
        if path == "/stream":
            return Response(EVENTS, media_type="text/event-stream")
        if path == "/midway":
            return Response('data: {"n": 1}\n\ndata: {"error": {"message": "slice lost"}}\n\n')
        if path == "/cut":
            return StreamingResponse(iter(['data: {"n": 1}\n\n']), headers={"Content-Length": "1000"})
        if path in answers:
            return JSONResponse(answers[path])
        full = path.startswith("/partly")
        return JSONResponse({"detail": "full" if full else "There is nothing."}, 503 if full else 404)

    app = Starlette()
    app.add_route("/{path:path}", answer, methods=["GET", "POST"])
    with served(app) as url:
        yield url


def test_each_application_gets_the_pages_that_it_has_the_calls_for(services: str) -> None:
    found, problems = asyncio.run(applications(Client(f"{services}/three/")))
    assert [(application.prefix, application.pages) for application in found] == [
        ("/", ("chat",)),
        ("/cell", ("chat", "cell")),
        ("/pictures", ("pictures",)),
    ]
    assert [application.client.url for application in found][1] == f"{services}/three/cell"
    assert problems == []


def test_an_application_without_serves_proxy(services: str) -> None:
    (application,), _ = asyncio.run(applications(Client(f"{services}/lone")))
    assert application.pages == ("pictures",)


def test_one_application_that_does_not_answer_leaves_the_others(services: str) -> None:
    (application,), (problem,) = asyncio.run(applications(Client(f"{services}/partly")))
    assert application.prefix == "/" and "answered 503: full (the service is full or starting" in problem


@pytest.mark.parametrize(
    ("path", "key", "said"),
    [
        ("locked", "", "answered 401: No API key (the service wants an API key: pass one with --api-key"),
        ("locked", "wrong", "its API key is not accepted"),
        ("other", "", "is not a Podslice service"),
        ("html", "", "is not a Podslice service"),
        ("nothing", "", "answered 404: There is nothing."),
    ],
)
def test_a_service_of_another_kind(services: str, path: str, key: str, said: str) -> None:
    with pytest.raises(ServiceProblem) as problem:
        asyncio.run(applications(Client(f"{services}/{path}", key)))
    assert said in str(problem.value) and f"{services}/{path}" in str(problem.value)


def test_the_right_key(services: str) -> None:
    (application,), _ = asyncio.run(applications(Client(f"{services}/locked", "right")))
    assert application.pages == ("chat",)


def test_nobody_listens() -> None:
    with pytest.raises(ServiceProblem, match=r"Cannot reach http://localhost:.*Is the service running"):
        asyncio.run(applications(Client(f"localhost:{free_port()}")))


@pytest.mark.parametrize("url", ["http://", "ftp://host", "http://host:0", "http://host:99999", ""])
def test_what_is_no_address(url: str) -> None:
    with pytest.raises(ServiceProblem, match="is not a service's address"):
        Client(url)


def test_a_key_that_no_header_can_carry() -> None:
    with pytest.raises(ServiceProblem, match="characters that no HTTP header can carry"):
        Client("localhost", "k\ney")


def taken(url: str, path: str) -> list[Any]:
    async def take() -> list[Any]:
        stream: AsyncIterator[dict[str, Any]] = Client(url).events(path, json={})
        try:
            async for event in stream:
                events.append(event["n"])
        except ServiceProblem as problem:
            events.append(str(problem))
        return events

    events: list[Any] = []
    return asyncio.run(take())


def test_a_stream_and_the_ways_in_which_it_ends(services: str) -> None:
    assert "\u2028" in EVENTS and json.loads('"\u2028"') == "\u2028"
    assert taken(services, "/stream") == ["a\u2028b", 2]
    assert taken(services, "/midway") == [1, "The service failed midway: slice lost"]
    first, broken = taken(services, "/cut")
    assert first == 1 and "broke" in broken
    assert taken(services, "/none") == [f"{services}/none answered 404: There is nothing."]
