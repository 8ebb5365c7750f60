"""A served engine, and connections to it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apps.llm.engine.engine import JaxEngine
from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.served import ServedEngine
from tests.llm.router.wire.asking import Connected


@pytest.fixture(scope="module")
def engine(load: Callable[..., Any]) -> JaxEngine:
    return load(max_adapters=2, max_adapter_rank=8).tokens


@pytest.fixture
def served(engine: JaxEngine) -> Iterator[ServedEngine]:
    served = ServedEngine(engine, "127.0.0.1", "replica-0")
    yield served
    served.close()


@pytest.fixture
def connect() -> Iterator[Callable[[Endpoint], Connected]]:
    made: list[Connected] = []

    def connect(endpoint: Endpoint) -> Connected:
        made.append(Connected(endpoint))
        return made[-1]

    yield connect
    for each in made:
        each.engine.shutdown()


@pytest.fixture
def slow(engine: JaxEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests stay open for seconds."""
    for loop in engine.loops:
        monkeypatch.setattr(loop.executor, "read", slowed(loop.executor.read))


def slowed(read: Callable[..., Any]) -> Callable[..., Any]:
    def slow(launched: Any) -> Any:
        time.sleep(0.05)
        return read(launched)

    return slow
