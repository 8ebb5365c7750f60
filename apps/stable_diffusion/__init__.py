"""Stable Diffusion behind HTTP, as a Ray Serve application.

serve run apps.stable_diffusion:app                       # the demo model
serve run apps.stable_diffusion:build model=PATH          # any other; the fields are StableDiffusionConfig's
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """Import `app` and `build` lazily, so that a script that uses apps.stable_diffusion.engine needs no Ray."""
    if name in ("app", "build"):
        from apps.serving.ingress.direct_ingress import prefer_direct_ingress
        from apps.serving.shutdown import finish_requests_first
        from apps.stable_diffusion.server import build
        from ray_configs.stable_diffusion import StableDiffusionConfig

        prefer_direct_ingress()  # before `serve run` starts Ray
        finish_requests_first()
        return build if name == "build" else build(StableDiffusionConfig.demo())
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
