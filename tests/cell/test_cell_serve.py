"""A cell on Ray Serve: real replicas of the demo model, published and unpublished over HTTP."""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
import ray
from ray import serve

from apps.cell import build
from ray_configs.cell import CellConfig

SMALL = {"max_batch_size": 4, "max_step_tokens": 8, "max_model_len": 64}
DEMO = {"model": "/sax/small/demo", "model_path": "catalog.local", "replicas": 1, "overrides": SMALL}
QUESTION = "How many days are in a week?"
KEYS = {"alice": "a-key", "bob": "b-key"}


class Client:
    """HTTP to one cell."""

    def __init__(self, url: str, key: str | None = None):
        self.url = url
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.http = httpx.Client(base_url=url, timeout=60, headers=headers)

    def __call__(self, verb: str, path: str, status: int = 200, **body: Any) -> Any:
        reply = self.http.request(verb, path, json=body)
        assert reply.status_code == status, (reply.status_code, reply.text)
        return reply.json()

    def until(self, model: str, condition: Callable[[dict[str, Any]], Any], timeout_s: float = 280) -> dict[str, Any]:
        """The model's entry as soon as the condition holds."""
        deadline = time.monotonic() + timeout_s
        while True:
            entry = self("GET", "/listcell", model=model)
            if condition(entry):
                return entry
            assert time.monotonic() < deadline, entry
            time.sleep(0.2)


