"""The Serve deployment: one replica is one engine and the HTTP dialects in front of it."""

from typing import Any

from ray import serve

from apps.serving.ingress.api_keys import Principals
from apps.serving.replica import EngineServer, bound
from ray_configs.stable_diffusion import StableDiffusionConfig


def build(config: StableDiffusionConfig) -> serve.Application:
    """The application for one config. `serve run` and Serve's YAML pass their arguments through it.

    Raises:
        ValueError: a slice of several hosts, or one that Ray cannot place.
    """
    if config.slice is not None and config.spans_hosts:
        raise ValueError(
            f"slice {config.slice} has {config.slice.hosts} hosts, and a picture model fits on one: give it a slice of "
            "one host, such as v5e:2x4:8t or v4:2x2x1, and set max_replicas for more of them"
        )
    return bound(StableDiffusionServer, config)


@serve.deployment
@serve.ingress()
class StableDiffusionServer(EngineServer):
    """A replica: a picture engine on this host's devices."""

    def load(self, config: StableDiffusionConfig) -> Any:
        from apps.stable_diffusion.engine.engine import Engine
        from apps.stable_diffusion.pictures import PictureModel
        from apps.stable_diffusion.safety import SafetyChecker

        checker = None if config.safety_checker is None else SafetyChecker(config.safety_checker)
        return PictureModel(config, Engine.load(config), checker)

    def http_app(self, model: Any, keys: Principals) -> Any:
        from apps.stable_diffusion.http.app import http_app

        return http_app(model, keys)
