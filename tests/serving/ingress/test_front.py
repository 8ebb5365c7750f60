"""The front of a replica and of a proxy, before an application that counts what reaches it, over real sockets. The
right values: the bytes that were sent, the application without a front, and clients that are answered meanwhile."""

import random
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.testclient import TestClient

from apps.cell.http.app import http_app
from apps.serving.ingress import bodies, front
from apps.serving.ingress.api_keys import digest
from apps.serving.ingress.dialects import saxml_answers
from apps.serving.ingress.front import ProxyFront, ReplicaFront, Route
from tests.http_servers import served

KEYS = {digest("secret"): "alice"}
BEARER = {"Authorization": "Bearer secret"}


class Counted:
    """Answers with the body; counts the requests that have reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["path"])
        if scope["type"] == "websocket":
            await send({"type": "websocket.close"})
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        assert scope.get("root_path", "") == "", "Serve's scope, not the application's"
        await send({"type": "http.response.start", "status": 200, "headers": [(b"a", b"b")]})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture
def app() -> Counted:
    return Counted()


@contextmanager
def halves(url: str, count: int, headers: str = "") -> Iterator[list[socket.socket]]:
    """Connections that have sent half a body."""
    address = urlsplit(url)
    with ExitStack() as opened:
        sockets = []
        for _ in range(count):
            half = opened.enter_context(socket.create_connection((address.hostname, address.port), 60))
            half.sendall(f"POST /a HTTP/1.1\r\nHost: x\r\n{headers}Content-Length: 100\r\n\r\nhalf".encode())
            sockets.append(half)
        yield sockets


def test_bodies_pass_the_front_unchanged(app: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_admitted", {})
    monkeypatch.setattr(bodies, "MAX_BYTES", 100_000)
    draw = random.Random(1)
    with served(ReplicaFront(app)) as url, served(app) as plain, httpx.Client() as client:
        for size in (0, 1, 65_536, 99_999, 100_001, 500_000):
            body = draw.randbytes(size)
            pieces = [body[i : i + 30_001] for i in range(0, size, 30_001)]
            assert client.post(url, content=body).content == client.post(plain, content=body).content == body
            assert client.post(url, content=iter(pieces)).content == body, "chunks"
        assert client.get(url).status_code == 200


@pytest.mark.slow
def test_half_sent_requests_reach_nobody_and_keep_nobody_out(app: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_admitted", {})
    monkeypatch.setattr(bodies, "BODIES", bodies.Bodies(grace_s=2))
    with served(ReplicaFront(app)) as url, halves(url, 300) as waiting:
        for place in range(5):
            assert httpx.post(f"{url}/{place}", content=b"x").content == b"x"
        assert app.reached == ["/0", "/1", "/2", "/3", "/4"]
        for half in waiting:
            answer = b"".join(iter(lambda half=half: half.recv(65536), b""))
            assert b" 408 " in answer and b'"code":"request_timeout"' in answer
    assert len(app.reached) == 5


def test_a_request_without_a_key_is_not_waited_for(app: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """The application refuses it at once; with a key, its body is waited for."""
    monkeypatch.setattr(front, "_admitted", KEYS)
    with served(ReplicaFront(app)) as url, halves(url, 1), halves(url, 1, "Authorization: Bearer secret\r\n"):
        deadline = time.monotonic() + 240
        while not app.reached and time.monotonic() < deadline:
            time.sleep(0.01)
        assert httpx.post(url, headers=BEARER).status_code == 200
        assert app.reached == ["/a", "/"]


def test_an_application_of_someone_else_is_left_alone(app: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_admitted", None)
    with served(ReplicaFront(app)) as url, halves(url, 1):
        deadline = time.monotonic() + 240
        while not app.reached and time.monotonic() < deadline:
            time.sleep(0.01)
    assert app.reached == ["/a"]


ASLEEP = Route("/asleep", KEYS, replicas=0, wanted=0)
APPLICATIONS = [
    Route("/starting", KEYS, 0, 1),
    ASLEEP,
    Route("/open", {}, 0, 0),
    Route("/up", KEYS, 1, 1),
    Route("/cell", KEYS, 0, 1, written=saxml_answers.by_path),
]


@pytest.fixture
def proxy(app: Counted, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    monkeypatch.setattr(front, "deployed_now", lambda: APPLICATIONS)
    with served(ProxyFront(app)) as url, httpx.Client(base_url=url) as client:
        yield client


@pytest.mark.parametrize("path", ["/asleep", "/asleep/v1/models", "/asleep/nonsense", "/asleep/a/../b", "/starting/x"])
@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}, {"x-api-key": "wrong"}])
def test_no_key_no_replica(proxy: httpx.Client, app: Counted, path: str, headers: dict[str, str]) -> None:
    for method in ("GET", "POST", "OPTIONS", "HEAD", "PUT"):
        assert proxy.request(method, path, headers=headers).status_code == 401
    assert app.reached == []
    assert proxy.post(path, headers=BEARER, content=b"x").content == b"x" and len(app.reached) == 1


def test_refusals_are_written_as_the_dialect_has_them(proxy: httpx.Client) -> None:
    assert proxy.post("/asleep/v1/completions").json()["error"]["code"] == "invalid_api_key"
    assert proxy.post("/asleep/v1/messages").json()["type"] == "error"


def test_a_cells_refusals_are_the_cells_own(proxy: httpx.Client) -> None:
    """As its application writes them, which Saxml's two generations of clients read; OpenAI's clients below /v1/."""
    app = http_app("cell", object(), KEYS)  # type: ignore[arg-type] # whose front is not asked
    with TestClient(app) as cell:
        for path in ("/publish", "/sax/cell/m/v1/completions", "/v1/chat/completions", "/v1/messages"):
            theirs, ours = cell.post(path), proxy.post(f"/cell{path}")
            assert ours.status_code == theirs.status_code == 401
            assert same(ours.json()) == same(theirs.json())
            assert ours.headers.get("WWW-Authenticate") == theirs.headers.get("WWW-Authenticate")
    assert "No API key" in proxy.post("/cell/publish").json()["Error"]


def same(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "request_id"}


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/metrics"])
def test_a_probe_wakes_nobody(proxy: httpx.Client, app: Counted, path: str) -> None:
    assert (reply := proxy.get(f"/asleep{path}")).status_code == 200 and reply.json() == {"status": "asleep"}
    assert (reply := proxy.get(f"/starting{path}")).status_code == 503 and reply.headers["retry-after"]
    assert app.reached == []
    assert proxy.get(f"/up{path}").status_code == 200 and len(app.reached) == 1


def test_a_websocket_wakes_nobody(proxy: httpx.Client, app: Counted) -> None:
    upgrade = {
        **{"Connection": "Upgrade", "Upgrade": "websocket"},
        **{"Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="},
    }
    assert proxy.get("/asleep/ws", headers=upgrade).status_code == 403 and app.reached == []


def test_open_applications_and_unknown_paths_are_serves(proxy: httpx.Client, app: Counted) -> None:
    for path in ("/open/x", "/nowhere", "/asleeper", "/-/routes", "/-/healthz", "/up/v1/models"):
        assert proxy.get(path, headers=BEARER).status_code == 200
    assert len(app.reached) == 6


def test_half_a_body_at_a_proxy_reaches_nobody(app: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "deployed_now", lambda: [Route("/", KEYS, 0, 0)])
    monkeypatch.setattr(bodies, "BODIES", bodies.Bodies(grace_s=1))
    with (
        served(ProxyFront(app)) as url,
        halves(url, 50) as refused,
        halves(url, 50, "Authorization: Bearer secret\r\n") as slow,
    ):
        assert all(b" 401 " in half.recv(65536) for half in refused)
        assert httpx.post(url, headers=BEARER, content=b"x").content == b"x"
        assert all(b" 408 " in half.recv(65536) for half in slow)
    assert app.reached == ["/"]


def test_without_serves_answer_clients_try_again(app: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody is let in meanwhile, and a look that failed is taken again."""
    answers = iter([RuntimeError("no controller"), [ASLEEP]])

    def look() -> list[Route]:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    monkeypatch.setattr(front, "deployed_now", look)
    with served(ProxyFront(app)) as url:
        reply = httpx.get(f"{url}/asleep/x")
        assert reply.status_code == 503 and reply.headers["retry-after"] and app.reached == []
        assert httpx.get(f"{url}/asleep/x").status_code == 401
