"""A plan counts what images take of each chip."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
import transformers
from jax.sharding import Mesh

from apps.llm.engine.executor_protocol import step_shapes
from apps.llm.engine.images.encoding import EncodingSizes
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.families.towers import tower_of
from apps.plan.llm import architectures, known
from apps.plan.llm.program import StepPrograms
from ray_configs.llm import EngineConfig

MODEL = "Qwen/Qwen3.5-27B"

SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 896,
    "patch_size": 14,
}
"""Of Gemma 3, in transformers' convert_gemma3_weights.py."""
GEMMA4_LARGE = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 72,
    "standardize": True,
}
GEMMA4_SMALL = {"use_clipped_linears": True}
"""Of Gemma 4's larger and smaller models, in its convert_gemma4_weights.py."""


def config(**changes: Any) -> EngineConfig:
    return EngineConfig(**{"model": MODEL, "max_model_len": 4096, "image_tokens": 8192} | changes)


def test_the_known_towers_are_those_of_transformers() -> None:
    vision = transformers.Qwen3_5Config().vision_config.to_dict() | {"out_hidden_size": 5120}
    text = {"hidden_size": 5120}
    found = tower_of({"model_type": "qwen3_5", "vision_config": vision, "text_config": text}, {})
    assert known.TOWERS[MODEL] == found == architectures.find(config()).arch.tower
    qwen = "Qwen/Qwen3-VL-8B-Instruct"
    vision = transformers.Qwen3VLConfig().vision_config.to_dict() | {"out_hidden_size": 4096}
    text = {"hidden_size": 4096}
    found = tower_of({"model_type": "qwen3_vl", "vision_config": vision, "text_config": text}, {})
    assert known.TOWERS["Qwen/Qwen3-VL-8B"] == found == architectures.find(config(model=qwen)).arch.tower
    mistral = "mistralai/Mistral-Small-3.1-24B-Base-2503"
    found = tower_of(transformers.Mistral3Config().to_dict(), {})
    assert known.TOWERS[mistral] == found == architectures.find(config(model=mistral)).arch.tower
    gemma = "google/gemma-3-27b"
    found = tower_of({"model_type": "gemma3", "vision_config": SO400M, "text_config": {"hidden_size": 5376}}, {})
    planned = architectures.find(config(model=gemma))
    gemma3 = planned.arch
    assert known.TOWERS[gemma] == found == gemma3.tower and gemma3.sees_both_ways
    assert found is not None and found.every == (16, 16)
    for size, vision in (("31B", GEMMA4_LARGE), ("E4B", GEMMA4_SMALL)):
        text = {"hidden_size": known.MODELS[f"google/gemma-4-{size}"]["hidden_size"]}
        vision = transformers.Gemma4VisionConfig(**vision).to_dict()
        found = tower_of({"model_type": "gemma4", "vision_config": vision, "text_config": text}, {})
        planned = architectures.find(config(model=f"google/gemma-4-{size}"))
        assert known.TOWERS[f"google/gemma-4-{size}"] == found == planned.arch.tower
        assert planned.arch.sees_both_ways == (size == "31B")
    with pytest.raises(ValueError, match="max_image_tokens is 255"):
        EncodingSizes.of(config(model=gemma, max_image_tokens=255), gemma3)


def test_bytes() -> None:
    """The tower's weights, in bfloat16, and a vector for each token that is kept."""
    planned = architectures.find(config())
    mesh = Mesh(np.array(jax.devices()[:1]), ("tensor",))
    shapes = tuple(step_shapes(planned.config, 4096))
    programs = StepPrograms(
        planned.config, replace(planned.arch.only([0, 3]), tower=planned.arch.tower), mesh, shapes, 9
    )
    weights = 2 * planned.arch.tower.num_params
    kept = 8192 * 5120 * 2
    assert weights + kept < programs.image_bytes() < 1.02 * weights + kept + 2**30
    blind = replace(programs, arch=replace(programs.arch, tower=None))
    assert blind.image_bytes() == 0
    assert {key[0] for key in programs._specs} - {key[0] for key in blind._specs} == {"images", "encode"}


def test_a_model_without_a_known_tower_is_refused() -> None:
    with pytest.raises(ValueError, match="image_tokens: the plan does not know the vision tower of Qwen/Qwen3-8B"):
        architectures.find(config(model="Qwen/Qwen3-8B"))
    assert from_hf_config(known.MODELS["Qwen/Qwen3-8B"]).tower is None
