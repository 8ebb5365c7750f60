"""Reads a vision tower from a checkpoint's config.json, and how images become its input from its preprocessor's.

Sources: Qwen3_5VisionConfig, Qwen3VLVisionConfig, Qwen2_5_VLVisionConfig, PixtralVisionConfig, Mistral3Config,
SiglipVisionConfig, Gemma3Config, Gemma4VisionConfig and their image processors in transformers.
"""

from collections.abc import Callable, Mapping
from typing import Any

from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.model.towers.spec import (
    Gemma4Vision,
    Pixels,
    PixtralVision,
    QwenVision,
    SiglipVision,
    Tower,
    WindowedVision,
)

QWEN3_VL = "qwen3_vl", "qwen3_vl_moe"
SEEING = "qwen3_5", "qwen3_5_moe", *QWEN3_VL, "qwen2_5_vl", "mistral3", "gemma3", "gemma4"
"""Families whose towers are known."""
CLIP, SIGLIP = Pixels(), Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
PLAIN = Pixels(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
"""What image processors do where their files say nothing: Gemma 3's are SigLIP's, Gemma 4's do nothing but rescale."""
Need = Callable[..., int]
"""A field of the tower's config, a positive number."""


def tower_of(config: Mapping[str, Any], processor: Mapping[str, Any]) -> Tower | None:
    """The tower that a config.json describes; None if there is none, or one of a family whose towers are not known.

    Args:
        processor: of preprocessor_config.json.

    Raises:
        UnsupportedModel: a field is missing, or has a value that is not supported.
    """
    family, vision = config.get("model_type"), config.get("vision_config")
    if family not in SEEING or not vision:
        return None

    def need(name: str, default: int | None = None) -> int:
        value = vision.get(name, default)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if not isinstance(value, int) or value <= 0:
            raise UnsupportedModel(f"config.json: vision_config.{name} must be a positive number, not {value!r}")
        return value

    describe = {"mistral3": _pixtral, "qwen2_5_vl": _windowed, "gemma3": _siglip, "gemma4": _gemma4}.get(family, _qwen)
    return describe(config, vision, processor, need)


def _qwen(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any], need: Need) -> Tower:
    activation = vision.get("hidden_act", "gelu_pytorch_tanh")
    if activation != "gelu_pytorch_tanh":
        raise UnsupportedModel(f"config.json: vision_config.hidden_act {activation!r} is not supported")
    grid = need("num_position_embeddings", 2304)
    if (side := round(grid**0.5)) ** 2 != grid:
        raise UnsupportedModel(f"config.json: vision_config.num_position_embeddings {grid} is no square")
    layers = need("depth", 27)
    seen_after = vision.get("deepstack_visual_indexes", (8, 16, 24)) if config["model_type"] in QWEN3_VL else ()
    if sorted(set(seen_after)) != list(seen_after) or not all(0 <= layer < layers for layer in seen_after):
        said = f"vision_config.deepstack_visual_indexes {list(seen_after)}"
        raise UnsupportedModel(f"config.json: {said} are not ascending numbers of {layers} layers")
    return QwenVision(
        layers=layers,
        seen_after=tuple(seen_after),
        mlp_width=need("intermediate_size", 4304),
        **_heads(need, 1152, "num_heads"),
        out=_out(config, need),
        patch=need("patch_size", 16),
        frames=need("temporal_patch_size", 2),
        merge=need("spatial_merge_size", 2),
        grid=side,
        channels=need("in_channels", 3),
        theta=_theta(vision),
        pixels=_pixels(processor),
    )


def _windowed(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any], need: Need) -> Tower:
    if (activation := vision.get("hidden_act", "silu")) != "silu":
        raise UnsupportedModel(f"config.json: vision_config.hidden_act {activation!r} is not supported")
    patch, merge = need("patch_size", 14), need("spatial_merge_size", 2)
    return WindowedVision(
        layers=need("depth", 32),
        mlp_width=need("intermediate_size", 3420),
        **_heads(need, 3584, "num_heads"),
        out=_out(config, need),
        patch=patch,
        frames=need("temporal_patch_size", 2),
        merge=merge,
        window=need("window_size", 112) // merge // patch * merge,
        whole=tuple(vision.get("fullatt_block_indexes", (7, 15, 23, 31))),
        channels=need("in_channels", need("in_chans", 3)),
        theta=_theta(vision),
        pixels=_pixels(processor),
    )


def _out(config: Mapping[str, Any], need: Need) -> int:
    """Numbers of a token. Raises UnsupportedModel if the decoder has others."""
    out = need("out_hidden_size", 3584)
    if out != (hidden := (config.get("text_config") or config).get("hidden_size", out)):
        raise UnsupportedModel(f"config.json: vision_config.out_hidden_size {out} is not the decoder's {hidden}")
    return out


