"""A process that hosts an engine: what comes before the engine is loaded, after it, and when the process ends.

    choose the platform -> load (and with it JAX) -> settle -> serve, healthy or not -> shut down

`EngineServer` is the base of Serve's replicas; a job's replica calls `host` alone.
"""

import asyncio
import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from ray import serve
from starlette.types import ASGIApp

from apps.serving import progress
from apps.serving.ingress.api_keys import OPEN, Principals, principals, principals_from_environment
from apps.serving.replica_options import choose_platform, options
from ray_configs.applications.replicas import AppConfig
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig

C = TypeVar("C", bound=AppConfig)
T = TypeVar("T")


class HostedModel(Protocol):
    """A loaded model, as its replica looks after it."""

    def check(self) -> None:
        """Raises EngineStopped if its engine cannot answer."""

    async def report_forever(self) -> None:
        """Publishes metrics."""

    def shutdown(self) -> None:
        """Ends the engine; open requests fail with an error that says so."""


def host(config: C, load: Callable[[C], T]) -> T:
    """What `load` makes of the config, as the one thing that this process is for. Takes seconds to minutes.

    `load` is what imports JAX, which reads the environment that is set here first.
    """
    choose_platform(config)
    loaded = load(config)
    # What exists now lives as long as the replica: the garbage collector need not walk it again and again.
    gc.collect()
    gc.freeze()
    return loaded


def log_as_serve_does() -> None:
    log = logging.getLogger("podslice")
    log.handlers, log.propagate = logging.getLogger("ray.serve").handlers, False
    log.setLevel(logging.INFO)


def bound(server: serve.Deployment, config: LLMConfig | StableDiffusionConfig) -> serve.Application:
    """The application of one EngineServer, with the deployment options that follow from the config.

    Keys travel as digests: no pickle, log or process listing of the cluster holds one.
    """
    keys = principals(key.get_secret_value() for key in config.api_keys)
    return server.options(**options(config)).bind(config.model_copy(update={"api_keys": ()}), keys)


class EngineServer(ABC):
    """A Serve replica: one engine and the HTTP API in front of it.

    Serve makes it, asks `check_health` every few seconds, and deletes it when its requests are done.
    """

    async def __init__(self, config: Any, keys: Principals = OPEN):
        log_as_serve_does()
        self._keys = principals_from_environment(keys)
        # In a thread: Serve's control calls share this event loop.
        progress.app = serve.get_replica_context().app_name
        try:
            self._model: HostedModel = await asyncio.to_thread(host, config, self.load)
        except Exception as error:
            progress.tell({"failure": progress.reason(error)})
            raise
        self._reports = asyncio.create_task(self._model.report_forever())

    @abstractmethod
    def load(self, config: Any) -> HostedModel:
        """The model, ready to answer. Its imports come first here, once the process's platform is chosen."""

    @abstractmethod
    def http_app(self, model: Any, keys: Principals) -> ASGIApp:
        """What answers for the model; with keys, only to those who hold one."""

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self.http_app(self._model, self._keys)

    async def check_health(self) -> None:
        """Raises when the engine is dead or stuck; the third time Serve replaces the replica."""
        self._model.check()

    def __del__(self) -> None:
        if hasattr(self, "_reports"):
            self._reports.cancel()
            self._model.shutdown()
