"""A model split over four devices: each reads its own rows, and the answer is the one that a single device gives."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.split import HeadLayout
from tests.llm.engine import tiny_models

pytestmark = pytest.mark.slow


@cache
def loaded(folder: Path, kind: str, *expert_parallel: str) -> dict:
    script = Path(__file__).with_name("sharded_load.py")
    found = subprocess.run(
        [sys.executable, str(script), str(folder), kind, *expert_parallel],
        env=tiny_models.environment(XLA_FLAGS=tiny_models.xla_flags(4)),
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_the_same_logits(llama: Path, kind: str) -> None:
    assert loaded(llama, kind)["error"] < (1e-5 if kind == "float32" else 1e-2)


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_the_same_logits_of_experts(kind: str, tmp_path: Path) -> None:
    """Two of the eight experts on each device, and a fourth of the one that every token takes."""
    tiny_models.save(tiny_models.make("qwen2_moe", num_attention_heads=8), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    found = loaded(tmp_path, kind)
    assert found["error"] < (1e-5 if kind == "float32" else 1e-2)
    rows = {name: count for name, count in found["rows"].items() if ".layers.0.mlp.experts." in name}
    assert set(rows.values()) == {32, 64} and len(rows) == 3 * 8, "each expert's rows once, over all devices"


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_the_same_logits_of_packed_experts_and_sinks(kind: str, tmp_path: Path) -> None:
    tiny_models.save(tiny_models.make("gpt_oss", num_attention_heads=8), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    assert loaded(tmp_path, kind)["error"] < (1e-5 if kind == "float32" else 1e-2)


@pytest.mark.parametrize(
    ("family", "kind"), [("gemma4", "float32"), ("gemma4", "int8"), ("gemma4_moe", "int8"), ("gemma4_e", "int8")]
)
def test_the_same_logits_where_heads_differ_by_layer(family: str, kind: str, tmp_path: Path) -> None:
    """Four heads of keys, or two of which each device has a copy and which give the values too."""
    tiny_models.save(tiny_models.make(family), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    found = loaded(tmp_path, kind)
    assert found["error"] < (1e-5 if kind == "float32" else 1e-2)
    keys = [found["rows"][f"model.layers.{layer}.self_attn.k_proj.weight"] for layer in (0, 1)]
    assert keys == [4 * 16, 4 * 32], "one head for each device"
    experts = {name: rows for name, rows in found["rows"].items() if ".layers.0.experts." in name}
    assert set(experts.values()) == ({8 * 64} if family == "gemma4_moe" else set()), "each expert's rows once"


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_the_same_logits_of_experts_split_by_width(kind: str, tmp_path: Path) -> None:
    """Four of the eight experts on each half of the devices, and half of their width on each device; with biases."""
    tiny_models.save(tiny_models.make("gpt_oss", num_attention_heads=8), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    found = loaded(tmp_path, kind, "2")
    assert found["error"] < (1e-5 if kind == "float32" else 1e-2)
    hidden, width = tiny_models.SIZES["hidden_size"], tiny_models.SIZES["intermediate_size"]
    assert found["shards"]["experts_in"] == [4 * width, hidden]
    assert found["shards"]["experts_out"] == [4 * hidden, width // 2]


def test_the_same_logits_of_experts_that_the_devices_do_not_divide(tmp_path: Path) -> None:
    sizes = {"num_experts": 6, "moe_intermediate_size": 288}
    tiny_models.save(tiny_models.make("qwen2_moe", num_attention_heads=8, **sizes), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    found = loaded(tmp_path, "float32")
    assert found["error"] < 1e-5
    assert found["shards"]["experts_out"] == [3 * 64, 256], "three for two devices: half of 288, filled up"


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_the_same_logits_of_linear_attention(kind: str, tmp_path: Path) -> None:
    """Each device has a key head, its value heads, and what belongs to them."""
    sizes = {"linear_num_key_heads": 4, "linear_num_value_heads": 8}
    tiny_models.save(tiny_models.make("qwen3_5", **sizes), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    found = loaded(tmp_path, kind)
    assert found["error"] < (1e-5 if kind == "float32" else 1e-2)
    of_layer = {name: rows for name, rows in found["rows"].items() if ".layers.0.linear_attn." in name}
    own = {name.split("linear_attn.")[1]: rows for name, rows in of_layer.items()}
    assert own["in_proj_qkv.weight"] == own["conv1d.weight"] == 4 * 2 * 16 + 8 * 24, "each row once, over all devices"
    assert own["in_proj_z.weight"] == 8 * 24 and own["in_proj_b.weight"] == own["A_log"] == 8


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_the_same_logits_of_gated_attention(kind: str, tmp_path: Path) -> None:
    """Each device's heads have their gates there."""
    tiny_models.save(tiny_models.make("muse_glimmer"), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    found = loaded(tmp_path, kind)
    assert found["error"] < (1e-5 if kind == "float32" else 1e-2)
    assert found["rows"]["model.layers.0.self_attn.gate_proj.weight"] == 4 * 32, "each row once, over all devices"


def test_the_same_logits_of_fused_tensors(tmp_path: Path) -> None:
    tiny_models.save(tiny_models.make("phi3"), tmp_path)
    tiny_models.save_tokenizer(tmp_path)
    assert loaded(tmp_path, "float32")["error"] < 1e-5


def test_each_device_reads_its_own_rows(llama: Path) -> None:
    found = loaded(llama, "float32")
    rows = found["rows"]
    prefix = "model.layers.0"
    assert rows[f"{prefix}.self_attn.q_proj.weight"] == 64, "each row once, over all devices"
    assert rows[f"{prefix}.self_attn.k_proj.weight"] == 2 * 32, "two heads for four devices: each is read twice"
    assert rows[f"{prefix}.mlp.gate_proj.weight"] == 96
    assert rows["lm_head.weight"] == rows["model.embed_tokens.weight"] == 320
    assert found["heads"] == [4, 2]
    assert found["shards"] == {"qkv": [(1 + 2) * 16, 64], "out": [64, 16], "down": [64, 24]}
    assert found["cache"] == [8, 1, 16, 16]


def test_exchanges_by_doubling() -> None:
    script = Path(__file__).with_name("exchanges_on_devices.py")
    environment = tiny_models.environment(XLA_FLAGS=tiny_models.xla_flags(8))
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    right = {"total": True, "scattered": True, "gathered": True}
    assert json.loads(done.stdout.splitlines()[-1]) == {"XLA's": right, "by doubling": right}


def test_layouts() -> None:
    arch = from_hf_config({"model_type": "llama", "hidden_act": "silu"} | tiny_models.SIZES)
    assert arch.split(1).heads(4, 2) == HeadLayout(2, 2, 1)
    assert arch.split(2).heads(4, 2) == HeadLayout(2, 2, 1)
    assert arch.split(4).heads(4, 2) == HeadLayout(4, 1, 2)
    with pytest.raises(ValueError, match=r"tensor_parallel 3 .* one of \[1, 2, 4\]"):
        arch.split(3)
    sizes = tiny_models.SIZES | tiny_models.FAMILIES["mixtral"][1]
    mixtral = from_hf_config({"model_type": "mixtral", "hidden_act": "silu"} | sizes)
    assert mixtral.split(4).expert_parts == 1 and mixtral.split(4, 2).expert_parts == 2
    heads = {"num_attention_heads": 64, "num_key_value_heads": 16, "head_dim": 16}
    many = from_hf_config({"model_type": "mixtral", "hidden_act": "silu"} | sizes | heads)
    assert many.split(16).expert_parts == 2, "of eight experts"
    for devices, asked, said in (
        (5, None, "tensor_parallel 5 does not divide the model's 8 experts, nor .* their width, 96"),
        (4, 3, "expert_parallel 3 does not divide tensor_parallel 4"),
        (16, 16, "expert_parallel 16 does not divide the model's 8 experts"),
        (64, 1, "expert_parallel 1 leaves 64 devices for the width of an expert, 96"),
    ):
        with pytest.raises(ValueError, match=said):
            many.split(devices, asked)
    with pytest.raises(ValueError, match="expert_parallel is 2, but this model has no experts"):
        arch.split(2, 2)