@pytest.fixture(scope="module")
def cell(serve_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A cell with the demo model published, one replica."""
    folder = tmp_path_factory.mktemp("cell")
    serve.run(build(CellConfig(name="small", state_uri=str(folder))), name="small", route_prefix="/small")
    client = Client(f"{serve_url}/small")
    client("POST", "/publish", **DEMO)
    client.until(DEMO["model"], lambda entry: entry["state"] == "LOADED")
    yield client
    client("POST", "/unpublish", model=DEMO["model"])
    _until(lambda: "sax.small.demo" not in serve.status().applications)
    serve.delete("small")


def _until(condition: Callable[[], Any], timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.slow
def test_the_lists(cell: Client) -> None:
    entry = cell("GET", "/listcell", model=DEMO["model"])
    assert {key: entry[key] for key in ("model", "model_path", "max_replicas", "active_replicas")} == {
        "model": "/sax/small/demo",
        "model_path": "catalog.local",
        "max_replicas": 1,
        "active_replicas": 1,
    }
    assert cell.http.get("/listcell", params={"model": DEMO["model"]}).json() == entry
    assert cell("GET", "/listall", sax_cell="/sax/small") == [DEMO["model"]]
    assert cell.http.get("/listall").json() == [DEMO["model"]]
    assert cell("GET", "/cell")["models"] == [entry]
    assert cell.http.get("/").text == '{\n    "message": "HTTP Server for SAX Client"\n}\n'
    for path, body, status in (
        ("/listcell", {}, 400),
        ("/listcell", {"model": "/sax/small/other"}, 404),
        ("/listall", {"sax_cell": "/sax/other"}, 400),
    ):
        reply = cell("GET", path, status, **body)
        assert reply["Error"] == reply["detail"]


def test_openais_client_by_either_name(cell: Client) -> None:
    client = openai.OpenAI(base_url=f"{cell.url}/v1", api_key="none", max_retries=0)
    for name in ("demo", "/sax/small/demo"):
        answer = client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=16
        )
        assert answer.choices[0].message.content == "There are seven days in a week."
        assert answer.model == "/sax/small/demo"
    pieces = client.chat.completions.create(
        model="demo", messages=[{"role": "user", "content": QUESTION}], temperature=0, max_tokens=16, stream=True
    )
    text = "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
    assert text == "There are seven days in a week."
    (card,) = client.models.list().data
    assert (card.id, card.state, card.active_replicas) == ("/sax/small/demo", "LOADED", 1)
    assert client.models.retrieve("/sax/small/demo").id == client.models.retrieve("demo").id == card.id
    with pytest.raises(openai.NotFoundError, match="'other' is not published"):
        client.completions.create(model="other", prompt="x")
    with pytest.raises(openai.BadRequestError) as refusal:  # the model's own refusals come through as they are
        client.completions.create(model="demo", prompt="x", temperature=-1)
    assert refusal.value.param == "temperature"


def test_responses_are_answered_and_not_kept(cell: Client) -> None:
    client = openai.OpenAI(base_url=f"{cell.url}/v1", api_key="none", max_retries=0)
    asked: Any = {"model": "demo", "input": QUESTION, "temperature": 0, "max_output_tokens": 16}
    answer = client.responses.create(**asked)
    assert answer.output_text == "There are seven days in a week." and answer.model == "/sax/small/demo"
    events = list(client.responses.create(**asked, stream=True))
    assert events[-1].type == "response.completed" and events[-1].response.output_text == answer.output_text
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError, match="A cell keeps no responses"):
            call(answer.id)
    for field, value in (("store", True), ("previous_response_id", answer.id)):
        with pytest.raises(openai.BadRequestError, match="stores no responses") as refusal:
            client.responses.create(**asked, **{field: value})
        assert refusal.value.param == field


def test_anthropics_client_by_either_name(cell: Client) -> None:
    client = anthropic.Anthropic(base_url=cell.url, api_key="none", max_retries=0)
    asked: Any = {"messages": [{"role": "user", "content": QUESTION}]}
    greedy: Any = asked | {"max_tokens": 16, "extra_body": {"temperature": 0}}
    for name in ("demo", "/sax/small/demo"):
        answer = client.messages.create(model=name, **greedy)
        assert answer.content[0].text == "There are seven days in a week." and answer.model == "/sax/small/demo"
        assert client.messages.count_tokens(model=name, **asked).input_tokens > 5
    with client.messages.stream(model="demo", **greedy) as stream:
        assert stream.get_final_text() == "There are seven days in a week."
    with pytest.raises(anthropic.NotFoundError, match="'other' is not published"):
        client.messages.create(model="other", **greedy)


def test_saxmls_generate_and_jetstreams(cell: Client) -> None:
    assert "generate_response" in cell("POST", "/generate", model=DEMO["model"], query=QUESTION)
    (answer,) = cell("POST", "/generate", model="demo", query=QUESTION, extra_inputs={"temperature": 0.0})[:1]
    assert "seven" in answer[0] and answer[1] < 0
    assert "response" in cell("POST", "/generate", prompt=QUESTION, max_tokens=8)
    assert cell("POST", "/score", model="demo", prefix=QUESTION, suffix="x")["model"] == DEMO["model"]
    assert cell("POST", "/generate", 404, model="/sax/small/other", query="x")["Error"]
    assert cell.http.post("/generate", content=b"{").status_code == 400


def test_a_client_that_leaves_frees_the_model(cell: Client) -> None:
    engines = serve.get_app_handle("sax.small.demo")
    body = {"model": "demo", "prompt": "x", "max_tokens": 60, "min_tokens": 60, "stream": True}
    _until(lambda: engines.record_autoscaling_stats.remote().result()["open"] == 0)  # a handle's first call takes long
    # Four run at a time: it takes far longer than the question how many are open.
    with cell.http.stream("POST", "/v1/completions", json=body | {"n": 64}) as reply:
        pieces = reply.iter_bytes()  # held: its end would close the connection
        next(pieces)
        assert engines.record_autoscaling_stats.remote().result()["open"] > 1
    _until(lambda: engines.record_autoscaling_stats.remote().result()["open"] == 0)


@pytest.mark.slow
def test_more_replicas_without_touching_the_first(cell: Client) -> None:
    before = cell("GET", "/listcell", model=DEMO["model"])["replicas"][0]["id"]
    cell("PUT", "/update", model=DEMO["model"], replicas=2)
    entry = cell.until(DEMO["model"], lambda entry: entry["active_replicas"] == 2)
    assert before in [replica["id"] for replica in entry["replicas"]]
    cell("PUT", "/update", model=DEMO["model"], replicas=1)
    cell.until(DEMO["model"], lambda entry: len(entry["replicas"]) == 1)


@pytest.mark.slow
def test_an_answer_outlives_its_replica(cell: Client) -> None:
    """The oracle is the same answer, undisturbed."""
    longer = {"model": "/sax/small/longer", "overrides": SMALL | {"max_model_len": 1000}, "replicas": 2}
    cell("POST", "/publish", **DEMO | longer)
    cell.until(longer["model"], lambda entry: entry["active_replicas"] == 2)
    body = {"model": "longer", "prompt": "x", "max_tokens": 900, "temperature": 0, "ignore_eos": True, "stream": True}

    def ask(begun: threading.Event) -> str:
        text = ""
        with cell.http.stream("POST", "/v1/completions", json=body) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    event = json.loads(line.removeprefix("data: "))
                    assert "error" not in event, event
                    text += "".join(choice["text"] for choice in event["choices"])
                    begun.set()
        return text

    undisturbed, engines = ask(threading.Event()), serve.get_app_handle("sax.small.longer")
    with ThreadPoolExecutor(2) as pool:
        begun = [threading.Event(), threading.Event()]
        answers = [pool.submit(ask, event) for event in begun]
        assert all(event.wait(60) for event in begun)
        told = engines.broadcast("record_autoscaling_stats").results()
        assert [each["open"] for each in told] == [1, 1], "one each"
        killed = _pid_of("sax.small.longer#LLMEngine")
        assert killed is not None
        os.kill(killed, signal.SIGKILL)
        assert [answer.result() for answer in answers] == [undisturbed] * 2
    cell("POST", "/unpublish", model=longer["model"])


@pytest.mark.slow
def test_an_update_answers_all_the_time(cell: Client) -> None:
    """New weights under clients' hands: the old replica serves until the new one can."""
    before = cell("GET", "/listcell", model=DEMO["model"])["replicas"][0]["id"]
    answers: list[int] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            reply = cell.http.post("/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 2})
            answers.append(reply.status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        cell("PUT", "/update", model=DEMO["model"], overrides=SMALL | {"max_model_len": 48})
        cell.until(
            DEMO["model"],
            lambda entry: entry["state"] == "LOADED" and [each["id"] for each in entry["replicas"]] != [before],
        )
        _until(lambda: len(cell("GET", "/listcell", model=DEMO["model"])["replicas"]) == 1)
    finally:
        stop.set()
        asking.join()
    assert set(answers) == {200}, answers


@pytest.mark.slow
def test_a_model_that_cannot_load_says_why(cell: Client, tmp_path: Path) -> None:
    name = "/sax/small/broken"
    cell("POST", "/publish", model=name, model_path="huggingface:nobody/nothing", replicas=1)
    try:
        entry = cell.until(name, lambda entry: entry["state"] == "FAILED")
        assert "nobody/nothing" in entry["reason"], entry
        reply = cell.http.post("/v1/completions", json={"model": "broken", "prompt": "x"})
        assert reply.status_code == 503 and reply.headers["retry-after"], reply.text
    finally:
        cell("POST", "/unpublish", model=name)


def test_watching_a_model(cell: Client) -> None:
    events = []
    with cell.http.stream("GET", "/watch", params={"model": "demo"}) as reply:
        for line in reply.iter_lines():
            if line.startswith("data: "):
                events.append(json.loads(line.removeprefix("data: ")))
                if len(events) == 1:
                    cell("PUT", "/acl", model=DEMO["model"], method="lm.score", acl="*")
                    cell("PUT", "/acl", model=DEMO["model"], method="lm.embed", acl="somebody")
                if events[-1]["acls"].get("lm.embed"):
                    break
    assert events[0]["state"] == "LOADED"
    cell("PUT", "/acl", model=DEMO["model"], method="lm.embed", acl="")


@pytest.mark.slow
def test_keys_have_names_and_acls_are_enforced(serve_url: str, tmp_path: Path) -> None:
    """A cell with keys: who may publish, who may call what, and no way around the front."""
    config = CellConfig(
        name="guarded",
        state_uri=str(tmp_path),
        api_keys=tuple(f"{name}={key}" for name, key in KEYS.items()),
        admins=("alice",),
    )
    serve.run(build(config), name="guarded", route_prefix="/guarded")
    try:
        url, model = f"{serve_url}/guarded", "/sax/guarded/demo"
        alice, bob, nobody = (Client(url, KEYS.get(name)) for name in ("alice", "bob", "nobody"))
        publish = DEMO | {"model": model}
        assert nobody("GET", "/", 200)["message"]
        assert "No API key" in nobody("POST", "/publish", 401, **publish)["Error"]
        assert "bob may not do this" in bob("POST", "/publish", 403, **publish)["Error"]
        alice("POST", "/publish", **publish)
        assert bob("GET", "/cell")["principal"] == "bob"
        bob.until(model, lambda entry: entry["state"] == "LOADED")
        alice("PUT", "/acl", model=model, method="lm.generate", acl="alice")
        ask = {"model": "demo", "prompt": "x", "max_tokens": 2}
        alice("POST", "/v1/completions", **ask)
        assert "bob may not call lm.generate" in bob("POST", "/v1/completions", 403, **ask)["error"]["message"]
        assert bob.http.post("/v1/completions", json=ask | {"stream": True}).status_code == 200, "another method"
        assert bob.http.post(f"{model}/v1/completions", json=ask).status_code == 404, "there is no way around the front"
        assert "a-key" not in json.dumps(serve.status(), default=str)
    finally:
        serve.delete("guarded")
        if "sax.guarded.demo" in serve.status().applications:
            serve.delete("sax.guarded.demo")


@pytest.mark.parametrize("victim", ["CellAdmin", "SERVE_CONTROLLER_ACTOR"])
@pytest.mark.slow
def test_a_kill_loses_nothing_and_the_model_goes_on(cell: Client, victim: str) -> None:
    """SIGKILL to the admin, or to Serve's controller, in the middle of publishing."""
    acknowledged: set[str] = set()
    pid = _pid_of(victim)
    for number in range(6):
        if number == 3:
            os.kill(pid, signal.SIGKILL)
        name = f"/sax/small/{victim.lower().split('_')[0]}-{number}"
        reply = cell.http.post("/publish", json={"model": name, "model_path": "catalog.local", "replicas": 0})
        assert reply.status_code in (200, 503), reply.text
        if reply.status_code == 200:
            acknowledged.add(name)
        answer = cell.http.post("/v1/completions", json={"model": "demo", "prompt": "x", "max_tokens": 2})
        assert answer.status_code == 200, answer.text
    assert len(acknowledged) >= 3

    def all_there() -> bool:
        listed = cell.http.get("/listall")
        return listed.status_code == 200 and acknowledged <= set(listed.json())

    _until(all_there)
    _until(lambda: _pid_of(victim) not in (None, pid))
    cell.until(DEMO["model"], lambda entry: entry["state"] == "LOADED")
    for name in acknowledged:
        cell("POST", "/unpublish", model=name)


def _pid_of(name: str) -> int | None:
    """From Ray's table of actors: its public API needs the dashboard, which the tests' cluster does not have."""
    actors = ray._private.state.actors().values()
    return next((each["Pid"] for each in actors if name in each["Name"] and each["State"] == "ALIVE"), None)
