"""A cell with keys in PODSLICE_API_KEYS, as documented and rendered: nothing goes around its front.

The routes come from Serve itself, and from the OpenAPI schemas of the cell and of a language model.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from anthropic.types.shared import PermissionErrorObject as Denied

from tests.ports import free_port, serve_ports
from tools.http_page import schemas

# A Ray cluster of its own, and a model: a busy machine takes minutes to start them.
pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
MODEL = "/sax/guarded/demo"
SMALL = {"max_batch_size": 4, "max_step_tokens": 8, "max_model_len": 64}
ALICE, BOB = {"Authorization": "Bearer a-key"}, {"x-api-key": "b-key"}
PROBES = {"/", "/health", "/healthz", "/healthcheck", "/metrics"}
UNLISTED = {"/docs", "/redoc", "/openapi.json", *PROBES}
"""Paths that FastAPI leaves out of its own schema, or that a dialect hides."""


@contextmanager
def running(folder: Path, direct: bool, keys: str) -> Iterator[httpx.Client]:
    """A client without a key of a cell on loopback, with the demo model published."""
    port = free_port()
    program = [sys.executable, str(Path(__file__).with_name("guarded_cell.py")), str(port), str(folder)]
    environment = os.environ | serve_ports() | {"PODSLICE_API_KEYS": keys}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    with subprocess.Popen(
        [*program, str(int(direct))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, text=True
    ) as process:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            published = {"model": MODEL, "model_path": "catalog.local", "replicas": 1, "overrides": SMALL}
            assert client.post("/publish", json=published, headers=ALICE).status_code == 200
            deadline = time.monotonic() + 180
            while client.get("/listcell", params={"model": MODEL}, headers=ALICE).json()["state"] != "LOADED":
                assert time.monotonic() < deadline
                time.sleep(0.5)
            yield client
        process.communicate()


@pytest.fixture(scope="module", params=[True, False], ids=["haproxy", "python"])
def cell(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Only alice may use its model."""
    folder = tmp_path_factory.mktemp("guarded")
    with running(folder, request.param, "alice=a-key,bob=b-key") as client:
        acl = {"model": MODEL, "acl": "alice"}
        for method in ("lm.generate", "lm.generate_stream", "lm.score", "lm.embed"):
            assert client.put("/acl", json=acl | {"method": method}, headers=ALICE).status_code == 200
        yield client


def routes(schema: Any) -> list[tuple[str, str]]:
    """(method, path) of everything that an application has; path parameters are filled in."""
    listed = [(verb.upper(), path) for path, verbs in schema["paths"].items() for verb in verbs]
    return [(verb, path.replace("{", "").replace("}", "")) for verb, path in listed] + [("GET", p) for p in UNLISTED]


def test_a_model_has_no_route_past_the_front(cell: httpx.Client) -> None:
    assert cell.get("/-/routes").json() == {"/": "cell"}
    inner = routes(schemas()["Language models"])
    assert len(inner) > 30
    for verb, path in inner:
        body = {"model": MODEL, "prompt": "x"}
        assert cell.request(verb, MODEL + path, json=body).status_code == 401, (verb, path)
        for headers in (ALICE, BOB, BOB | {"x-podslice-caller": "alice"}):
            reply = cell.request(verb, MODEL + path, headers=headers, json=body)
            assert reply.status_code in (404, 405), (verb, path, headers, reply.status_code, reply.text)


