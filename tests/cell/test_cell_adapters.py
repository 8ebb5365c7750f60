"""LoRA adapters that are published on a model of a cell, while its replicas answer."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from ray import serve
from transformers import AutoModelForCausalLM

from apps.cell import build
from ray_configs.cell import CellConfig
from ray_configs.llm import DEMO_MODEL
from tests.cell.test_cell_serve import QUESTION, SMALL, Client
from tests.llm.engine.adapters import making

pytestmark = pytest.mark.slow

BASE, POET = "/sax/lora/demo", "/sax/lora/demo:poet"


def save_adapter(folder: Path, seed: int, rank: int = 8) -> None:
    base = AutoModelForCausalLM.from_pretrained(DEMO_MODEL, dtype=torch.float32)
    making.save_adapter(base, folder, seed, r=rank, lora_alpha=64, target_modules=list(making.ATTENTION + making.MLP))


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    save_adapter(folder / "poet", 1)
    save_adapter(folder / "other", 2)
    save_adapter(folder / "large", 1, rank=32)
    return folder


@pytest.fixture(scope="module")
def cell(serve_url: str, tmp_path_factory: pytest.TempPathFactory, adapters: Path) -> Iterator[Client]:
    """A cell with the demo model and two places for adapters."""
    folder = tmp_path_factory.mktemp("cell")
    config = CellConfig(name="lora", state_uri=str(folder), model_roots=(str(adapters),))
    serve.run(build(config), name="lora", route_prefix="/lora")
    client = Client(f"{serve_url}/lora")
    client("POST", "/publish", model=BASE, model_path="catalog.local", overrides=SMALL | {"max_adapters": 2})
    client.until(BASE, lambda entry: entry["state"] == "LOADED")
    yield client
    client("POST", "/unpublish", model=BASE)
    while "sax.lora.demo" in serve.status().applications:
        time.sleep(0.2)
    serve.delete("lora")


def ask(cell: Client, model: str) -> httpx.Response:
    body = {"model": model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 12}
    return cell.http.post("/v1/chat/completions", json=body)


def answer(cell: Client, model: str, timeout_s: float = 240) -> str:
    """The answer, as soon as the adapter is loaded."""
    deadline = time.monotonic() + timeout_s
    while (reply := ask(cell, model)).status_code == 503:
        assert "loading" in reply.text or "is being loaded" in reply.text, reply.text
        assert reply.headers["Retry-After"]
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert reply.status_code == 200, reply.text
    body: dict[str, Any] = reply.json()
    assert body["model"] in (BASE, POET)
    return str(body["choices"][0]["message"]["content"])


def message(reply: httpx.Response) -> tuple[int, str]:
    return reply.status_code, reply.json()["error"]["message"]


@pytest.fixture
def customer(cell: Client) -> Iterator[None]:
    """Asks the model without a pause, and is always answered."""
    replies, done = list[tuple[int, str]](), threading.Event()

    def ask_on() -> None:
        own = Client(cell.url)
        while not done.is_set():
            reply = ask(own, BASE)
            replies.append((reply.status_code, reply.text))

    thread = threading.Thread(target=ask_on)
    thread.start()
    yield
    done.set()
    thread.join()
    assert len(replies) > 10
    assert [reply for reply in replies if reply[0] != 200] == []


def test_published_replaced_and_unpublished_while_the_model_answers(
    cell: Client, adapters: Path, customer: None
) -> None:
    plain = answer(cell, BASE)
    replicas = cell("GET", "/listcell", model=BASE)["replicas"]
    with_poet = []
    for _ in range(2):
        assert message(ask(cell, "demo:poet"))[0] == 404
        echo = cell("POST", "/publish", model=POET, model_path=str(adapters / "poet"))
        assert (echo["model"], echo["path"]) == (POET, str(adapters / "poet"))
        with_poet.append(answer(cell, "demo:poet"))
        assert answer(cell, POET) == with_poet[-1] != answer(cell, BASE) == plain
        assert answer(cell, "demo") == plain
        assert cell("GET", "/listall") == [BASE, POET]
        assert [card["id"] for card in cell("GET", "/v1/models")["data"]] == [BASE, POET]
        assert cell("GET", "/cell")["slices"]["in_use"] == 1
        cell("POST", "/unpublish", model=POET)
        shutil.copytree(adapters / "other", adapters / "poet", dirs_exist_ok=True)
    assert with_poet[0] != with_poet[1], "what is published anew is read anew"
    assert cell("GET", "/listcell", model=BASE)["replicas"] == replicas, "no replica was replaced"


def test_an_adapter_that_does_not_fit_says_so_to_who_asks_for_it(cell: Client, adapters: Path, customer: None) -> None:
    cell("POST", "/publish", model=POET, model_path=str(adapters / "large"))
    while (reply := message(ask(cell, POET)))[0] == 503:
        time.sleep(0.1)
    assert reply[0] == 404 and "was not loaded: " in reply[1] and "max_adapter_rank" in reply[1]
    shown = cell.until(POET, lambda entry: entry["state"] != "LOADING")
    assert (shown["state"], shown["active_replicas"]) == ("FAILED", 0) and shown["reason"] in reply[1]
    assert message(ask(cell, POET)) == reply, "as before it was shown"
    cell("POST", "/unpublish", model=POET)


def test_a_new_replica_has_the_adapters_when_it_answers(cell: Client, adapters: Path) -> None:
    cell("POST", "/publish", model=POET, model_path=str(adapters / "other"))
    one = answer(cell, POET)
    cell("PUT", "/update", model=BASE, replicas=2)
    cell.until(BASE, lambda entry: entry["active_replicas"] == 2)
    assert {answer(cell, POET, timeout_s=0) for _ in range(20)} == {one}
    cell("POST", "/unpublish", model=POET)
