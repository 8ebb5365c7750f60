"""The Serve deployment: one replica is one engine and the HTTP faces in front of it."""

import asyncio
import gc
import logging
from typing import Any

from ray import serve

from apps.serving.ingress.api_keys import OPEN, Principals, principals, principals_from_environment
from apps.serving.replica_options import choose_platform, options, spans_hosts
from ray_configs.stable_diffusion import StableDiffusionConfig


def deployment(config: StableDiffusionConfig) -> serve.Application:
    """Binds StableDiffusionServer with the deployment options that follow from the config.

    Raises:
        ValueError: a slice of several hosts, or one that Ray can't place.
    """
    if spans_hosts(config):
        raise ValueError(
            f"slice {config.slice} has {config.slice.hosts} hosts, and a picture model fits on one: give it a slice of "
            "one host, such as v5e:2x4:8t or v4:2x2x1, and more of them with max_replicas"
        )
    # Keys travel as digests: no pickle, log or process listing of the cluster holds one.
    keys = principals(key.get_secret_value() for key in config.api_keys)
    return StableDiffusionServer.options(**options(config)).bind(config.model_copy(update={"api_keys": ()}), keys)


@serve.deployment
@serve.ingress()
class StableDiffusionServer:
    """A replica. Serve makes it, asks `check_health` every few seconds, and deletes it when its requests are done."""

    async def __init__(self, config: StableDiffusionConfig, keys: Principals = OPEN):
        log = logging.getLogger("podslice")
        log.handlers, log.propagate = logging.getLogger("ray.serve").handlers, False
        log.setLevel(logging.INFO)
        choose_platform(config)
        self._keys = principals_from_environment(keys)
        # In a thread: Serve's control calls share this event loop.
        self._model = await asyncio.to_thread(_load, config)
        # What exists now lives as long as the replica: the garbage collector need not walk it again and again.
        gc.collect()
        gc.freeze()
        self._reports = asyncio.create_task(self._model.report_forever())

    def __serve_build_asgi_app__(self) -> Any:
        from apps.stable_diffusion.http.app import http_app

        return http_app(self._model, self._keys)

    async def check_health(self) -> None:
        """Raises when the engine's loop is dead or stuck; the third time Serve replaces the replica."""
        self._model.check()

    def __del__(self) -> None:
        if hasattr(self, "_reports"):
            self._reports.cancel()
            self._model.shutdown()


def _load(config: StableDiffusionConfig) -> Any:
    from apps.stable_diffusion.engine.engine import Engine
    from apps.stable_diffusion.pictures import PictureModel

    return PictureModel(config, Engine.load(config))
