"""Reads a vision tower from a checkpoint's config.json, and how images become its input from its preprocessor's.

Sources: Qwen3_5VisionConfig and Qwen2VLImageProcessor in transformers.
"""

from collections.abc import Mapping
from typing import Any

from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.model.towers.spec import Pixels, Tower

QWEN = "qwen3_5", "qwen3_5_moe"


def tower_of(config: Mapping[str, Any], processor: Mapping[str, Any]) -> Tower | None:
    """The tower that a config.json describes; None if there is none, or one of a family whose towers are not known.

    Args:
        processor: of preprocessor_config.json.

    Raises:
        UnsupportedModel: a field is missing, or has a value that is not supported.
    """
    vision = config.get("vision_config")
    if config.get("model_type") not in QWEN or not vision:
        return None
    activation = vision.get("hidden_act", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedModel(f"config.json: vision_config.hidden_act {activation!r} is not supported")

    def need(name: str, default: int | None = None) -> int:
        value = vision.get(name, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if not isinstance(value, int) or value <= 0:
            raise UnsupportedModel(f"config.json: vision_config.{name} must be a positive number, not {value!r}")
        return value

    grid = need("num_position_embeddings", 2304)
    if (side := round(grid**0.5)) ** 2 != grid:
        raise UnsupportedModel(f"config.json: vision_config.num_position_embeddings {grid} is no square")
    width, heads = need("hidden_size", 1152), need("num_heads", 16)
    if width % heads or width // heads % 4:
        raise UnsupportedModel(f"config.json: vision_config.hidden_size {width} does not split into {heads} heads")
    text = config.get("text_config") or {}
    out = need("out_hidden_size", 3584)
    if out != text.get("hidden_size", out):
        raise UnsupportedModel(
            f"config.json: vision_config.out_hidden_size {out} is not text_config.hidden_size {text['hidden_size']}"
        )
    return Tower(
        layers=need("depth", 27),
        width=width,
        mlp_width=need("intermediate_size", 4304),
        heads=heads,
        out=out,
        patch=need("patch_size", 16),
        frames=need("temporal_patch_size", 2),
        merge=need("spatial_merge_size", 2),
        grid=side,
        channels=need("in_channels", 3),
        theta=(vision.get("rope_parameters") or {}).get("rope_theta", 10000.0),
        pixels=_pixels(processor),
    )


def _pixels(processor: Mapping[str, Any]) -> Pixels:
    known = Pixels()
    factor = processor.get("rescale_factor", known.factor) if processor.get("do_rescale", True) else 1.0
    if not processor.get("do_normalize", True):
        return Pixels(factor, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mean, std = processor.get("image_mean", known.mean), processor.get("image_std", known.std)
    return Pixels(factor, tuple(mean), tuple(std))
