"""Stable Diffusion behind HTTP, as a Ray Serve application.

serve run apps.stable_diffusion:app                       # the demo model
serve run apps.stable_diffusion:build model=PATH          # any other; the fields are StableDiffusionConfig's
"""

from typing import Any


def __getattr__(name: str) -> Any:
    """`app` and `build`, imported when asked for: a script that uses apps.stable_diffusion.engine needs no Ray."""
    if name in ("app", "build"):
        from apps.stable_diffusion import application

        return getattr(application, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
