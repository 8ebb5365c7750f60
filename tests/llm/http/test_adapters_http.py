"""LoRA adapters over HTTP: vLLM's endpoints, and every dialect under an adapter's name."""

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from transformers import AutoModelForCausalLM

from apps.llm.http.app import http_app
from ray_configs.llm import DEMO_MODEL
from tests.http_servers import served
from tests.llm.engine.adapters import making
from tests.llm.serve.serving import MODEL, LocalServer, local_server


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapter")
    base = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    making.save_adapter(base, folder, r=8, lora_alpha=4, target_modules=list(making.ATTENTION + making.MLP))
    return folder


@pytest.fixture(scope="module")
def server(adapter: Path) -> Iterator[LocalServer]:
    local_one = local_server(max_adapters=2, model_roots=(str(adapter), DEMO_MODEL))
    with local_one as local, served(http_app(local.model, adapter_loading=True)) as url:
        yield LocalServer(url, local.engine, local.model)


@pytest.fixture
def sql(server: LocalServer, adapter: Path) -> Iterator[None]:
    assert load(server, lora_name="sql", lora_path=str(adapter)).status_code == 200
    yield
    assert post(server, "/v1/unload_lora_adapter", lora_name="sql").status_code == 200
    assert server.engine.stats().compiles_after_ready == 0


def post(server: LocalServer, path: str, **body: Any) -> httpx.Response:
    return httpx.post(f"{server.url}{path}", json=body, timeout=60)


def load(server: LocalServer, **body: Any) -> httpx.Response:
    return post(server, "/v1/load_lora_adapter", **body)


def error(reply: httpx.Response) -> tuple[int, str | None, str]:
    found = reply.json()["error"]
    return reply.status_code, found["param"], found["message"]


@pytest.mark.slow
def test_an_official_client_finds_and_uses_it(server: LocalServer, adapter: Path, sql: None) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    listed = {card.id: card.model_dump() for card in client.models.list()}
    assert listed.keys() == {MODEL, "sql"}
    assert listed["sql"]["parent"] == MODEL and listed["sql"]["root"] == "sql"
    assert client.models.retrieve("sql").id == "sql"
    answers = {}
    for name in (MODEL, "sql", f"{MODEL}:sql"):
        made = client.completions.create(model=name, prompt="Once", max_tokens=8, temperature=0)
        assert made.model == name
        answers[name] = made.choices[0].text
    assert answers[MODEL] != answers["sql"] == answers[f"{MODEL}:sql"]


def test_every_dialect_takes_its_name(server: LocalServer, sql: None) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    for path, body in {
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/v1/responses": {"input": "Hi", "max_output_tokens": 4},
        "/v1/embeddings": {"input": "Hi"},
        "/v1/rerank": {"query": "Hi", "documents": ["Hi"]},
        "/score": {"prefix": "Hi", "suffix": "you"},
    }.items():
        whole = [post(server, path, model=name, **body) for name in ("sql", MODEL)]
        assert [reply.status_code for reply in whole] == [200, 200], (path, whole[0].text)
        assert [reply.json()["model"] for reply in whole] == ["sql", MODEL]
    assert post(server, "/tokenize", model="sql", prompt="Hi").json()["count"] > 0


def test_pickers_read_which_are_loaded(server: LocalServer, sql: None) -> None:
    text = httpx.get(f"{server.url}/metrics").text
    (found,) = [
        sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "vllm:lora_requests_info"
    ]
    assert found.labels == {"max_lora": "2", "running_lora_adapters": "sql", "waiting_lora_adapters": ""}


def test_unknown_names(server: LocalServer, sql: None) -> None:
    for name in ("nothing", f"{MODEL}:nothing", "other:sql"):
        status, field, says = error(post(server, "/v1/completions", model=name, prompt="x"))
        assert (status, field) == (404, "model") and says.endswith(f"Served here: {MODEL}, sql.")
    assert httpx.get(f"{server.url}/v1/models/nothing").status_code == 404
    status, field, says = error(post(server, "/v1/unload_lora_adapter", lora_name="nothing"))
    assert (status, field, says) == (404, "lora_name", "there is no adapter nothing")


def test_what_cannot_be_loaded(server: LocalServer, adapter: Path, sql: None) -> None:
    assert error(load(server, lora_path="/x"))[:2] == (400, "lora_name")
    assert error(load(server, lora_name="", lora_path="/x"))[:2] == (400, "lora_name")
    assert error(load(server, lora_name=MODEL, lora_path="/x"))[:2] == (400, "lora_name")
    status, field, says = error(load(server, lora_name="sql", lora_path=str(adapter)))
    assert (status, field) == (400, "lora_name") and "already" in says
    for place in ("/nowhere", "nobody://x", DEMO_MODEL, "a\0b"):
        status, field, says = error(load(server, lora_name="new", lora_path=place))
        assert (status, field) == (400, "lora_path") and says.startswith("lora_path: ")
    assert load(server, lora_name="new", lora_path=str(adapter)).status_code == 200
    status, field, says = error(load(server, lora_name="one more", lora_path=str(adapter)))
    assert (status, field) == (400, "lora_name") and "all 2 places" in says
    assert post(server, "/v1/unload_lora_adapter", lora_name="new").status_code == 200


def test_any_key_may_read_what_the_config_names_and_nothing_else(
    server: LocalServer, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle is a server of the test's own, which nobody may reach, and folders that are there and that are not."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    (tmp_path / "docs" / "serve").mkdir(parents=True)
    (tmp_path / "link").symlink_to(adapter)
    places = [f"http://{host}/x", f"{adapter}::http://{host}/x", f"reference://{host}", "tar://x::file:///etc/passwd"]
    places += [str(tmp_path / "docs"), str(tmp_path / "nowhere"), "/etc", f"file://{tmp_path}", f"{adapter}/../docs"]
    answers = {error(load(server, lora_name="new", lora_path=place)) for place in places}
    assert len(answers) == 1, "which of them exist is not told"
    assert answers.pop()[:2] == (400, "lora_path")
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()
    monkeypatch.chdir(tmp_path)
    assert server.model.readable("docs/serve") == "huggingface:docs/serve", "never the folder"
    for place in (f"file://{adapter}", f"{adapter}/", str(tmp_path / "link")):
        assert load(server, lora_name="new", lora_path=place).status_code == 200, place
        assert post(server, "/v1/unload_lora_adapter", lora_name="new").status_code == 200


def test_two_at_once_for_one_name_and_place(server: LocalServer, adapter: Path, sql: None) -> None:
    replies: list[int] = []

    def one() -> None:
        replies.append(load(server, lora_name="new", lora_path=str(adapter)).status_code)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(replies) == [200, 400, 400, 400]
    assert post(server, "/v1/unload_lora_adapter", lora_name="new").status_code == 200


def test_loading_is_off_unless_configured(server: LocalServer) -> None:
    client = TestClient(http_app(server.model))
    for path in ("/v1/load_lora_adapter", "/v1/unload_lora_adapter"):
        reply = client.post(path, json={"lora_name": "x", "lora_path": "/x"})
        assert reply.status_code == 404 and "adapter_loading" in reply.json()["error"]["message"]
