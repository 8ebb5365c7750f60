"""The pages at `/` and `/docs`. Oracles: the application's own OpenAPI schema, and an HTML parser that lists whatever a
browser would fetch."""

from collections.abc import Callable
from html.parser import HTMLParser
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from apps.cell.http.app import http_app as cell
from apps.llm.http.app import http_app as language_model
from apps.serving.ingress.api_keys import principals
from apps.stable_diffusion.http.app import http_app as pictures

NASTY = "<script>alert('x')</script>"
KEYS = principals(["sesame"], "keys")


class Fetched(HTMLParser):
    """What a browser fetches or runs, the links, and the text."""

    def __init__(self, html: str):
        super().__init__()
        self.fetched: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        if tag in ("script", "link", "img", "iframe", "object", "embed", "base", "form") or "src" in given:
            self.fetched.append(tag)
        self.fetched += [name for name in given if name.startswith("on")]
        if tag == "a":
            self.links.append(str(given["href"]))

    def handle_data(self, data: str) -> None:
        self.text += data


def a_language_model(keys: Any = None) -> FastAPI:
    model: Any = SimpleNamespace(name=NASTY, tracing=None, cards=lambda: [])
    return language_model(model, **({"keys": keys} if keys else {}))


def some_pictures(keys: Any = None) -> FastAPI:
    model: Any = SimpleNamespace(name=NASTY, cards=lambda: [])
    return pictures(model, **({"keys": keys} if keys else {}))


def a_cell(keys: Any = None) -> FastAPI:
    front: Any = SimpleNamespace(view=SimpleNamespace(entries={NASTY: {"state": "LOADED"}}))
    return cell("test", front, keys or {})


def browser(app: FastAPI, root_path: str = "") -> TestClient:
    return TestClient(app, root_path=root_path, headers={"accept": "text/html,application/xhtml+xml"})


APPS = pytest.mark.parametrize("made", [a_language_model, some_pictures, a_cell])


@APPS
def test_the_pages_load_nothing_and_run_nothing(made: Callable[..., FastAPI]) -> None:
    client = browser(made())
    for path in ("/", "/docs"):
        answer = client.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/html")
        assert Fetched(answer.text).fetched == []
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    first = Fetched(client.get("/").text)
    assert NASTY in first.text and "http://testserver" in first.text
    paths = {*client.app.openapi()["paths"], "/docs", "/metrics"}
    for link in first.links:
        assert link in paths, link


@APPS
def test_the_reference_has_every_call_and_field_of_the_schema(made: Callable[..., FastAPI]) -> None:
    app = made()
    schema, text = app.openapi(), Fetched(browser(app).get("/docs").text).text
    assert len(schema["paths"]) > 5
    for path, calls in schema["paths"].items():
        for verb in calls:
            assert f"{verb.upper()} {path}" in text
    for kind in schema.get("components", {}).get("schemas", {}).values():
        for field in kind.get("properties", {}) if "Body" in kind.get("title", "") else ():
            assert field in text


def test_below_a_prefix_links_stay_below_it() -> None:
    client = browser(a_language_model(), root_path="/chat")
    assert {link.partition("/chat/")[0] for link in Fetched(client.get("/chat/").text).links} == {""}


def test_other_clients_still_get_what_their_dialect_has_there() -> None:
    """Oracle: JetStream's and Saxml's servers, whose clients look at `/`."""
    assert TestClient(a_language_model()).get("/").json() == {"message": "HTTP Server for JetStream"}
    assert TestClient(a_cell()).get("/").json() == {"message": "HTTP Server for SAX Client"}


def test_with_keys_the_command_says_where_one_goes() -> None:
    page = Fetched(browser(a_language_model(KEYS)).get("/").text).text
    assert "Authorization: Bearer YOUR_KEY" in page and "sesame" not in page
    assert browser(a_language_model(KEYS)).get("/docs").status_code == 401


def test_a_cell_with_keys_names_its_models_to_who_has_one() -> None:
    client = browser(a_cell(KEYS))
    assert NASTY not in Fetched(client.get("/").text).text
    assert NASTY in Fetched(client.get("/", headers={"x-api-key": "sesame"}).text).text