def test_the_front_requires_a_key_and_enforces_acls(cell: httpx.Client) -> None:
    outer = routes(cell.get("/openapi.json", headers=ALICE).json())
    for verb, path in outer:
        if path not in PROBES:
            assert cell.request(verb, path).status_code == 401, (verb, path)
    assert cell.get("/health").json() == {"status": "ok", "models": {}}, "a probe is not told what is published"
    assert cell.get("/health", headers=BOB).json()["models"] == {MODEL: "LOADED"}
    body = {"model": "demo", "prompt": "x", "query": "x", "prefix": "x", "suffix": "x", "input": "x", "max_tokens": 2}
    body |= {"messages": [{"role": "user", "content": "x"}]}
    asked = 0
    for verb, path in outer:
        if verb == "POST" and (path in ("/generate", "/score") or (path.startswith("/v1/") and "id" not in path)):
            for stream in (False, True):
                reply = cell.post(path, json=body | {"stream": stream}, headers=BOB)
                assert reply.status_code == 403, (path, reply.status_code, reply.text)
                if path.startswith("/v1/messages"):
                    Denied.model_validate(reply.json()["error"], strict=True)  # the client's own type
                elif path.startswith("/v1/"):
                    assert reply.json()["error"]["type"] == "permission_error"
                asked += 1
    assert asked >= 12
    one = {"model": "demo", "prompt": "x", "max_tokens": 2}
    assert cell.post("/v1/completions", json=one, headers=ALICE).status_code == 200
    assert cell.post("/publish", json={"model": MODEL}, headers=BOB).status_code in (400, 403)


def test_a_stream_flag_that_is_read_in_two_ways_is_refused(cell: httpx.Client) -> None:
    """An ACL has a method for streams and one for whole answers: both ends must see the same one."""
    for path in ("/generate", "/v1/completions"):
        for stream in ("false", "no", 0.0, 1, [], "true"):
            reply = cell.post(path, json={"model": "demo", "prompt": "x", "stream": stream}, headers=ALICE)
            assert reply.status_code == 400 and "stream" in reply.text, (path, stream, reply.text)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "/sax/guarded/" + "m" * 300}, "300 characters"),
        ({"replicas": "9" * 5000}, "replicas"),
        ({"model_path": "\ud800"}, "model_path"),
        ({"model_path": "/models/\0"}, "model_path"),
        ({"checkpoint": "x" * 300}, "checkpoint"),
        ({"overrides": {"max_batch_size": [[0] * 3] * 3}}, "max_batch_size"),
        ({"overrides": {"x": json.loads("[" * 30 + "]" * 30)}}, "nests deeper"),
        ({"overrides": {"x": json.loads("[" * 300 + "]" * 300)}}, "nested too deeply"),
        ({"overrides": {"max_model_len": 10**4000}}, "max_model_len"),
        ({"overrides": {"num_cpus": 1e999}}, "num_cpus"),
    ],
)
def test_what_can_never_work_is_the_clients_mistake(cell: httpx.Client, change: dict[str, Any], said: str) -> None:
    """Not 200 and then FAILED, and not 503 as if it could work later."""
    body = {"model": "/sax/guarded/never", "model_path": "catalog.local", "replicas": 0} | change
    for verb, path in (("POST", "/publish"), ("PUT", "/update")):
        reply = cell.request(verb, path, content=json.dumps(body), headers=ALICE)
        if verb == "PUT" and reply.status_code == 404:
            continue  # nothing of that name is published
        assert reply.status_code == 400 and said in reply.json()["Error"], (verb, reply.status_code, reply.text)
    assert cell.get("/listall", headers=ALICE).json() == [MODEL]


def test_with_keys_a_page_of_another_site_may_ask(cell: httpx.Client) -> None:
    """A browser sends it no key of its own accord."""
    body = {"model": "demo", "prompt": "x", "max_tokens": 2}
    assert cell.post("/v1/completions", json=body, headers=ALICE | {"Origin": "http://a.example"}).status_code == 200


def test_without_keys_a_page_of_another_site_may_not(tmp_path: Path) -> None:
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2}
    with running(tmp_path, True, "") as client:
        asked, content = "/v1/completions", json.dumps(body)
        as_curl = {"Content-Type": "application/x-www-form-urlencoded"}
        assert client.post(asked, content=content, headers=as_curl).status_code == 200
        for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Origin": "null"}):
            assert client.post(asked, json=body, headers=headers).status_code == 403
        assert client.post(asked, content=content, headers={"Content-Type": "text/plain"}).status_code == 415
        evil = {"Origin": "http://evil.example"}
        assert "no API keys" in client.post("/unpublish", json={"model": MODEL}, headers=evil).json()["Error"]
        assert client.get("/listall").json() == [MODEL]
