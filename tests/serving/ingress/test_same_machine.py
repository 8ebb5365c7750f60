"""What a server without keys on loopback refuses. Which headers a browser sends with what: the Fetch standard, and
Chromium in tests/playground."""

import asyncio
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse

from apps.serving.ingress.same_machine import SameMachine, is_loopback

SERVER = "http://127.0.0.1:8000"
JSON = {"content-type": "application/json"}
FORM = {"content-type": "application/x-www-form-urlencoded"}


async def answer(scope: dict[str, Any], receive: Any, send: Any) -> None:
    await JSONResponse("drawn")(scope, receive, send)


def ask(headers: dict[str, str] | list[tuple[str, str]], method: str = "POST") -> int:
    guarded = SameMachine(answer, lambda scope, status, message: PlainTextResponse(message, status))

    async def call() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(guarded), base_url=SERVER) as client:
            return (await client.request(method, "/v1/completions", headers=headers)).status_code

    return asyncio.run(call())


@pytest.mark.parametrize(
    "headers",
    [
        JSON,
        FORM,  # `curl -d`, which the tutorials use
        {},
        {"host": "localhost:8000"},
        {"host": "LOCALHOST."},
        {"host": "[::1]:8000"},
        {"host": "podslice.localhost:8000"},
        {"host": "192.0.2.1:9000"},  # forwarded here
        {"host": "host.docker.internal:8000"},
        {"origin": SERVER, "sec-fetch-site": "same-origin"},
        {"origin": "http://localhost:3000", "sec-fetch-site": "cross-site"},  # a page of this machine
        {"origin": "https://[::1]"},
        {"host": "192.0.2.1:9000", "origin": "http://192.0.2.1:9000"},
        {"sec-fetch-site": "none"},  # typed by a person
    ],
    ids=str,
)
def test_what_this_machines_programs_and_pages_send_is_answered(headers: dict[str, str]) -> None:
    assert ask(headers) == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"} | JSON,
        {"origin": "http://evil.example", "content-type": "text/plain"},
        {"origin": "http://evil.example"} | FORM,
        {"origin": "http://evil.example", "content-type": "multipart/form-data; boundary=x"},
        {"origin": "http://evil.example", "sec-fetch-site": "same-origin"},
        {"origin": "http://localhost.evil.example"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"origin": "http://localhost@evil.example"},
        {"origin": "http://203.0.113.5"},
        {"origin": "null"},  # a page in a sandbox, or a file
        {"origin": ""},
        {"origin": "http://["},
        {"origin": "file://"},
        {"host": "evil.example:8000"},  # a name that now leads here
        {"host": "evil.example:8000", "origin": "http://evil.example:8000", "sec-fetch-site": "same-origin"},
        {"host": "localhost.evil.example"},
        {"host": "evil.example@localhost"} | {"origin": "http://evil.example"},
        {"host": "["},
        {"sec-fetch-site": "cross-site"},
    ],
    ids=str,
)
def test_what_a_page_of_another_site_sends_is_refused(headers: dict[str, str]) -> None:
    for method in ("POST", "GET", "OPTIONS", "PUT", "DELETE"):
        assert ask(headers, method) == 403


def test_a_second_host_is_refused() -> None:
    assert ask([("host", "localhost:8000"), ("host", "evil.example")]) == 403


def test_a_text_is_no_json() -> None:
    """A form of an old browser, which sends no Origin, can write JSON as a text."""
    assert ask({"content-type": "text/plain"}) == ask({"content-type": "Text/Plain; charset=UTF-8"}) == 415


def test_a_link_on_another_site_may_be_followed_but_not_embedded() -> None:
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}
    assert ask(followed, "GET") == 200
    assert ask(followed, "POST") == 403
    for dest, mode in (("image", "no-cors"), ("iframe", "navigate"), ("script", "no-cors"), ("empty", "cors")):
        assert ask(followed | {"sec-fetch-dest": dest, "sec-fetch-mode": mode}, "GET") == 403


def test_a_web_socket_of_another_site_is_closed() -> None:
    sent: list[Any] = []

    async def call() -> None:
        async def send(message: Any) -> None:
            sent.append(message)

        guarded = SameMachine(answer, lambda scope, status, message: PlainTextResponse(message, status))
        headers = [(b"host", b"localhost"), (b"origin", b"http://evil.example")]
        await guarded({"type": "websocket", "path": "/", "headers": headers}, None, send)

    asyncio.run(call())
    assert [message["type"] for message in sent] == ["websocket.close"]


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.0.3", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("evil.example", False),
        ("", False),
        (None, False),
    ],
)
def test_where_a_server_listens(host: str | None, loopback: bool) -> None:
    assert is_loopback(host) is loopback
