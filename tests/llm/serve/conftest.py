"""The demo model, deployed for all tests of this folder and those under it."""

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from apps.llm.chat.model_format import ModelFormat
from apps.llm.served.text_stream import TextStream
from apps.llm.text_api import Output
from tests.llm.serve.serving import MODEL, SMALL, LocalServer, local_server, serve_cli
from tests.llm.text import chat_models


@pytest.fixture(scope="session")
def llm_url(ray_cluster: str, serve_url: str) -> str:
    """Base URL of the demo model, deployed by the command line from the repository's root."""
    options = [f"{name}={value}" for name, value in SMALL.items()]
    done = serve_cli("run", "--non-blocking", "--address", ray_cluster, "--name", "llm", "apps.llm:build", *options)
    assert done.returncode == 0 and "is ready" in done.stdout + done.stderr, done.stdout + done.stderr
    return serve_url


@pytest.fixture
def client(llm_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{llm_url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture
def stats(llm_url: str) -> Callable[[], dict[str, Any]]:
    return lambda: httpx.get(f"{llm_url}/health").json()["models"][MODEL]


@pytest.fixture(scope="session")
def chat_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """A tiny random model with tools and reasoning, as Qwen3 has; without Ray."""
    folder = chat_models.save(tmp_path_factory.mktemp("chat"), "qwen3")
    sizes = {"dtype": "float32", "pages": 128, "page_size": 16, "max_model_len": 512}
    with local_server(model=str(folder), **sizes) as server:
        yield server


@pytest.fixture
def change_template(chat_server: LocalServer, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Changes the model's chat template."""

    def change(name: str) -> None:
        template = chat_models.TEMPLATES[name]
        monkeypatch.setattr(chat_server.engine.tokenizer._hf, "chat_template", template)
        format_ = ModelFormat.of(template).on(
            chat_server.engine.capabilities.special_tokens, chat_server.engine.tokenizer.render
        )
        monkeypatch.setattr(chat_server.engine, "format", format_)

    return change


@pytest.fixture
def token_by_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes streams send an event for each token, even if a busy machine lets the server read several at once."""
    read = TextStream.outputs

    async def one_by_one(stream: TextStream) -> AsyncIterator[list[Output]]:
        async for outputs in read(stream):
            for output in outputs:
                yield [output]

    monkeypatch.setattr(TextStream, "outputs", one_by_one)
