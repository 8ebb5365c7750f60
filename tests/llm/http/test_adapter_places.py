"""Which places a key may have the server read an adapter from. No engine: what would be read is recorded.

The oracle for what exists is the disk itself: the answers for places that are there and that are not are the same.
"""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from apps.llm.http.adapters import adapters_router
from apps.llm.served.text_model import TextModel
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from ray_configs.llm import LLMConfig


def client(reads: list[str], **config: Any) -> TestClient:
    """The endpoints over a model whose engine reads nothing."""
    model = object.__new__(TextModel)
    model.name = "base"
    engine: Any = SimpleNamespace(config=LLMConfig(max_adapters=2, **config))
    engine.load_adapter = lambda name, location: reads.append(location)
    model._engine = engine
    app = FastAPI()
    app.include_router(adapters_router(model, True))
    app.add_exception_handler(OpenAIError, lambda _, error: error.response())
    return TestClient(app, raise_server_exceptions=False)


def load(to: TestClient, place: str) -> tuple[int, str]:
    reply = to.post("/v1/load_lora_adapter", json={"lora_name": "new", "lora_path": place})
    return reply.status_code, reply.text


def test_what_is_neither_of_the_hub_nor_configured_is_refused_alike(tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    host = f"127.0.0.1:{listener.getsockname()[1]}"
    root, reads = tmp_path / "root", list[str]()
    (root / "sql").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    places = [f"http://{host}/x", f"{root}/sql::http://{host}/x", f"reference://{host}", "tar://x::file:///etc/passwd"]
    places += ["/etc", "/nowhere", f"file://{tmp_path}", f"{root}/../x", f"{root}/out", f"{root}/out/nowhere", "~/x"]
    places += [f"{root}/sql\x00", "huggingface:../x", "./docs", "data:,x", "memory://x", "gs://bucket/x", "a/b/c"]
    for roots in ({}, {"model_roots": str(root)}):
        to = client(reads, **roots)
        answers = {load(to, place) for place in places}
        assert len(answers) == 1
        assert answers.pop()[0] == 400
    assert reads == []
    with pytest.raises(BlockingIOError):
        listener.accept()
    listener.close()


def test_what_is_configured_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "serve").mkdir(parents=True)
    (tmp_path / "root" / "sql").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    reads: list[str] = []
    root = str(tmp_path / "root")
    to = client(reads, model_roots=f"{root}, gs://bucket/loras", adapters={"own": "docs/own", "far": "/far/away"})
    wanted = {
        f"{root}/sql": f"{root}/sql",
        f"{root}/sql/": f"{root}/sql",
        f"file://{root}/sql": f"{root}/sql",
        f"{root}/not-there-yet": f"{root}/not-there-yet",
        "gs://bucket/loras/x": "gs://bucket/loras/x",
        "docs/own": "docs/own",
        "/far/away": "/far/away",
        "docs/serve": "huggingface:docs/serve",
        "huggingface:owner/name": "huggingface:owner/name",
    }
    for place in wanted:
        assert load(to, place)[0] == 200, place
    assert reads == list(wanted.values())
