"""Requests that are sent again: the answer is computed once, and whoever lost it gets it from its first byte.

The oracles: the draft standard of the header Idempotency-Key (422 for a key with another body; what failed may be tried
again), OpenAI's own client, whose retries keep the headers of the first attempt, and the bytes of an undisturbed run.
"""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

import httpx
import pytest
from fastapi import FastAPI, Request
from openai import OpenAI
from starlette.responses import JSONResponse, Response

from apps.serving.ingress import retries
from apps.serving.ingress.api_keys import principals
from apps.serving.ingress.application import answer_errors
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.ingress.event_stream import EventStream
from tests.http_servers import served
from tests.llm.serve.serving import MODEL, LocalServer, local_server

NAMED = {"Idempotency-Key": "order-1"}
TRACED = {"X-Request-Id": "order-1", "Podslice-Named-By": "client"}
"""As HAProxy passes on an id that came with the request."""


@dataclass
class Counted:
    """An application of events, of which the test lets go one at a time."""

    keys: Any = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    go_on: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(0))
    piece: bytes = b"data: %d\n\n"

    def app(self) -> FastAPI:
        app = FastAPI()

        @app.post("/stream")
        async def stream(request: Request) -> Response:
            self.calls.append((await request.body()).decode())
            return await EventStream(self.events(), lambda error: f"failed: {error}".encode()).begun()

        @app.post("/once")
        async def once(request: Request) -> Response:
            self.calls.append((await request.body()).decode())
            if len(self.calls) == 1:
                raise OpenAIError(503, "Not now.", None, "overloaded", 1)
            return JSONResponse({"call": len(self.calls)})

        answer_errors(app, self.keys)
        return app

    async def events(self) -> AsyncGenerator[bytes, None]:
        try:
            for number in range(4):
                yield self.piece.replace(b"%d", str(number).encode())
                await self.go_on.acquire()
        finally:
            self.ended.append("ended")

    def let(self, count: int) -> None:
        for _ in range(count):
            self.go_on.release()


