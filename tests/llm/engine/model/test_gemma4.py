"""Gemma 4: layers whose heads differ by kind, on every kind of attention, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.model.split import HeadLayout, Split
from apps.llm.text import Engine, EngineConfig, SamplingParams
from apps.plan.llm import known
from tests.llm.engine import tiny_models
from tests.llm.engine.asking import ids, read
from tests.llm.engine.model.test_models import Stepper, worst_error

KINDS = ("gemma4", "gemma4_moe", "gemma4_e")
MEDIA = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["xla", "pallas"])
@pytest.mark.parametrize("family", KINDS)
def test_other_kinds_of_attention(
    family: str, kind: str, tmp_path: Path, compile_cache: str, interpreted: None
) -> None:
    model = tiny_models.make(family)
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache, attention=kind), model) <= 1e-4


def test_beside_towers(tmp_path: Path, compile_cache: str, caplog: pytest.LogCaptureFixture) -> None:
    """As the hub has it: a vision and an audio tower, and the decoder's tensors below `model.language_model.`."""
    text = tiny_models.make("gemma4")
    vision = transformers.Gemma4VisionConfig(**MEDIA, num_key_value_heads=1, head_dim=16, intermediate_size=16)
    audio = transformers.Gemma4AudioConfig(**MEDIA, subsampling_conv_channels=[4, 4], output_proj_dims=16)
    config = transformers.Gemma4Config(text_config=text.config, vision_config=vision, audio_config=audio)
    model = transformers.Gemma4ForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(text.model.state_dict())
    tiny_models.save(model, tmp_path)
    with caplog.at_level("INFO", logger="podslice"):
        assert worst_error(Stepper(tmp_path, compile_cache), text) <= 1e-4
    assert "only text is served" in caplog.text


@pytest.mark.slow
def test_unified(tmp_path: Path, compile_cache: str) -> None:
    """The 12B's: the same decoder under other names, without towers but for projections of patches and samples."""
    like = tiny_models.make("gemma4")
    text = transformers.Gemma4UnifiedTextConfig(**like.config.to_dict() | {"model_type": "gemma4_unified_text"})
    vision = transformers.Gemma4UnifiedVisionConfig(mm_embed_dim=16, mm_posemb_size=16, output_proj_dims=16)
    config = transformers.Gemma4UnifiedConfig(text_config=text, vision_config=vision, audio_config=None)
    config._attn_implementation = "eager"
    model = transformers.Gemma4UnifiedForConditionalGeneration(config).eval()
    model.model.language_model.load_state_dict(like.model.state_dict())
    tiny_models.save(model, tmp_path)
    assert worst_error(Stepper(tmp_path, compile_cache), like) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", KINDS)
def test_answers_with_reused_prefixes(family: str, tmp_path: Path, compile_cache: str) -> None:
    """A window of two pages: prefixes end at its borders and within it."""
    model = tiny_models.make(family, sliding_window=32)
    tiny_models.save(model, tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    config = EngineConfig(**(tiny_models.SMALL | {"model": str(tmp_path), "compile_cache": compile_cache}))
    engine = Engine.load(config)
    prompt = [2 + place % 300 for place in range(0, 97 * 7, 7)]
    try:
        for length in (33, 48, 64, 65, 97):
            wanted = model.generate(
                torch.tensor([prompt[:length]]),
                max_new_tokens=12,
                min_new_tokens=12,
                do_sample=False,
                eos_token_id=None,
            )[0, length:].tolist()
            greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
            for _ in range(2):
                assert ids(read(engine.submit(prompt[:length], greedy))[0]) == wanted
        stats = engine.stats()
        assert stats.prefix_hit_tokens > 97 and stats.compiles_after_ready == 0
    finally:
        engine.shutdown()


def config(**changes: Any) -> dict[str, Any]:
    """The tiny one's, as the hub would have it."""
    return {"model_type": "gemma4_text"} | tiny_models.SIZES | tiny_models.FAMILIES["gemma4"][1] | changes


def test_files_of_the_hub_and_of_transformers_say_the_same() -> None:
    """transformers writes the heads of layers without a window into `per_layer_config`."""
    written = tiny_models.make("gemma4").config.to_dict()
    assert "per_layer_config" in written and "global_head_dim" not in written
    hub = from_hf_config(config())
    assert from_hf_config(written) == hub
    heads = {(layer.num_heads, layer.num_kv_heads) for layer in hub.attention}
    assert heads == {(8, 4), (8, 2)}
    assert {hub.split(4).heads(*each) for each in heads} == {HeadLayout(4, 2, 1), HeadLayout(4, 2, 2)}
    once = Split(4, repeats_heads=False)
    assert {once.heads(*each) for each in heads} == {HeadLayout(4, 2, 1), HeadLayout(2, 4, 1)}
    beside = {"model_type": "gemma4", "eos_token_id": [1, 106], "text_config": config(eos_token_id=1)}
    assert from_hf_config(beside).eos_token_ids == (1, 106)
    separate = from_hf_config(config(attention_k_eq_v=False))
    full = next(layer for layer in separate.attention if layer.window is None)
    assert (full.num_kv_heads, full.kv_projections) == (4, 2)


@pytest.mark.parametrize("name", [name for name in known.MODELS if "gemma-4" in name])
def test_published_sizes_are_those_of_transformers(name: str) -> None:
    with torch.device("meta"):
        model = transformers.Gemma4ForCausalLM(transformers.Gemma4TextConfig(**known.MODELS[name]))
    arch = from_hf_config(known.MODELS[name])
    assert arch.num_params == pytest.approx(sum(weight.numel() for weight in model.parameters()), rel=1e-4)


UNSUPPORTED: dict[str, dict[str, Any]] = {
    "use_bidirectional_attention 'all'": {"use_bidirectional_attention": "all"},
    "rope_type 'yarn' is not supported for Gemma 4": {"rope_parameters": {"full_attention": {"rope_type": "yarn"}}},
    "layers of one kind differ": {"per_layer_config": {"1": {"head_dim": 64}, "3": {"head_dim": 32}}},
    "per_layer_config with hidden_size": {"per_layer_config": {"full_attention": {"hidden_size": 32}}},
    "layer_types chunked_attention": {"layer_types": ["chunked_attention"] * 4},
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_what_cannot_be_computed_is_refused(message: str) -> None:
    with pytest.raises(UnsupportedModel, match=message):
        from_hf_config(config(**UNSUPPORTED[message]))
