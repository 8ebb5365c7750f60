"""A process that hosts an engine: its setup before the engine is loaded, after that, and its end.

    choose the platform -> load (and with it JAX) -> settle -> serve, healthy or not -> shut down

`EngineServer` is the base of Serve's replicas; a job's replica calls `host` alone.
"""

import asyncio
import gc
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ray import serve
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.types import ASGIApp

from apps.serving import private_ray, progress
from apps.serving.ingress import front
from apps.serving.ingress.api_keys import OPEN, Principals, principals, principals_from_environment
from apps.serving.ingress.application import HostedModel
from apps.serving.ingress.dialects import anthropic_errors
from apps.serving.ingress.dialects.openai_errors import OpenAIError
from apps.serving.ingress.open_requests import Draining, OpenRequests
from apps.serving.ingress.same_machine import SameMachine, is_loopback, with_cors
from apps.serving.logs.one_line import OneLine
from apps.serving.machines import notices
from apps.serving.replica_options import choose_platform, options
from ray_configs.applications.replicas import AppConfig
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig

C = TypeVar("C", bound=AppConfig)
T = TypeVar("T")


def host(config: C, load: Callable[[C], T]) -> T:
    """Load a model as this process's only one, and return what `load` returns. Takes seconds to minutes.

    `load` must be the first to import JAX, which reads the environment that is set here.
    """
    choose_platform(config)
    loaded = load(config)
    # Everything allocated so far lives as long as the replica: keep the garbage collector from scanning it again.
    gc.collect()
    gc.freeze()
    return loaded


async def hosted(config: C, load: Callable[[C], T]) -> T:
    """`host` in a thread, because Serve's control calls share this event loop. Why it fails is told to who serves."""
    progress.app = serve.get_replica_context().app_name
    if config.slice is not None and not config.spans_hosts:
        notices.pass_on()
    try:
        return await asyncio.to_thread(host, config, load)
    except Exception as error:
        progress.tell({"failure": progress.reason(error)})
        raise


def log_as_serve_does() -> None:
    """Log where, how and from which level on the service's config lets Serve log, but no line for each request.

    The server's own line every few seconds is cheaper and says more. A deployment's logging options could leave these
    lines out too, but they replace the service's level and encoding.
    """
    log, serves = logging.getLogger("podslice"), logging.getLogger("ray.serve")
    log.handlers, log.propagate = serves.handlers, False
    log.setLevel(serves.level)
    serves.addFilter(_is_no_access_log)
    serves.addFilter(OneLine())


def _is_no_access_log(record: logging.LogRecord) -> bool:
    return not getattr(record, "serve_access_log", False)


def bound(server: Any, config: LLMConfig | StableDiffusionConfig) -> serve.Application:
    """The application of one EngineServer, with the deployment options that follow from the config.

    `server` is a Deployment: what `serve.deployment` makes of a class, which type checkers take for the class.
    """
    return server.options(**options(config)).bind(*without_keys(config))


def without_keys(config: C) -> tuple[C, Principals]:
    """A config without its keys, and the keys as digests, so that no pickle, log or process listing of the cluster
    contains one. Those of this process's environment are among them: the replicas' own may lack them, in a cluster that
    was started without."""
    keys = principals_from_environment(principals(key.get_secret_value() for key in config.api_keys))
    return config.model_copy(update={"api_keys": ()}), keys


def for_this_machine(keys: Principals) -> bool:
    """Whether Serve listens on loopback alone, and everyone there may use an application with these keys. Blocks."""
    return not keys and is_loopback(private_ray.http_host())


def _of_another_site(scope: Mapping[str, Any], status: int, message: str) -> Response:
    return anthropic_errors.by_path(scope, OpenAIError(status, message, None, "another_site"))


class EngineServer(ABC):
    """A Serve replica: one engine and the HTTP API in front of it.

    Serve creates it, calls `check_health` every few seconds, and deletes it when its requests are done.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: Any, keys: Principals = OPEN
    ):
        log_as_serve_does()
        self._keys = principals_from_environment(keys)
        self._origins: tuple[str, ...] = config.cors_origins
        self._for_this_machine = await asyncio.to_thread(for_this_machine, self._keys)
        self._requests = OpenRequests()
        front.admit(self._keys)
        self._model: HostedModel = await hosted(config, self.load)
        self._reports = asyncio.create_task(self._model.report_forever())

    @abstractmethod
    def load(self, config: Any) -> HostedModel:
        """Load the model. JAX must be imported here and not earlier, after the process's platform is chosen."""

    @abstractmethod
    def http_app(self, model: Any, keys: Principals) -> Starlette:
        """The HTTP application of the model; if there are keys, it requires one."""

    def __serve_build_asgi_app__(self) -> ASGIApp:
        app = self.http_app(self._model, self._keys)
        if self._for_this_machine:
            app.add_middleware(SameMachine, refused=_of_another_site, origins=self._origins)
        app.add_middleware(Draining, requests=self._requests, refused=anthropic_errors.by_path)
        return with_cors(app, self._origins)

    async def drain(self, timeout_s: float) -> int:
        """See `OpenRequests.drain`. Called by `apps.serving.shutdown` through a handle."""
        return await self._requests.drain(timeout_s)

    async def check_health(self) -> None:
        """Raises when the engine is dead or stuck. After the third failure Serve replaces the replica."""
        self._model.check()

    def __del__(self) -> None:
        if hasattr(self, "_reports"):
            self._reports.cancel()
            self._model.shutdown()
