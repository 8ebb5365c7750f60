"""The Serve deployment: one replica is one engine and the HTTP faces in front of it."""

import asyncio
import gc
import logging

from fastapi import FastAPI
from ray import serve

from apps.llm.engine_model import EngineModel
from apps.llm.http.app import http_app
from apps.llm.slice import SliceHosts
from apps.serving.ingress.api_keys import OPEN, Principals, principals, principals_from_environment
from apps.serving.replica_options import choose_platform, options, spans_hosts
from ray_configs.llm import LLMConfig


def deployment(config: LLMConfig) -> serve.Application:
    """Binds LLMServer with the deployment options that follow from the config."""
    if spans_hosts(config) and config.slice.ray_refusal is not None:
        raise ValueError(f"slice {config.slice} cannot be a replica's: {config.slice.ray_refusal}")
    # Keys travel as digests: no pickle, log or process listing of the cluster holds one.
    keys = principals(key.get_secret_value() for key in config.api_keys)
    return LLMServer.options(**options(config)).bind(config.model_copy(update={"api_keys": ()}), keys)


@serve.deployment
@serve.ingress()
class LLMServer:
    """A replica. Serve makes it, asks `check_health` every few seconds, and deletes it when its requests are done."""

    async def __init__(self, config: LLMConfig, keys: Principals = OPEN, keys_of_environment: bool = True):
        """`keys_of_environment` False: those of PODSLICE_API_KEYS are for what stands in front of this replica."""
        log = logging.getLogger("podslice")
        log.handlers, log.propagate = logging.getLogger("ray.serve").handlers, False
        log.setLevel(logging.INFO)
        choose_platform(config)
        self._keys = principals_from_environment(keys) if keys_of_environment else keys
        self._hosts: SliceHosts | None = None
        # In a thread: Serve's control calls share this event loop.
        self._model = await asyncio.to_thread(self._load, config)
        # What exists now lives as long as the replica: the garbage collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        self._reports = asyncio.create_task(self._model.report_forever())

    def _load(self, config: LLMConfig) -> EngineModel:
        from apps.llm.engine import Engine  # and JAX, which reads the environment that choose_platform set

        if spans_hosts(config):
            self._hosts = SliceHosts.start(config)
        try:
            engine = Engine.load(config, self._hosts)
        except BaseException:
            if self._hosts is not None:
                self._hosts.close()
            raise
        return EngineModel(config.served_name, engine, config.health_step_deadline_s)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return http_app({self._model.name: self._model}, self._keys)

    async def check_health(self) -> None:
        """Raises when the engine's loop or a host of its slice is dead or stuck; the third time Serve replaces it."""
        if self._hosts is not None:
            await self._hosts.check()
        self._model.check()

    def __del__(self) -> None:
        if hasattr(self, "_reports"):
            self._reports.cancel()
            self._model.shutdown()
