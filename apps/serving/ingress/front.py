"""What a request passes before Ray Serve counts it: its key is checked, and its body read.

Serve's HTTP servers, in replicas and in proxies, put `middlewares` in front of themselves. A request that waits there
holds no place of a replica, and does not make Serve start one.

- In a replica: the application checks keys itself, and refuses at once. A request that it will let in is passed on when
  its body is complete, so that half-sent ones keep nobody out.
- In Serve's Python proxy, which takes the requests of an application that has no replica: keys are checked here,
  because a request that waits for a replica starts one.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.middleware import Middleware
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from apps.serving import private_ray
from apps.serving.ingress.api_keys import (
    OPEN,
    SCOPE_PRINCIPAL,
    Principals,
    RequireKey,
    principal,
    principals_from_environment,
)
from apps.serving.ingress.bodies import with_body
from apps.serving.ingress.dialects import saxml_answers
from apps.serving.ingress.dialects.anthropic_errors import by_path
from apps.serving.ingress.dialects.openai_errors import OpenAIError, from_unread
from apps.serving.ingress.same_machine import with_cors
from ray_configs.applications.replicas import AppConfig
from ray_configs.cell import CellConfig

log = logging.getLogger("podslice")

REFRESH_S = 2.0
"""How old a proxy's view of the applications may be."""
ErrorWriter = Callable[[Scope, OpenAIError], Response]
"""Writes an error in the format that an application has on a request's path."""
_admitted: Principals | None = None
_written: ErrorWriter = by_path


def admit(keys: Principals, written: ErrorWriter = by_path) -> None:
    """Tell this replica's front whom the application lets in, without keys everyone, and how it writes errors."""
    global _admitted, _written
    _admitted, _written = keys, written


def middlewares() -> list[Middleware]:
    """For RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH."""
    return [Middleware(ReplicaFront if private_ray.in_a_replica() else ProxyFront)]


class ReplicaFront:
    """In front of a replica's HTTP server."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope["type"] == "http" and _admitted is not None
        if ours and (not _admitted or principal(scope, _admitted) is not None):
            await with_body(self._app, scope, receive, send, lambda error: _written(scope, from_unread(error)))
        else:
            await self._app(scope, receive, send)


@dataclass(frozen=True)
class Route:
    """An application, as a proxy sees it."""

    route: str
    keys: Principals
    """Empty: open to everyone."""
    replicas: int
    """Those that run."""
    wanted: int
    origins: tuple[str, ...] = ()
    """Other sites whose pages may use it."""
    written: ErrorWriter = by_path


class ProxyFront:
    """In front of Serve's Python proxy."""

    def __init__(self, app: ASGIApp):
        self._app = app
        self._deployed: list[Route] = []
        self._looked = -REFRESH_S
        self._looking: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        root = scope.get("root_path", "")
        path = scope["path"].removeprefix(root)
        if path in ("/-/routes", "/-/healthz"):
            await self._app(scope, receive, send)
            return
        try:
            await self._look()
        except Exception as error:
            log.warning("a proxy cannot ask Serve which applications there are: %s", error)
            starting = OpenAIError(503, "The service is starting; try again.", None, "service_unavailable", 1)
            if scope["type"] == "http":
                await by_path(scope, starting)(scope, receive, send)
            return
        deployed = _matching(path, self._deployed)
        if deployed is None:
            await self._app(scope, receive, send)
            return

        async def admitted(seen: Scope, receive: Receive, send: Send) -> None:
            if deployed.keys and SCOPE_PRINCIPAL not in seen and not deployed.replicas:
                await _without_replicas(deployed)(scope, receive, send)
            else:
                await with_body(
                    self._app, scope, receive, send, lambda error: deployed.written(seen, from_unread(error))
                )

        def refused(seen: Scope, message: str) -> Response:
            return deployed.written(seen, OpenAIError(401, message, None, "invalid_api_key"))

        seen = dict(scope) | {"root_path": root + deployed.route.rstrip("/")}  # as the application sees it
        if deployed.keys:
            keyed = RequireKey(admitted, deployed.keys, refused)
            await with_cors(keyed, deployed.origins)(seen, receive, send)
        elif scope["type"] == "http":
            await admitted(seen, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _look(self) -> None:
        """See to it that the view of the applications is not too old; requests share one look."""
        if time.monotonic() - self._looked < REFRESH_S:
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_again())
        await asyncio.shield(self._looking)

    async def _look_again(self) -> None:
        self._deployed = await asyncio.to_thread(deployed_now)
        self._looked = time.monotonic()


def deployed_now() -> list[Route]:
    """The project's applications that Serve has, longest route first. Blocks for some milliseconds."""
    details = private_ray.applications()
    found = []
    for name, ingress in private_ray.ingresses().items():
        deployment = details.get(name, {}).get("deployments", {}).get(ingress.deployment)
        if deployment and ingress.arguments and isinstance(ingress.arguments[0], AppConfig):
            running = sum(replica["state"] == "RUNNING" for replica in deployment["replicas"])
            wanted, origins = deployment["target_num_replicas"], ingress.arguments[0].cors_origins
            written = saxml_answers.by_path if isinstance(ingress.arguments[0], CellConfig) else by_path
            found.append(Route(ingress.route, _keys(ingress), running, wanted, origins, written))
    return sorted(found, key=lambda deployed: len(deployed.route), reverse=True)


def _keys(ingress: private_ray.Ingress) -> Principals:
    """The keys that the application was bound to, and the environment's."""
    return principals_from_environment(
        next((argument for argument in ingress.arguments if isinstance(argument, dict)), OPEN)
    )


def _matching(path: str, deployed: Iterable[Route]) -> Route | None:
    """The first application whose route the path begins with, as Serve matches them."""
    for each in deployed:
        route = each.route.rstrip("/")
        if path == route or path.startswith(f"{route}/"):
            return each
    return None


def _without_replicas(deployed: Route) -> Response:
    """Health, for who sends no key. A service that has scaled to zero is well: a load balancer must go on sending to it
    what starts a replica."""
    if deployed.wanted:
        return JSONResponse({"status": "starting"}, 503, {"Retry-After": "2"})
    return JSONResponse({"status": "asleep"})
