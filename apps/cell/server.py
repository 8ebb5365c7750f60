"""The cell's two Serve deployments.

CellAdmin   one process: owns the desired state and reconciles it
CellFront   as many as `front_replicas`: HTTP and text for clients; gives tokens to the models' engines

They are separate so that clients do not notice a restart of the admin, and so that many clients cannot lock out an
operator.
"""

import asyncio
import contextlib
import logging
import time
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from apps.cell import calls
from apps.cell.admin import Admin
from apps.cell.calls import AnswerT, Call, Change
from apps.cell.cell import CellReconciler
from apps.cell.desired.store import LEASE_S, RENEW_S, Store
from apps.cell.errors import AdminFailed, CellError, Unavailable
from apps.cell.http.app import http_app
from apps.cell.http.dispatcher import View
from apps.cell.names import split
from apps.cell.rounds import Failures, Rounds
from apps.cell.serve_apps import ServeApps
from apps.cell.words import ModelsInWords
from apps.llm.shared_limits import Told
from apps.serving import private_ray
from apps.serving.files import Holder
from apps.serving.ingress import front
from apps.serving.ingress.api_keys import principals, principals_from_environment
from apps.serving.ingress.dialects.saxml_answers import by_path
from apps.serving.ingress.open_requests import Draining, OpenRequests
from apps.serving.ingress.same_machine import with_cors
from apps.serving.replica import for_this_machine, log_as_serve_does
from apps.serving.replica_options import choose_platform, on_cpu_pod
from ray_configs.cell import OWN_CPUS, CellConfig

log = logging.getLogger("podslice")

RECONCILE_S = 1.0
VIEW_S = 0.5
"""Seconds between two updates of the front's view of the models."""


def build(config: CellConfig) -> serve.Application:
    """The application for one config: the front, bound to the admin.

    Keys are passed as digests: no pickle or log of the cluster contains one.
    """
    keys = principals_from_environment(principals(key.get_secret_value() for key in config.api_keys))
    plain = config.model_copy(update={"api_keys": ()})
    actor = {"num_cpus": OWN_CPUS} | on_cpu_pod(config)
    # Type checkers take these deployments for their classes.
    admin_deployment: Any = CellAdmin
    front_deployment: Any = CellFront
    admin = admin_deployment.options(max_ongoing_requests=1000, graceful_shutdown_timeout_s=5, ray_actor_options=actor)
    return front_deployment.options(
        num_replicas=config.front_replicas,
        max_ongoing_requests=10_000,
        graceful_shutdown_timeout_s=120,
        ray_actor_options=actor,
    ).bind(plain, admin.bind(plain), keys)


@serve.deployment
class CellAdmin:
    """Owns the desired state and reconciles it. Called by the front."""

    async def __init__(self, config: CellConfig):  # type: ignore[misc]  # Serve awaits it
        log_as_serve_does()
        self._config = config
        self._woken = asyncio.Event()
        await asyncio.to_thread(self._open)
        self._loop = asyncio.create_task(self._work_forever())
        self._beat = time.monotonic()

    def _open(self) -> None:
        app = serve.get_replica_context().app_name
        cluster = ray.get_runtime_context().gcs_address
        me = Holder(f"{private_ray.cluster_id()}/{app}", f"application {app} of the Ray cluster at {cluster}")
        store = Store(self._config.state_uri, self._config.name)
        self._admin = Admin(self._config, store, store.lease(me))
        self._admin.open()
        self._apps = ServeApps(self._config.name)
        failures = Failures()
        self._cell = CellReconciler(self._config, self._admin, self._apps, failures)
        self._rounds = Rounds(self._admin.renew, self._cell.reconcile, failures)

    async def _work_forever(self) -> None:
        """Reconcile every second, and at once after a change; renew the lease."""
        while True:
            await asyncio.to_thread(self._rounds.once)
            self._beat = time.monotonic()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), RECONCILE_S)
            self._woken.clear()

    async def answer(self, call: Call[AnswerT]) -> AnswerT | CellError:
        """The answer, or why there is none: returned, because what a replica raises is logged as its own failure."""
        try:
            if not isinstance(call, Change):
                return self._read(call)
            await self._decided()
            changed = await asyncio.to_thread(self._change, call)
            self._woken.set()
            return changed
        except CellError as error:
            return error
        except Exception:
            log.exception("the cell could not answer %s", type(call).__name__)
            return AdminFailed("The server failed; its log says why.")

    def _read(self, call: Call[Any]) -> Any:
        match call:
            case calls.ListModels(body):
                return [self._cell.entry(name, model) for name, model in self._admin.listed(body).items()]
            case calls.GetAcl(body):
                return self._admin.get_acl(body)
        raise TypeError(f"not a call of the admin: {call}")

    def _change(self, call: Change[Any]) -> Any:
        match call:
            case calls.Publish(body, principal):
                return self._cell.entry(*self._admin.publish(principal, body))
            case calls.Update(body, principal):
                return self._cell.entry(*self._admin.update(principal, body))
            case calls.Unpublish(body, principal):
                return self._cell.entry(*self._admin.unpublish(principal, body))
            case calls.Create(body, principal):
                return self._admin.create(principal, body)
            case calls.SetAcl(body, principal):
                return self._admin.set_acl(principal, body)
        raise TypeError(f"not a change of the cell: {call}")

    async def _decided(self) -> None:
        """After a kill, wait until the lease of the cell's own former process is known to be stale."""
        with contextlib.suppress(TimeoutError):  # the storage does not answer, which the call itself will report
            async with asyncio.timeout(LEASE_S + 2 * RENEW_S):
                while self._admin.undecided:
                    await asyncio.sleep(0.1)

    async def view(self) -> View:
        """What a front shows, and answers for."""
        models = self._admin.state.names
        entries = {name: self._cell.entry(name, model) for name, model in models.items()}
        slices = self._config.slice
        cell = {
            "sax_cell": f"/sax/{self._config.name}",
            "fs_root": self._config.state_uri,
            "admin_acl": self._admin.admin_acl,
            "slices": {
                "kind": str(slices) if slices else "CPU",
                "total": self._cell.slices,
                "in_use": sum(entry["assigned_replicas"] for name, entry in entries.items() if not split(name)[1]),
            },
            "unloading": self._cell.unloading(),
        }
        running = self._cell.seen.apps.items()
        configs = {name: app.config for name, app in running if app.config is not None and name in models}
        return View(cell, entries, configs)

    async def check_health(self) -> None:
        if time.monotonic() - self._beat > 120:
            raise RuntimeError("the cell's reconcile loop has not run for two minutes")

    def __del__(self) -> None:
        if hasattr(self, "_loop"):
            self._loop.cancel()
            self._admin.close()


