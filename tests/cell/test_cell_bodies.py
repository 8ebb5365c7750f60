"""Bodies that a cell's front cannot read are refused as the client's mistake, in each dialect's form."""

import pickle
from typing import Any

import pytest
from starlette.testclient import TestClient

from apps.cell.calls import Call, replicas_of
from apps.cell.errors import CellError, Unavailable
from apps.cell.http.app import http_app
from apps.serving.ingress.api_keys import principals


class NobodyThere:
    view = None

    async def look(self) -> None: ...

    async def ask(self, call: Call[Any]) -> Any:
        raise CellError(f"asked to {call}")

    async def app(self, model: str) -> Any:
        raise CellError(f"asked for {model}")


@pytest.fixture
def front() -> TestClient:
    return TestClient(http_app("test", NobodyThere(), {}))


@pytest.mark.parametrize("body", [b"{", b'{"model": ' + b"[" * 100_000, b"[1]"], ids=["cut short", "deep", "a list"])
def test_a_body_that_is_no_json_object(front: TestClient, body: bytes):
    saxml = front.post("/publish", content=body)
    assert saxml.status_code == 400 and saxml.json()["Error"] == saxml.json()["detail"]
    assert "JSON" in saxml.json()["Error"] and saxml.text.endswith("}\n")
    openai = front.post("/v1/completions", content=body)
    assert openai.status_code == 400 and "JSON" in openai.json()["error"]["message"]
    anthropic = front.post("/v1/messages", content=body)
    assert anthropic.status_code == 400 and anthropic.json()["type"] == "error"
    assert "JSON" in anthropic.json()["error"]["message"]


def test_anthropics_refusals(front: TestClient):
    starting = front.post("/v1/messages/count_tokens", json={"model": "m"})
    assert (starting.status_code, starting.json()["error"]["type"]) == (503, "api_error")
    assert "starting" in starting.json()["error"]["message"] and starting.headers["retry-after"]
    locked = TestClient(http_app("test", NobodyThere(), principals(["key"])))
    assert locked.post("/v1/messages", json={}).json()["error"]["type"] == "authentication_error"
    assert locked.post("/v1/messages", json={}, headers={"x-api-key": "key"}).status_code == 503
    assert "Error" in locked.post("/publish", json={}).json()


def test_a_path_that_is_not_there(front: TestClient):
    answer = front.get("/nowhere")
    assert answer.status_code == 404 and answer.json()["detail"] == "There is nothing at /nowhere."


ODD = {
    "5,000 digits": (b'{"model": "m", "replicas": %s}' % (b"9" * 5000), "4300 digits"),
    "half a character": (rb'{"model": "\ud800"}', "model has half of a character"),
    "depth": (b'{"model": "m", "overrides": ' + b'{"a":' * 300 + b"1" + b"}" * 301, "nested too deeply"),
    "many values": (b'{"model": "m", "a": [' + b"[]," * 200_000 + b"[]]}", "lists and objects"),
}


@pytest.mark.parametrize("name", ODD)
def test_values_that_cannot_be_passed_on_are_the_clients_mistake(front: TestClient, name: str):
    body, says = ODD[name]
    for path in ("/publish", "/generate", "/score", "/v1/completions", "/v1/messages"):
        answer = front.post(path, content=body)
        assert answer.status_code in (400, 413) and says in answer.text, (path, answer.text)
        assert len(answer.text) < 3000


@pytest.mark.parametrize("replicas", ["9" * 5000, "²", int("9" * 4000), True, 1e300, [1] * 50_000])
def test_numbers_that_are_none_are_refused(replicas: Any):
    with pytest.raises(CellError, match="replicas must be a whole number") as caught:
        replicas_of(replicas)
    assert len(str(caught.value)) < 1500


def test_an_error_is_bounded_in_length(front: TestClient):
    """Whatever of the request it quotes."""
    long = CellError("a" * 1_000_000)
    assert len(str(long)) < 1500 and "left out" in str(long)


def test_a_refusal_crosses_processes_as_what_it_is():
    refusal = Unavailable("the cell is starting", retry_after_s=2)
    received = pickle.loads(pickle.dumps(refusal))
    assert type(received) is Unavailable and str(received) == str(refusal)
    assert (received.status, received.retry_after_s) == (503, 2)
