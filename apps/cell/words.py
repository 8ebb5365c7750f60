"""The published models as a front answers for them: text and dialects here, tokens from their engines.

    request -> dispatcher -> ModelInWords: the model's own HTTP application -> wire -> its LLMEngines

A front follows what is published. It reads a model's tokenizer once the first engine runs, and again once an engine
runs with another config; the former one goes on with what it has.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from apps.cell.errors import Unavailable
from apps.cell.names import app_name
from apps.llm.routed import LLMEngine
from apps.llm.running_engines import LOOK_S, RunningEngines, engine_digest
from apps.llm.served.metrics import RoutedMetrics
from apps.llm.served.text_model import TextModel
from apps.llm.shared_limits import SharedLimits, Told
from ray_configs.llm import LLMConfig

log = logging.getLogger("podslice")

READY_S = 30.0
"""A request waits so long for a front that still reads the files of a model whose engines run."""
AGAIN_S = 15.0
"""Time between two attempts to read them."""


class ModelInWords:
    """One published model at one front, for one config.

    Args:
        name: its full name.
        front: this front's name, and the deployment of all of them, if limits hold over several.
    """

    def __init__(self, name: str, config: LLMConfig, front: tuple[str, DeploymentHandle[Any]] | None):
        self.name, self.config, self._front = name, config, front
        self.app: Future[ASGIApp] = Future()
        """Its dialects; or why there are none."""
        self.began = time.monotonic()
        self.limits: SharedLimits | None = None
        kind = "a replica" if config.slice is None else f"a replica on {config.slice}"
        engines = serve.get_deployment_handle(LLMEngine.name, app_name(name))  # type: ignore[attr-defined]
        self._engines = RunningEngines(engines, engine_digest(config), kind)
        self._model: TextModel | None = None
        self._closing = threading.Event()
        threading.Thread(target=self._load, name="podslice-model", daemon=True).start()

    @property
    def ready(self) -> bool:
        return self.app.done() and self.app.exception() is None

    @property
    def failed(self) -> bool:
        return self.app.done() and self.app.exception() is not None

    def _load(self) -> None:
        """Read it, publish its metrics until it is closed, and let go of what was read."""
        try:
            from apps.llm.http.app import http_app

            engine = self._engines.in_words(self.config.model_copy(update={"slice": None}))
            if self._front is not None and SharedLimits.needed(self.config, 2):
                name, fronts = self._front
                self.limits = SharedLimits(engine.admission, name, fronts, self.name)
            deadline_s = self.config.health_step_deadline_s
            self._model = TextModel(self.config.served_name, engine, deadline_s, RoutedMetrics)
            self.app.set_result(http_app(self._model))
        except BaseException as error:
            if not self._closing.is_set():
                log.exception("%s cannot be answered for", self.name)
            self.app.set_exception(error)
            self._engines.close()
            return
        asyncio.run(self._report())
        if self.limits is not None:
            self.limits.close()
        self._model.shutdown()

    async def _report(self) -> None:
        assert self._model is not None
        reports = asyncio.create_task(self._model.report_forever())
        await asyncio.to_thread(self._closing.wait)
        reports.cancel()

    def close(self, at_once: bool = False) -> None:
        """Leave its engines, once what is open has ended. Returns at once."""
        threading.Thread(target=self._close, args=(at_once,), daemon=True).start()

    def _close(self, at_once: bool) -> None:
        deadline = time.monotonic() + self.config.drain_timeout_s
        while not at_once and self._model is not None and self._model.busy and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        self._closing.set()
        self._engines.close()


class ModelsInWords:
    """All published models at one front. Used by the front's event loop.

    Args:
        front: see `ModelInWords`.
    """

    def __init__(self, front: tuple[str, DeploymentHandle[Any]] | None = None):
        self._front = front
        self._models: dict[str, ModelInWords] = {}
        self._next: dict[str, ModelInWords] = {}
        """With another config than the one that still answers, until they are ready."""

    def follow(self, published: Mapping[str, LLMConfig]) -> None:
        """Answer for these models, with these configs, from now on."""
        for name in self._models.keys() - published.keys():
            self._leave(name)
        for name, config in published.items():
            self._follow(name, config)

    def _follow(self, name: str, config: LLMConfig) -> None:
        current, following = self._models.get(name), self._next.get(name)
        if current is None:
            self._models[name] = ModelInWords(name, config, self._front)
        elif current.config == config:
            if following is not None:
                self._next.pop(name).close(at_once=True)
            if current.failed and time.monotonic() - current.began > AGAIN_S:
                self._models[name] = ModelInWords(name, config, self._front)
        elif not current.ready:
            current.close(at_once=True)
            self._models[name] = ModelInWords(name, config, self._front)
        elif following is None or following.config != config or following.failed:
            if following is not None:
                following.close(at_once=True)
            self._next[name] = ModelInWords(name, config, self._front)
        elif following.ready:
            self._models[name] = self._next.pop(name)
            current.close()

    def _leave(self, name: str) -> None:
        self._models.pop(name).close()
        if name in self._next:
            self._next.pop(name).close(at_once=True)

    async def app(self, name: str) -> ASGIApp:
        """The application that answers for a model. Raises Unavailable while there is none."""
        if (model := self._models.get(name)) is None:
            raise Unavailable(f"{name} is not reachable yet; try again", retry_after_s=1)
        try:
            return await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(model.app)), READY_S)
        except TimeoutError:
            raise Unavailable(f"{name} is loaded, and this front still reads its tokenizer", retry_after_s=2) from None
        except Exception as error:
            raise Unavailable(f"{name} is loaded, but this front cannot read it: {error}", retry_after_s=5) from error

    def limits_used(self, name: str) -> Told | None:
        """What callers use of a model here; see `SharedLimits`. None: nothing is known."""
        model = self._models.get(name)
        return None if model is None or model.limits is None else model.limits.told()

    def close(self) -> None:
        """Leave all of them at once."""
        for model in (*self._models.values(), *self._next.values()):
            model.close(at_once=True)
