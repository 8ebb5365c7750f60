"""The names and sizes of Saxml's LmCloud test models, which have no weights.

Source: saxml/server/pax/lm/params/lm_cloud.py over paxml/tasks/lm/params/lm_cloud.py. Names of one size differ in the
mesh that Saxml runs them on; here the slice and `tensor_parallel` say that.
"""

from dataclasses import dataclass

PREFIX = "lm_cloud."
SAXML_PREFIX = "saxml.server.pax.lm.params."  # Saxml's own name of a model is its Python path


@dataclass(frozen=True)
class Size:
    """Dimensions of a test model."""

    layers: int
    hidden: int
    heads: int


SMALL = Size(layers=18, hidden=3072, heads=24)
LARGE = Size(layers=96, hidden=12288, heads=96)
MODELS = {
    **{f"LmCloudSpmd2B{suffix}": SMALL for suffix in ("", "Test", "4Test", "8Test", "16Test", "32Test")},
    **{f"LmCloudSpmd175B{suffix}": LARGE for suffix in ("", "Test", "32Test", "64Test", "128Test", "256Test")},
}


def bare_name(model: str) -> str | None:
    """NAME of `lm_cloud.NAME` or of a full Saxml path, whether in MODELS or not; None: `model` has neither form."""
    short = model.removeprefix(SAXML_PREFIX)
    return short.removeprefix(PREFIX) if short.startswith(PREFIX) else None


def unknown(model: str) -> str:
    """Error message for a name that is not in MODELS."""
    return f"model {model!r} is not registered; registered: {', '.join(PREFIX + name for name in MODELS)}"
