"""Ways to serve the demo model for a test: `serve run` as a user would, or without Ray where only HTTP matters."""

import itertools
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.http_servers import served

REPOSITORY = Path(__file__).parents[3]
SMALL = {"max_batch_size": 4, "max_step_tokens": 64}  # few programs to compile, the same in all tests
MODEL = "podslice-demo"


def serve_cli(*arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    """Runs `serve` from the repository's root."""
    command = [sys.executable, "-m", "ray.serve.scripts", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=timeout_s)


@dataclass(frozen=True)
class LocalServer:
    """An engine and its HTTP application in this process."""

    url: str
    engine: Any
    model: Any


@contextmanager
def local_server(**config: Any) -> Iterator[LocalServer]:
    """The application without Ray, for tests that need access to the engine."""
    from apps.llm.http.app import http_app
    from apps.llm.served.text_model import TextModel
    from apps.llm.text import Engine
    from ray_configs.llm import EngineConfig

    engine = Engine.load(EngineConfig(**SMALL, **config))
    model = TextModel(MODEL, engine, step_deadline_s=60)
    with served(http_app(model)) as url:
        try:
            yield LocalServer(url, engine, model)
        finally:
            engine.shutdown()


@contextmanager
def held(engine: Any, after: int = 0) -> Iterator[None]:
    """Holds the engine's steps within the block, all but the first `after`: running requests do not end, waiting ones
    keep waiting."""
    executor, go = engine.tokens.loops[0].executor, threading.Event()
    launch, steps = executor.launch, itertools.count()

    def launch_later(*arguments: Any) -> Any:
        assert next(steps) < after or go.wait(240)
        return launch(*arguments)

    executor.launch = launch_later
    try:
        yield
    finally:
        executor.launch = launch
        go.set()


def wait_until(condition: Callable[[], Any], timeout_s: float = 240) -> Any:
    """The first true value of the condition; fails the test after the timeout."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value
