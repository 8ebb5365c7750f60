"""What the playground takes and lets a browser fetch; with Gradio, on the page as it is served."""

import asyncio
import os
import stat
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse

from apps.playground.guard import MAX_MIB, Guard
from tests.http_servers import StandInServer
from tests.playground.page import LanguageModel, running
from tests.ports import free_port


async def counts(scope: dict[str, Any], receive: Any, send: Any) -> None:
    body = await Request(scope, receive).body()
    await PlainTextResponse(str(len(body)))(scope, receive, send)


def sent(body: Any, **headers: str) -> httpx.Response:
    async def call() -> httpx.Response:
        transport = httpx.ASGITransport(Guard(counts, 1000))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            return await client.post("/", content=body, headers=headers)

    return asyncio.run(call())


async def pieces(count: int) -> Any:
    for _ in range(count):
        yield bytes(100)


def test_bodies_are_bounded_however_they_are_sent() -> None:
    assert sent(bytes(1000)).text == "1000" and sent(pieces(10)).text == "1000"
    for body in (bytes(1001), pieces(11), pieces(100_000)):
        assert sent(body).status_code == 413
    assert sent(b"x", **{"content-length": "9" * 5000}).status_code == 413
    assert sent(b"x", **{"content-length": "-1"}).status_code == 413


def test_every_answer_has_the_policy() -> None:
    for reply in (sent(b"x"), sent(bytes(1001))):
        assert "default-src 'self'" in reply.headers["content-security-policy"]


@contextmanager
def opened() -> Iterator[str]:
    """The address of a page without a service: it has what every page has."""
    pytest.importorskip("gradio", reason="make test-playground installs it")
    from apps.playground.app import playground, run

    blocks, port = playground("http://127.0.0.1:1", []), free_port()
    threading.Thread(target=run, args=(blocks, "127.0.0.1", port), daemon=True).start()
    address = f"http://127.0.0.1:{port}"
    deadline = time.monotonic() + 120
    while True:
        try:
            assert httpx.get(address).is_success
            break
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    yield address
    blocks.close()


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    with opened() as address:
        yield address


def upload(page: str, content: bytes) -> httpx.Response:
    return httpx.post(f"{page}/gradio_api/upload", files={"files": ("a.png", content)})


@pytest.mark.slow
def test_gradio_takes_no_larger_file(page: str) -> None:
    for size, status in ((1000, 200), (MAX_MIB * 2**20 + 1, 413)):
        reply = upload(page, bytes(size))
        assert reply.status_code == status, reply.text


@pytest.mark.slow
def test_gradio_is_for_this_machines_pages(page: str) -> None:
    assert "default-src 'self'" in httpx.get(page).headers["content-security-policy"]
    assert httpx.get(page, headers={"Origin": page}).status_code == 200
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        for path in ("/", "/config", "/gradio_api/queue/join", "/gradio_api/upload"):
            assert httpx.post(f"{page}{path}", json={}, headers=headers).status_code == 403


@pytest.mark.slow
def test_uploads_are_deleted_after_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With files that say they are older than they are: nothing can set the time of a file's last change."""
    pytest.importorskip("gradio", reason="make test-playground installs it")
    from apps.playground import app

    ages_s: dict[Path, float] = {}
    true_stat = Path.lstat

    def lstat(path: Path) -> Any:
        found = true_stat(path)
        return SimpleNamespace(st_ctime=found.st_ctime - ages_s[path]) if path in ages_s else found

    monkeypatch.setattr(Path, "lstat", lstat)
    monkeypatch.setattr(app, "KEPT_S", (0.1, app.KEPT_S[1]))
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    with opened() as page:
        young = Path(upload(page, b"young").json()[0])
        ages_s[young] = 3000
        for name in (b"first", b"second"):  # between the two, all files are looked at
            old = Path(upload(page, name).json()[0])
            assert old.read_bytes() == name and tmp_path in old.parents
            ages_s[old] = 3601
            while old.exists():
                time.sleep(0.1)
        assert young.read_bytes() == b"young"


@pytest.mark.slow
def test_uploads_are_their_users_alone_and_go_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, as the system's permissions say: the machine's other users have such folders too."""
    pytest.importorskip("gradio", reason="make test-playground installs it")
    monkeypatch.delenv("GRADIO_TEMP_DIR", raising=False)
    with StandInServer(LanguageModel) as server, running(server.url) as page:
        uploaded = Path(upload(page, b"mine").json()[0])
        assert uploaded.read_bytes() == b"mine"
        below_tmp = Path(tempfile.gettempdir(), uploaded.relative_to(tempfile.gettempdir()).parts[0])
        assert (below_tmp.stat().st_uid, stat.S_IMODE(below_tmp.stat().st_mode)) == (os.geteuid(), 0o700)
    assert not below_tmp.exists()
