"""The published models at a front: which config answers, and what is left behind. Serve is told here; engines and the
wire to them are real. The oracle is the text of the same engine without a front."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from apps.cell import words
from apps.cell.errors import Unavailable
from apps.cell.words import ModelsInWords
from apps.llm.router.wire.served import ServedEngine
from apps.llm.running_engines import LOOK_S, engine_digest
from apps.llm.text import Engine
from ray_configs.llm import LLMConfig
from tests.llm.engine.asking import settled
from tests.llm.router.test_running_engines import Running
from tests.llm.serve.serving import wait_until

NAME = "/sax/test/m"
ASKED = {"prompt": "the quick", "max_tokens": 6, "temperature": 0}


@pytest.fixture
def config(load: Callable[..., Engine]) -> LLMConfig:
    return LLMConfig(**load().config.model_dump(), model_id=NAME, drain_timeout_s=30)


@pytest.fixture
def handle(monkeypatch: pytest.MonkeyPatch) -> Running:
    handle = Running()
    monkeypatch.setattr(words.serve, "get_deployment_handle", lambda deployment, app: handle)
    return handle


@pytest.fixture
def start(load: Callable[..., Engine], handle: Running) -> Iterator[Callable[[LLMConfig], ServedEngine]]:
    started = list[ServedEngine]()

    def start(config: LLMConfig) -> ServedEngine:
        started.append(ServedEngine(load().tokens, "127.0.0.1", str(len(started)), engine_digest(config)))
        handle.endpoints.append(started[-1].endpoint)
        return started[-1]

    yield start
    for served in started:
        served.close()
    settled(load())


@pytest.fixture
def models() -> Iterator[ModelsInWords]:
    models = ModelsInWords()
    yield models
    models.close()


def ask(app: ASGIApp, **fields: Any) -> httpx.Response:
    async def call() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test", timeout=60) as client:
            return await client.post("/v1/completions", json=ASKED | fields)

    return asyncio.run(call())


def app_of(models: ModelsInWords) -> ASGIApp:
    return asyncio.run(models.app(NAME))


def test_a_model_answers_once_an_engine_runs(
    start: Callable[..., Any], models: ModelsInWords, config: LLMConfig
) -> None:
    with pytest.raises(Unavailable, match="not reachable yet"):
        app_of(models)
    models.follow({NAME: config})
    start(config)
    answer = ask(app_of(models))
    assert answer.status_code == 200 and answer.json()["model"] == NAME
    models.follow({})
    with pytest.raises(Unavailable):
        app_of(models)


@pytest.mark.slow
def test_another_config_answers_once_it_can(
    start: Callable[..., Any], handle: Running, models: ModelsInWords, config: LLMConfig
) -> None:
    """The former one goes on until then: no request waits for a model that loads."""
    other = config.model_copy(update={"max_waiting": 77})
    models.follow({NAME: config})
    before = start(config)
    first = app_of(models)
    for _ in range(3):
        models.follow({NAME: other})
        assert app_of(models) is first and ask(first).status_code == 200
        time.sleep(LOOK_S)
    start(other)

    def follows() -> bool:
        models.follow({NAME: other})
        return app_of(models) is not first

    wait_until(follows)
    handle.endpoints.remove(before.endpoint)
    assert ask(app_of(models)).status_code == 200


def test_a_front_that_cannot_read_a_model_says_so_and_tries_again(
    start: Callable[..., Any], models: ModelsInWords, config: LLMConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError("no tokenizer.json")

    with monkeypatch.context() as broken:
        broken.setattr(Engine, "over", fails)
        models.follow({NAME: config})
        start(config)
        with pytest.raises(Unavailable, match="no tokenizer"):
            app_of(models)
        models.follow({NAME: config})
    monkeypatch.setattr(words, "AGAIN_S", 0)
    models.follow({NAME: config})
    assert ask(app_of(models)).status_code == 200