def _pixtral(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any], need: Need) -> Tower:
    activation, projector = vision.get("hidden_act", "gelu"), config.get("projector_hidden_act", "gelu")
    if activation not in ("gelu", "silu") or projector != "gelu":
        said = f"vision_config.hidden_act {activation!r} and projector_hidden_act {projector!r}"
        raise UnsupportedModel(f"config.json: {said} are not supported: gelu or silu, and gelu")
    if (layer := config.get("vision_feature_layer", -1)) != -1:
        raise UnsupportedModel(f"config.json: vision_feature_layer {layer!r} is not supported: -1")
    text = {"hidden_size": 5120, "rms_norm_eps": 1e-5} | (config.get("text_config") or {})
    return PixtralVision(
        layers=need("num_hidden_layers", 24),
        mlp_width=need("intermediate_size", 4096),
        **_heads(need, 1024, "num_attention_heads"),
        out=text["hidden_size"],
        patch=need("patch_size", 14),
        merge=config.get("spatial_merge_size", 2),
        channels=need("num_channels", 3),
        theta=_theta(vision),
        activation=activation,
        eps=text["rms_norm_eps"],
        bias=bool(config.get("multimodal_projector_bias", False)),
        pixels=_pixels(processor),
    )


def _siglip(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any], need: Need) -> Tower:
    if (activation := vision.get("hidden_act", "gelu_pytorch_tanh")) != "gelu_pytorch_tanh":
        raise UnsupportedModel(f"config.json: vision_config.hidden_act {activation!r} is not supported")
    if processor.get("do_pan_and_scan"):
        raise UnsupportedModel("preprocessor_config.json: do_pan_and_scan is not supported: set it to false")
    patch, size, tokens = need("patch_size", 16), need("image_size", 224), config.get("mm_tokens_per_image", 256)
    side, row = size // patch, round(tokens**0.5)
    if size % patch or row**2 != tokens or side % row:
        said = f"mm_tokens_per_image {tokens} and vision_config.image_size {size} with patch_size {patch}"
        raise UnsupportedModel(f"config.json: {said} are not supported: patches do not pool to a square of tokens")
    return SiglipVision(
        layers=need("num_hidden_layers", 12),
        mlp_width=need("intermediate_size", 3072),
        **_heads(need, 768, "num_attention_heads", 12),
        out=(config.get("text_config") or {}).get("hidden_size", 2304),
        patch=patch,
        merge=side // row,
        channels=need("num_channels", 3),
        side=side,
        eps=vision.get("layer_norm_eps", 1e-6),
        pixels=_pixels(processor, SIGLIP),
    )


def _gemma4(config: Mapping[str, Any], vision: Mapping[str, Any], processor: Mapping[str, Any], need: Need) -> Tower:
    sizes = _heads(need, 768, "num_attention_heads", 12)
    heads, head_dim = sizes["heads"], sizes["width"] // sizes["heads"]
    rope = (vision.get("rope_parameters") or {}).get("rope_type", "axial")
    known = {
        "hidden_activation": ("gelu_pytorch_tanh",),
        "attention_bias": (False, None),
        "num_key_value_heads": (heads,),
        "head_dim": (head_dim,),
    }
    defaults = {"hidden_activation": "gelu_pytorch_tanh", "num_key_value_heads": 12, "head_dim": 64}
    said = {name: vision.get(name, defaults.get(name)) for name in known} | {"rope_type": rope}
    for name, values in (known | {"rope_type": ("axial", "default")}).items():
        if said[name] not in values:
            wanted = " or ".join(map(repr, values))
            raise UnsupportedModel(f"config.json: vision_config.{name} {said[name]!r} is not supported: {wanted}")
    return Gemma4Vision(
        layers=need("num_hidden_layers", 16),
        mlp_width=need("intermediate_size", 3072),
        **sizes,
        out=(config.get("text_config") or {}).get("hidden_size", 2304),
        patch=need("patch_size", 16),
        merge=need("pooling_kernel_size", 3),
        theta=_theta(vision, 100.0),
        largest=processor.get("max_soft_tokens") or 280,
        positions=need("position_embedding_size", 10240),
        eps=vision.get("rms_norm_eps", 1e-6),
        standardized=bool(vision.get("standardize", False)),
        clipped=bool(vision.get("use_clipped_linears", False)),
        pixels=_pixels({"do_normalize": False} | dict(processor), PLAIN),
    )


def _heads(need: Need, width: int, name: str, heads: int = 16) -> dict[str, int]:
    width, heads = need("hidden_size", width), need(name, heads)
    if width % heads or width // heads % 4:
        raise UnsupportedModel(f"config.json: vision_config.hidden_size {width} does not split into {heads} heads")
    return {"width": width, "heads": heads}


def _theta(vision: Mapping[str, Any], default: float = 10000.0) -> float:
    return float((vision.get("rope_parameters") or {}).get("rope_theta") or vision.get("rope_theta") or default)


def _pixels(processor: Mapping[str, Any], known: Pixels = CLIP) -> Pixels:
    factor = processor.get("rescale_factor", known.factor) if processor.get("do_rescale", True) else 1.0
    if not processor.get("do_normalize", True):
        return Pixels(factor, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
    mean, std = processor.get("image_mean", known.mean), processor.get("image_std", known.std)
    return Pixels(factor, tuple(mean), tuple(std))
