"""What a config.json leaves out: the oracle is transformers' config class, which completes the same file."""

import copy
import json
from typing import Any

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families.hugging_face import FAMILIES, from_hf_config
from apps.llm.engine.model.rope import UnsupportedModel
from tests.llm.engine import tiny_models

UNREAD = {
    *("model_type", "transformers_version", "_name_or_path", "label2id", "dtype", "initializer_range", "use_cache"),
    *("output_hidden_states", "output_attentions", "return_dict", "chunk_size_feed_forward", "is_encoder_decoder"),
    *("problem_type", "attention_dropout", "pad_token_id", "bos_token_id", "pretraining_tp", "resid_pdrop"),
    *("embd_pdrop", "output_router_logits", "router_aux_loss_coef", "router_jitter_noise"),
}
"""Of the config classes' fields, those that no decoder asks for."""
ROPES: dict[str, dict[str, Any]] = {
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 4.0},
    "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "yarn": {"factor": 4.0},
    "longrope": {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
}


def as_json(config: Any) -> Any:
    return json.loads(json.dumps(config))


def said(config: dict[str, Any]) -> Architecture | str:
    try:
        return from_hf_config(config)
    except UnsupportedModel as refused:
        return str(refused)


def completed(config: dict[str, Any]) -> dict[str, Any] | None:
    """The config with everything that transformers takes for granted; None if it refuses the config."""
    try:
        return as_json(CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config)).to_dict())
    except Exception:
        return None


def full(name: str, **changes: Any) -> dict[str, Any]:
    return as_json(tiny_models.config_of(name, **changes).to_dict())


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_of_nothing_but_its_model_type(family: str) -> None:
    config = {"model_type": family}
    theirs = completed(config)
    assert theirs is not None and isinstance(from_hf_config(config), Architecture)
    assert from_hf_config(config) == from_hf_config(theirs)


@pytest.mark.parametrize("name", tiny_models.FAMILIES)
def test_every_field_may_be_left_out(name: str) -> None:
    config = full(name)
    inside = config.get("text_config", config)
    compared = 0
    for field in inside.keys() - UNREAD:
        without = {other: value for other, value in inside.items() if other != field}
        without = {**config, "text_config": without} if "text_config" in config else without
        theirs = completed(without)
        if theirs is not None:
            assert said(without) == said(theirs), field
            compared += isinstance(said(without), Architecture)
    assert compared > 12


@pytest.mark.parametrize("name", tiny_models.FAMILIES)
def test_a_config_as_save_pretrained_writes_it(name: str) -> None:
    config = full(name)
    written = CONFIG_MAPPING[config["model_type"]].from_dict(copy.deepcopy(config)).to_diff_dict()
    assert from_hf_config(as_json(written)) == from_hf_config(config)


@pytest.mark.parametrize("name", ["llama3", "mistral", "qwen2", "qwen3_moe", "phi3", "gpt_oss", "gemma2"])
@pytest.mark.parametrize("kind", ROPES)
def test_a_rope_scaling_is_read_as_transformers_does(name: str, kind: str) -> None:
    """In files of before and after transformers 5, or added to one by hand; with and without its optional fields."""
    config = full(name, head_dim=16)
    del config["rope_parameters"]
    compared = 0
    for key in ("rope_type", "type"):
        for inside in ({}, {"original_max_position_embeddings": 64}, {"rope_theta": 2e5}):
            for beside in ({}, {"rope_theta": 5e5}, {"original_max_position_embeddings": 128}):
                for place in ("rope_scaling", "rope_parameters"):
                    scaling = {place: {key: kind, **ROPES[kind], **inside}}
                    theirs = completed(config | beside | scaling)
                    if theirs is not None:
                        assert said(config | beside | scaling) == said(theirs), (beside, scaling)
                        compared += 1
    assert compared == 36 or name == "phi3"


QWEN3 = {"model_type": "qwen3", "max_position_embeddings": 40960, "rope_theta": 1e6}
CARD = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("config", "context"),
    [
        (QWEN3, 40960),
        (QWEN3 | {"rope_scaling": CARD}, 131_072),
        (QWEN3 | {"rope_parameters": {"rope_type": "default", "rope_theta": 1e6}, "rope_scaling": CARD}, 131_072),
        (QWEN3 | {"rope_parameters": CARD | {"rope_theta": 1e6}}, 131_072),
        (QWEN3 | {"rope_scaling": {"type": "yarn", "factor": 4.0}}, 163_840),
        (QWEN3 | {"rope_scaling": {"type": "linear", "factor": 2.0}}, 81920),
        (QWEN3 | {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 81920),
        ({"model_type": "gpt_oss"}, 131_072),
        ({"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}, 131_072),
        (
            {"model_type": "llama", "max_position_embeddings": 131_072}
            | {"rope_scaling": tiny_models.LLAMA3_ROPE | {"factor": 32.0, "original_max_position_embeddings": 8192}},
            131_072,
        ),
    ],
    ids=str,
)
def test_how_far_a_context_is_stretched(config: dict[str, Any], context: int) -> None:
    """The lengths are those of vLLM, and of the cards: Qwen3's says 131,072 for factor 4, with the positions as is."""
    arch = from_hf_config(config)
    assert arch.max_position == context
    rope = next(layer.rope for layer in arch.attention if layer.window is None)
    assert rope is not None and rope.theta in (1e6, 150_000.0, 500_000.0)


def test_a_window_within_a_stretched_context() -> None:
    config = QWEN3 | {"use_sliding_window": True, "sliding_window": 50_000, "max_window_layers": 2}
    stretched = from_hf_config(config | {"rope_scaling": CARD})
    assert {layer.window for layer in from_hf_config(config).attention} == {None}
    assert {layer.window for layer in stretched.attention} == {None, 50_000}
