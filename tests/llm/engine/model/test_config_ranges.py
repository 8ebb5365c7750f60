"""A config whose numbers no model has is refused, naming the field; every published one is taken.

The oracles are transformers' own default configs, and those of the public models that the planner knows.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from apps.arrays.model_folder import CheckpointError
from apps.llm.engine.model.families.config_fields import FIELDS, ROPE
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.quantization_config import format_of
from apps.llm.text import Engine, EngineConfig
from apps.plan.llm import known
from tests.llm.engine import tiny_models

NAN, INF = float("nan"), float("inf")
LLAMA = tiny_models.make("llama3").config.to_dict()
NEVER = (NAN, INF, -INF, 1e308, -7, 10**30, True, "8", [], {}, [NAN])
"""Of no field, whatever it means."""


@pytest.mark.parametrize("name", tiny_models.FAMILIES)
def test_every_family_is_taken(name: str) -> None:
    from_hf_config(tiny_models.make(name).config.to_dict())


def test_public_models_are_taken() -> None:
    assert len(known.MODELS) > 20
    for config in known.MODELS.values():
        from_hf_config(config)


@pytest.mark.parametrize(
    "kind", ["Llama", "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Gemma", "Gemma2"]
)
def test_what_transformers_has_by_default_is_taken(kind: str) -> None:
    from_hf_config(getattr(transformers, f"{kind}Config")().to_dict())


READ_BY_ALL = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "eos_token_id"),
)


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_out_of_range_is_named(field: str) -> None:
    for value in NEVER:
        if FIELDS[field].many and value in ([], {}):
            continue
        with pytest.raises(UnsupportedModel, match=rf"config\.json: {field}\b.* not "):
            from_hf_config(LLAMA | {field: value})
    for value in (0, 1e10 if FIELDS[field].whole else -1e-9):
        if field in READ_BY_ALL and not FIELDS[field].has(value):
            with pytest.raises(UnsupportedModel, match=rf"config\.json: {field}\b"):
                from_hf_config(LLAMA | {field: value})


@pytest.mark.parametrize("where", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("kind", ["linear", "dynamic", "llama3", "yarn", "longrope"])
def test_a_rotary_embedding_out_of_range_is_named(where: str, kind: str) -> None:
    sound: dict[str, Any] = {
        "rope_type": kind,
        "rope_theta": 10000.0,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 8,
        "long_factor": [2.0] * 8,
    }
    others = {name: value for name, value in LLAMA.items() if not name.startswith("rope")}
    from_hf_config(others | {where: sound})
    for field in ROPE:
        for value in (NAN, INF, -1.0, 1e308, "8", True):
            with pytest.raises(UnsupportedModel, match=rf"config\.json: {where}: {field}\b"):
                from_hf_config(others | {where: sound | {field: value}})
    with pytest.raises(UnsupportedModel, match=where):
        from_hf_config(others | {where: 5})


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_size": 2**17, "num_hidden_layers": 2000, "intermediate_size": 2**20},
        {"hidden_size": 66, "head_dim": None},
        {"head_dim": 33},
        {"num_key_value_heads": 3},
        {"num_attention_heads": 1, "num_key_value_heads": 2},
        {"rope_parameters": {"rope_type": "dynamic", "factor": 1e6, "rope_theta": 1e15}, "head_dim": 4,
         "max_position_embeddings": 10**8},
        {"architectures": ["XForSequenceClassification"], "id2label": 5},
    ],
    ids=str,
)  # fmt: skip
def test_numbers_that_do_not_go_together(changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json"):
        from_hf_config(LLAMA | changes)


@pytest.mark.parametrize("changes", [{"num_experts_per_tok": 99}, {"num_experts_per_tok": 0}, {"num_local_experts": 0}])
def test_experts_that_do_not_go_together(changes: dict[str, Any]) -> None:
    mixtral = tiny_models.make("mixtral").config.to_dict()
    with pytest.raises(UnsupportedModel, match=r"num_experts_per_tok is"):
        from_hf_config(mixtral | changes)


def test_ends_that_no_answer_can_have_are_left_out() -> None:
    arch = from_hf_config(LLAMA, {"eos_token_id": [1, LLAMA["vocab_size"], -1]})
    assert arch.eos_token_ids == (1,)
    with pytest.raises(UnsupportedModel, match=r"generation_config\.json: eos_token_id"):
        from_hf_config(LLAMA, {"eos_token_id": [1, NAN]})


@pytest.mark.parametrize(
    "said",
    [
        {"quant_method": "fp8", "weight_block_size": [0, 128]},
        {"quant_method": "fp8", "weight_block_size": [128]},
        {"quant_method": "fp8", "weight_block_size": 128},
        {"quant_method": "fp8", "weight_block_size": [NAN, 1]},
        {"quant_method": "gptq", "bits": NAN},
        {"quant_method": "awq", "version": 3},
        {"quant_method": "compressed-tensors", "config_groups": [1]},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"block_structure": [-1, 1]}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"a": {"weights": {"num_bits": 1e308}}}},
        [1],
        "fp8",
    ],
    ids=str,
)
def test_a_quantization_out_of_range_is_refused(said: Any) -> None:
    with pytest.raises(UnsupportedModel, match=r"config\.json: quantization_config"):
        format_of({"quantization_config": said})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"hidden_size": -1}, UnsupportedModel, "hidden_size must be .* not -1"),
        ({"num_attention_heads": 0}, UnsupportedModel, "num_attention_heads must be"),
        ({"vocab_size": 10**10}, UnsupportedModel, "vocab_size must be"),
        ({"num_hidden_layers": 10**9}, UnsupportedModel, "num_hidden_layers must be"),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": NAN}}, UnsupportedModel, "rope_theta must be"),
        ({"vocab_size": 512}, CheckpointError, r"tensor model\.embed_tokens\.weight has shape .* implies \(512, 64\)"),
        ({"intermediate_size": 128}, CheckpointError, r"tensor model\.layers\.0\.mlp\.\w+_proj\.weight has shape"),
        ({"num_hidden_layers": 3}, CheckpointError, r"tensor model\.layers\.2\.\S+ is missing"),
        ({"vocab_size": 2**24, "hidden_size": 2**17}, (MemoryError, CheckpointError), "GiB|has shape"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_an_engine_does_not_start_with_it(
    changes: dict[str, Any], error: type[Exception], says: str, llama: Path, compile_cache: str, tmp_path: Path
) -> None:
    for file in llama.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    config = json.loads((llama / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | changes))
    settings = tiny_models.SMALL | {"model": str(tmp_path), "compile_cache": compile_cache}
    with pytest.raises(error, match=says):
        Engine.load(EngineConfig(**settings))


@pytest.mark.parametrize("given", ["none", "int8"])
def test_what_to_do_about_weights_that_do_not_fit(
    given: str, llama: Path, compile_cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """int8 is no remedy where it is set. The machine has a byte of memory."""
    monkeypatch.setattr("apps.llm.engine.execute.memory.os.sysconf", lambda name: 1)
    settings = tiny_models.SMALL | {"model": str(llama), "compile_cache": compile_cache, "quantize_weights": given}
    with pytest.raises(MemoryError, match="use a larger one") as refused:
        Engine.load(EngineConfig(**settings))
    assert ("int8" in str(refused.value)) == (given == "none")
