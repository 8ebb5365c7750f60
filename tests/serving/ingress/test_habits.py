"""What clients of HTTP are used to: HEAD, gzip, a byte order mark, CORS, 40.0 for 40.

The oracles: the answer to the plain request beside it; Python's gzip; starlette's CORS in the Fetch standard's words.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Annotated, Any

import httpx
import pytest
from fastapi import FastAPI, Request
from pydantic import Field
from starlette.testclient import TestClient

from apps.serving.ingress.api_keys import OPEN, principals
from apps.serving.ingress.application import answer_errors
from apps.serving.ingress.bodies import MAX_BYTES, Body, check_encoding
from apps.serving.ingress.dialects.openai_errors import parsed
from apps.serving.ingress.front import ProxyFront, Route
from apps.serving.ingress.same_machine import SameMachine, with_cors
from ray_configs.llm import LLMConfig

SITE = "https://chat.example.com"


class Inner(Body):
    limit: int = 0


class Asked(Body):
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    tokens: list[int] = Field(default_factory=list)
    share: float | None = None
    inner: Inner | None = None
    text: str = ""


def application(keys: Any = OPEN) -> FastAPI:
    app = FastAPI()

    @app.get("/models")
    async def models() -> Any:
        return {"data": ["a", "b"]}

    @app.post("/ask")
    async def ask(request: Request) -> Any:
        return (await parsed(Asked, request)).model_dump()

    @app.post("/upload")
    async def upload(request: Request) -> Any:
        return check_encoding(request.headers)

    answer_errors(app, keys)
    return app


@pytest.fixture
def client() -> Iterator[TestClient]:
    with TestClient(application()) as client:
        yield client


def test_head_is_get_without_its_body(client: TestClient) -> None:
    head, get = client.head("/models"), client.get("/models")
    assert (head.status_code, head.content) == (200, b"") and head.headers == get.headers
    assert client.head("/nowhere").status_code == client.get("/nowhere").status_code == 404
    assert client.head("/ask").status_code == client.get("/ask").status_code == 405


BODY = json.dumps({"max_tokens": 3, "text": "é" * 5000}).encode()


def post(client: TestClient, body: bytes, encoding: str | None = None, path: str = "/ask") -> httpx.Response:
    headers = {"content-type": "application/json"} | ({"content-encoding": encoding} if encoding else {})
    return client.post(path, content=body, headers=headers)


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "x-gzip"])
def test_a_gzip_body_is_read(client: TestClient, encoding: str) -> None:
    assert post(client, gzip.compress(BODY), encoding).json() == post(client, BODY, "identity").json()


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip"])
def test_other_encodings_are_415(client: TestClient, encoding: str) -> None:
    reply = post(client, BODY, encoding)
    assert reply.status_code == 415 and "gzip" in reply.json()["error"]["message"]
    assert post(client, gzip.compress(BODY), "gzip", "/upload").status_code == 415, "where it is not read"


def test_what_is_no_gzip_is_400(client: TestClient) -> None:
    whole = gzip.compress(BODY)
    for wrong in (BODY, whole[:-20], whole + b"more", zlib.compress(BODY), whole + whole):
        assert post(client, wrong, "gzip").status_code == 400


def test_a_bomb_is_413_before_it_is_unpacked(client: TestClient) -> None:
    bomb = gzip.compress(b'{"text": "' + b" " * (MAX_BYTES + 1) + b'"}')
    assert len(bomb) < 2**16 and post(client, bomb, "gzip").status_code == 413


def test_a_byte_order_mark_is_skipped(client: TestClient) -> None:
    marked = json.dumps({"text": "a"}).encode("utf-8-sig")
    assert post(client, marked).json() == post(client, gzip.compress(marked), "gzip").json() == asked(text="a")


def asked(**fields: Any) -> dict[str, Any]:
    return {"max_tokens": None, "tokens": [], "share": None, "inner": None, "text": ""} | fields


def test_whole_floats_are_integers_as_in_json_schema(client: TestClient) -> None:
    for value in (40, 40.0, 4e1):
        reply = post(client, json.dumps({"max_tokens": value, "inner": {"limit": value}}).encode())
        assert reply.json() == asked(max_tokens=40, inner={"limit": 40})
        assert isinstance(reply.json()["max_tokens"], int)
    for bad in ({"max_tokens": 40.5}, {"max_tokens": True}, {"max_tokens": "40"}, {"max_tokens": 0.0}):
        reply = post(client, json.dumps(bad).encode())
        assert reply.status_code == 400 and reply.json()["error"]["param"] == "max_tokens", bad
    assert Asked.model_json_schema()["properties"]["max_tokens"]["anyOf"][0] == {"type": "integer", "minimum": 1}


PREFLIGHT = {
    "origin": SITE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
}


def allowed(reply: httpx.Response) -> str | None:
    return reply.headers.get("access-control-allow-origin")


def test_without_origins_no_page_of_another_site_may_ask() -> None:
    app = application()
    assert with_cors(app, ()) is app
    assert allowed(TestClient(app).get("/models", headers={"origin": SITE})) is None


@pytest.mark.parametrize("origins", [(SITE,), ("*",)])
def test_pages_of_these_origins_may_ask(origins: tuple[str, ...]) -> None:
    """The preflight has no key; the answer, and a refusal, tell the browser that the page may read them."""
    client = TestClient(with_cors(application(principals(["key"])), origins))
    preflight = client.options("/ask", headers=PREFLIGHT)
    assert preflight.status_code == 200 and allowed(preflight) in (SITE, "*")
    assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
    answer = client.get("/models", headers={"origin": SITE, "authorization": "Bearer key"})
    assert answer.json() == {"data": ["a", "b"]} and allowed(answer) in (SITE, "*")
    refused = client.get("/models", headers={"origin": SITE})
    assert refused.status_code == 401 and allowed(refused) in (SITE, "*")
    other = client.get("/models", headers={"origin": "https://evil.example", "authorization": "Bearer key"})
    assert allowed(other) == ("*" if origins == ("*",) else None)


@pytest.mark.parametrize(("origin", "status"), [(SITE, 200), ("https://evil.example", 403)])
def test_a_server_of_this_machine_answers_them_too(origin: str, status: int) -> None:
    from starlette.responses import PlainTextResponse

    app = SameMachine(application(), lambda scope, code, why: PlainTextResponse(why, code), origins=(SITE,))
    client = TestClient(with_cors(app, (SITE,)), base_url="http://127.0.0.1:8000")
    assert client.post("/ask", json={}, headers={"origin": origin}).status_code == status


def test_serve_s_own_proxy_lets_preflights_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it answers for an application with keys: once, though the replica behind it answers so too."""
    keys = principals(["key"])
    front = ProxyFront(with_cors(application(keys), (SITE,)))  # type: ignore[arg-type]
    route = Route("/", keys, replicas=1, wanted=1, origins=(SITE,))
    monkeypatch.setattr("apps.serving.ingress.front.deployed_now", lambda: [route])
    client = TestClient(front)  # type: ignore[arg-type]
    assert allowed(client.options("/ask", headers=PREFLIGHT)) == SITE
    answer = client.get("/models", headers={"origin": SITE, "authorization": "Bearer key"})
    assert answer.status_code == 200 and answer.headers.get_list("access-control-allow-origin") == [SITE]


def test_origins_are_written_as_browsers_send_them() -> None:
    assert LLMConfig(cors_origins="https://a.example, http://localhost:3000").cors_origins == (
        "https://a.example",
        "http://localhost:3000",
    )
    for wrong in ("chat.example.com", "https://a.example/", "https://a.example/path", "https://user@a.example"):
        with pytest.raises(ValueError, match="SCHEME://HOST"):
            LLMConfig(cors_origins=(wrong,))
