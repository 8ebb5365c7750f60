"""AUTOMATIC1111's names of ways to enlarge latents: `latent_upscale_modes` of its modules/shared_items.py."""

from apps.serving.errors import RequestError, shortened
from apps.stable_diffusion.engine.request import Interpolation, SecondPass

UPSCALERS: dict[str, tuple[Interpolation, bool]] = {
    "Latent": ("bilinear", False),
    "Latent (antialiased)": ("bilinear", True),
    "Latent (bicubic)": ("bicubic", False),
    "Latent (bicubic antialiased)": ("bicubic", True),
    "Latent (nearest)": ("nearest", False),
    "Latent (nearest-exact)": ("nearest-exact", False),
}
"""Name -> interpolation, antialiasing."""


def upscaler_named(name: str) -> tuple[Interpolation, bool]:
    """Raises RequestError for one that is not offered."""
    found = {known.lower(): how for known, how in UPSCALERS.items()}.get(name.lower())
    if found is None:
        raise RequestError(
            "hr_upscaler", f"hr_upscaler {shortened(name, 40)!r} is not offered; use one of: {', '.join(UPSCALERS)}"
        )
    return found


def upscaler_of(second: SecondPass) -> str:
    how = second.interpolation, second.antialias
    return next((name for name, known in UPSCALERS.items() if known == how), second.interpolation)