@serve.deployment
@serve.ingress()
class CellFront:
    """The HTTP API, and the text of all models. Its only state is a view of them, at most half a second old."""

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, config: CellConfig, admin: DeploymentHandle[Any], keys: dict[bytes, str]
    ):
        log_as_serve_does()
        self._config, self._admin = config, admin
        self._keys = principals_from_environment(keys)
        front.admit(self._keys, by_path)
        if not self._keys:
            log.warning(
                "THIS CELL HAS NO API KEYS: everyone who reaches it may publish and unpublish models. "
                "Set PODSLICE_API_KEYS=NAME=KEY,... unless nobody else can reach it"
            )
        self._for_this_machine = await asyncio.to_thread(for_this_machine, self._keys)
        choose_platform(config.model_copy(update={"slice": None}))  # before the models' text imports JAX
        context = serve.get_replica_context()
        others = serve.get_deployment_handle(context.deployment, context.app_name)
        self._models = ModelsInWords((context.replica_id.unique_id, others) if config.front_replicas > 1 else None)
        self._requests = OpenRequests()
        self.view: View | None = None
        self._views = asyncio.create_task(self._look_forever())

    async def look(self) -> None:
        """Update the view, if the admin answers."""
        try:
            view: View = await asyncio.wait_for(self._admin.view.remote(), 30)
            self._models.follow(view.configs)
            self.view = view
        except Exception as error:  # it is restarting; requests are served by the last view
            log.warning("the cell's admin does not answer: %s", error)

    async def _look_forever(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(VIEW_S)

    async def app(self, model: str) -> ASGIApp:
        """See `ModelsInWords.app`."""
        return await self._models.app(model)

    async def limits_used(self, model: str) -> Told | None:
        """See `ModelsInWords.limits_used`. Asked by the other fronts."""
        return self._models.limits_used(model)

    async def ask(self, call: Call[AnswerT]) -> AnswerT:
        """See `Front.ask`."""
        calls.check_nesting(call.body)
        try:
            answer: AnswerT | CellError = await self._admin.answer.remote(call)
        except (RayError, RayServeException) as error:
            log.warning("the cell's admin does not answer: %s", error)
            raise Unavailable("the cell's admin is starting; try again", retry_after_s=2) from error
        if isinstance(answer, CellError):
            raise answer
        if isinstance(call, Change):
            await self.look()  # so that the client's next request sees its own change
        return answer

    def __serve_build_asgi_app__(self) -> ASGIApp:
        origins = self._config.cors_origins
        app = http_app(self._config.name, self, self._keys, self._for_this_machine, origins)
        app.add_middleware(Draining, requests=self._requests, refused=by_path)
        return with_cors(app, origins)

    async def drain(self, timeout_s: float) -> int:
        """See `OpenRequests.drain`. Called by `apps.serving.shutdown` through a handle."""
        return await self._requests.drain(timeout_s)

    def __del__(self) -> None:
        if hasattr(self, "_views"):
            self._views.cancel()
            self._models.close()
