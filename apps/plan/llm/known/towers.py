"""Vision towers of public models.

Sources: the defaults of Qwen3_5VisionConfig, Qwen3VLVisionConfig and Mistral3Config in transformers, its
convert_gemma3_weights.py and convert_gemma4_weights.py; Qwen3-VL-4B's is that of its config.json.
"""

from dataclasses import replace

from apps.llm.engine.model.towers.spec import Gemma4Vision, Pixels, PixtralVision, QwenVision, SiglipVision, Tower
from apps.plan.llm.known.decoders import MODELS

_SIGLIP = SiglipVision(
    layers=27,
    width=1152,
    mlp_width=4304,
    heads=16,
    out=0,
    patch=14,
    merge=4,
    side=64,
    eps=1e-6,
    pixels=Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
)
_GEMMA4_SMALL = Gemma4Vision(
    layers=16,
    width=768,
    mlp_width=3072,
    heads=12,
    out=0,
    patch=16,
    merge=3,
    theta=100.0,
    largest=280,
    positions=10240,
    eps=1e-6,
    standardized=False,
    clipped=True,
    pixels=Pixels(mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0)),
)
_GEMMA4_LARGE = replace(
    _GEMMA4_SMALL, layers=27, width=1152, mlp_width=4304, heads=16, standardized=True, clipped=False
)
_QWEN = QwenVision(layers=27, width=1152, mlp_width=4304, heads=16, out=5120, patch=16, frames=2, merge=2, grid=48)
TOWERS: dict[str, Tower] = {
    **{
        f"google/gemma-4-{size}": replace(tower, out=MODELS[f"google/gemma-4-{size}"]["hidden_size"])
        for tower, sizes in ((_GEMMA4_SMALL, ("E2B", "E4B")), (_GEMMA4_LARGE, ("26B-A4B", "31B")))
        for size in sizes
    },
    **{
        f"google/gemma-3-{size}": replace(_SIGLIP, out=MODELS[f"google/gemma-3-{size}"]["hidden_size"])
        for size in ("4b", "12b", "27b")
    },
    "Qwen/Qwen3.5-27B": _QWEN,
    "Qwen/Qwen3-VL-4B": replace(_QWEN, layers=24, width=1024, mlp_width=4096, out=2560, seen_after=(5, 11, 17)),
    "Qwen/Qwen3-VL-8B": replace(_QWEN, out=4096, seen_after=(8, 16, 24)),
    "mistralai/Mistral-Small-3.1-24B-Base-2503": PixtralVision(
        layers=24,
        width=1024,
        mlp_width=4096,
        heads=16,
        out=5120,
        patch=14,
        merge=2,
        activation="gelu",
        eps=1e-5,
        bias=False,
    ),
}
