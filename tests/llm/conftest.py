"""Tiny checkpoints, engines and servers, each made once a session; their compiled programs share a folder."""

import gc
import os

os.environ["JAX_PLATFORMS"] = "cpu"  # before jax is imported: the tests are the same on a machine with a TPU
os.environ["HF_HUB_OFFLINE"] = "1"

from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from apps.llm.text import EngineConfig


@pytest.fixture(scope="session")
def crowded_server() -> Iterator[Any]:
    """A `LocalServer` whose queue holds two requests."""
    from tests.llm.serve.serving import local_server

    with local_server(max_waiting=2) as server:
        yield server


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random Llama with a trained byte-level tokenizer: all that `Engine.load` needs."""
    from tests.llm.engine import tiny_models

    folder = tmp_path_factory.mktemp("llama")
    tiny_models.save(tiny_models.make("llama3"), folder)
    tiny_models.save_tokenizer(folder)
    return folder


ENGINES: OrderedDict[tuple[tuple[str, Any], ...], Any] = OrderedDict()
"""Those that `load` has made, the one that was asked for last at the end."""
MOST_ENGINES = 6
"""That outlive a module. Each has hundreds of programs, which XLA maps into memory: a process may have 65,530 mappings,
and at that limit jaxlib ends it."""


@pytest.fixture(scope="session")
def load(llama: Path, compile_cache: str) -> Iterator[Callable[..., Any]]:
    """Engines by their config, each loaded once as long as it is asked for now and then.

    A module can keep one as long as it runs, and no longer.
    """
    from apps.llm.text import Engine
    from tests.llm.engine import tiny_models

    def get(**settings: Any) -> Engine:
        settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache} | settings
        key = tuple(sorted(settings.items()))
        if key not in ENGINES:
            ENGINES[key] = Engine.load(EngineConfig(**settings))
        ENGINES.move_to_end(key)
        return ENGINES[key]

    yield get
    shut_down_all_but(0)


@pytest.fixture(scope="module", autouse=True)
def _few_engines_stay() -> Iterator[None]:
    yield
    shut_down_all_but(MOST_ENGINES)


def shut_down_all_but(latest: int) -> None:
    """The engines that `load` has made, but the latest."""
    if len(ENGINES) <= latest:
        return
    while len(ENGINES) > latest:
        ENGINES.popitem(last=False)[1].shutdown()
    gc.collect()