class Client:
    """One request to an ASGI application, in a task that is cancelled when its client leaves, as Serve does it."""

    def __init__(self, app: Any, path: str = "/stream", body: bytes = b"{}", **headers: str):
        self.status, self.body, self.headers = 0, b"", dict[str, str]()
        self._parts = [{"type": "http.request", "body": body, "more_body": False}]
        written = {name.lower().replace("_", "-"): value for name, value in headers.items()}
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "query_string": b"",
            "headers": [(b"content-length", str(len(body)).encode())]
            + [(name.encode(), value.encode()) for name, value in written.items()],
            "client": ("10.0.0.1", 1),
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> Any:
        while not self._parts:
            await asyncio.Event().wait()
        return self._parts.pop()

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        self.body += message.get("body", b"")

    async def has(self, count: int) -> "Client":
        while self.body.count(b"data:") < count:
            await asyncio.sleep(0)
        return self

    async def leave(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task

    async def whole(self) -> "Client":
        await self.task
        return self


def run(story: Callable[[Counted, Any], Any], **options: Any) -> Counted:
    async def told() -> Counted:
        counted = Counted(**options)
        async with asyncio.timeout(30):
            await story(counted, counted.app())
        return counted

    return asyncio.run(told())


WHOLE = b"".join(b"data: %d\n\n" % number for number in range(4))


@pytest.mark.parametrize("read", [1, 2, 4])
@pytest.mark.parametrize("named", [NAMED, TRACED], ids=["Idempotency-Key", "X-Request-Id"])
def test_who_lost_the_connection_gets_everything_from_the_beginning(named: dict[str, str], read: int) -> None:
    async def story(counted: Counted, app: Any) -> None:
        first = Client(app, **named)
        counted.let(read - 1)
        await (await first.has(read)).leave()
        assert counted.ended == []
        again = Client(app, **named)
        counted.let(4)
        assert (await again.whole()).body == WHOLE
        assert again.headers["idempotent-replayed"] == "true" and "idempotent-replayed" not in first.headers
        late = await Client(app, **named).whole()
        assert (late.status, late.body) == (200, WHOLE)

    assert run(story).calls == ["{}"]


def test_both_are_answered_while_both_are_there() -> None:
    async def story(counted: Counted, app: Any) -> None:
        clients = [await Client(app, **NAMED).has(1) for _ in range(3)]
        counted.let(4)
        assert [(await client.whole()).body for client in clients] == [WHOLE] * 3

    assert run(story).calls == ["{}"]


@pytest.mark.parametrize("by_serve", [{}, {"X-Request-Id": str(uuid4())}], ids=["unnamed", "named by Serve"])
def test_a_request_without_a_name_is_one_of_its_own_and_ends_with_its_client(by_serve: dict[str, str]) -> None:
    async def story(counted: Counted, app: Any) -> None:
        await (await Client(app, **by_serve).has(1)).leave()
        assert counted.ended == ["ended"]
        counted.let(4)
        await Client(app, **by_serve).whole()

    assert len(run(story).calls) == 2


def test_a_key_with_another_body_is_refused_and_a_tracing_id_is_not() -> None:
    async def story(counted: Counted, app: Any) -> None:
        counted.let(20)
        await Client(app, **NAMED).whole()
        other = await Client(app, body=b'{"a":1}', **NAMED).whole()
        assert other.status == 422 and json.loads(other.body)["error"]["param"] == "Idempotency-Key"
        for body in (b"1", b"2"):
            traced = await Client(app, body=body, **TRACED).whole()
            assert (traced.status, traced.body) == (200, WHOLE)

    assert run(story).calls == ["{}", "1", "2"]


def test_a_name_that_is_too_long_names_the_header() -> None:
    async def story(_: Counted, app: Any) -> None:
        refused = await Client(app, Idempotency_Key="k" * 256).whole()
        assert refused.status == 400 and "256 characters; at most 255" in json.loads(refused.body)["error"]["message"]

    run(story)


def test_each_caller_has_names_of_its_own() -> None:
    async def story(counted: Counted, app: Any) -> None:
        counted.let(20)
        for key in ("sk-one", "sk-two", "sk-one"):
            assert (await Client(app, Authorization=f"Bearer {key}", **NAMED).whole()).body == WHOLE
        assert (await Client(app, Authorization="Bearer sk-three", **NAMED).whole()).status == 401

    assert len(run(story, keys=principals(["one=sk-one", "two=sk-two"])).calls) == 2


def test_what_failed_is_tried_anew() -> None:
    async def story(_: Counted, app: Any) -> None:
        assert (await Client(app, "/once", **NAMED).whole()).status == 503
        assert [(await Client(app, "/once", **NAMED).whole()).body for _ in range(2)] == [b'{"call":2}'] * 2

    run(story)


def test_a_stream_that_failed_midway_is_tried_anew() -> None:
    class Failing(Counted):
        async def events(self) -> AsyncGenerator[bytes, None]:
            yield b"data: 0\n\n"
            if len(self.calls) == 1:
                raise OpenAIError(500, "The device is gone.")

    async def story() -> None:
        failing = Failing()
        app = failing.app()
        assert (await Client(app, **NAMED).whole()).body == b"data: 0\n\nfailed: The device is gone."
        assert (await Client(app, **NAMED).whole()).body == b"data: 0\n\n"

    asyncio.run(story())


def test_nobody_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its work ends, and its name is free."""
    monkeypatch.setitem(retries.LEFT_S, retries.KEY, 0.05)

    async def story(counted: Counted, app: Any) -> None:
        await (await Client(app, **NAMED).has(1)).leave()
        while not counted.ended:
            await asyncio.sleep(0.01)
        counted.let(4)
        assert (await Client(app, **NAMED).whole()).body == WHOLE

    assert len(run(story).calls) == 2


def test_complete_answers_are_forgotten_in_time_and_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "MOST_KEPT", 3 * retries.EACH)

    async def story(counted: Counted, app: Any) -> None:
        counted.let(40)
        for name in ("a", "b", "c", "c", "a"):  # two have room
            await Client(app, Idempotency_Key=name).whole()
        monkeypatch.setattr(retries, "KEPT_S", 0.05)
        await Client(app, Idempotency_Key="d").whole()
        await asyncio.sleep(0.2)
        await Client(app, Idempotency_Key="d").whole()

    assert len(run(story).calls) == 6


def test_an_answer_that_grows_too_large_waits_for_its_reader_and_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "MOST_OF_ONE", retries.EACH + 30)
    piece = b"data: %d" + b"x" * 100 + b"\n\n"

    async def story(counted: Counted, app: Any) -> None:
        counted.let(40)
        go = asyncio.Event()

        class Slow(Client):
            async def _send(self, message: Any) -> None:
                if self.body:
                    await go.wait()
                await super()._send(message)

        slow = Slow(app, **NAMED)
        await slow.has(1)
        for _ in range(100):
            await asyncio.sleep(0)
        assert counted.ended == [], "it is made as fast as it is read"
        other = await Client(app, **NAMED).whole()
        go.set()
        whole = b"".join(piece.replace(b"%d", b"%d" % number) for number in range(4))
        assert (await slow.whole()).body == other.body == whole

    assert len(run(story, piece=piece).calls) == 2


# -- A model, and clients as they are ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[LocalServer]:
    with local_server() as server:
        yield server


@contextmanager
def cut_once(url: str, after: int) -> Iterator[str]:
    """A way to the server whose first connection breaks after so many bytes of the answer."""
    target = httpx.URL(url)
    assert target.port is not None
    listener = socket.create_server(("127.0.0.1", 0))
    left = [after]

    def relay(client: socket.socket) -> None:
        with client, socket.create_connection((target.host, target.port)) as upstream:
            threading.Thread(target=pump, args=(client, upstream, None), daemon=True).start()
            pump(upstream, client, left.pop() if left else None)

    def pump(source: socket.socket, sink: socket.socket, most: int | None) -> None:
        with suppress(OSError):
            while (most is None or most > 0) and (data := source.recv(65536 if most is None else most)):
                sink.sendall(data)
                most = None if most is None else most - len(data)
            sink.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                threading.Thread(target=relay, args=[listener.accept()[0]], daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@pytest.mark.slow
def test_openais_client_tries_again_and_pays_once(server: LocalServer) -> None:
    before = server.engine.stats().generated_tokens
    asked = {"model": MODEL, "prompt": "The weather in Zurich", "max_tokens": 40, "extra_body": {"ignore_eos": True}}
    with cut_once(server.url, after=1) as url:
        client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=3)
        said = client.completions.with_raw_response.create(**asked, extra_headers={"Idempotency-Key": "c1"})
    assert said.retries_taken == 1 and said.headers["idempotent-replayed"] == "true"
    assert said.parse().usage.completion_tokens == 40
    assert server.engine.stats().generated_tokens - before == 40


@pytest.mark.parametrize("after", [1, 300, 900])
def test_a_stream_that_was_cut_goes_on_for_who_asks_again(server: LocalServer, after: int) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 30, "ignore_eos": True, "stream": True, "temperature": 1}
    headers = TRACED | {"X-Request-Id": f"cut after {after}"}
    before = server.engine.stats().generated_tokens
    read = b""
    with cut_once(server.url, after) as url:
        with (
            suppress(httpx.TransportError),
            httpx.stream("POST", f"{url}/v1/completions", json=body, headers=headers) as answer,
        ):
            for piece in answer.iter_raw():
                read += piece
        again = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60).content
    assert again.startswith(read) and again.endswith(b"data: [DONE]\n\n")
    assert len(read) < len(again)
    assert server.engine.stats().generated_tokens - before == 30


def test_over_http_an_answer_is_given_again() -> None:
    counted = Counted()
    with served(counted.app()) as url:
        said = [httpx.post(f"{url}/once", content=b"{}", headers=NAMED).status_code for _ in range(3)]
    assert said == [503, 200, 200] and len(counted.calls) == 2
