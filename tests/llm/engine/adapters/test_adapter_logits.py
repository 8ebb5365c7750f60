"""Logits under a LoRA adapter against PEFT's merged model: prefill in two chunks, then 16 decode steps."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.llm.engine.adapters.peft import PeftAdapter
from tests.llm.engine import tiny_models
from tests.llm.engine.adapters import making
from tests.llm.engine.model.test_models import IDS, Stepper, worst_error

FAMILIES = (
    "llama2", "llama3.2", "mistral", "phi3", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gemma4", "gemma4_e",
    "muse_glimmer", "qwen3_5", "qwen3_5_moe",
)  # fmt: skip
RANK = 8


def adapted(base: Path, adapter: Path, compile_cache: str, **settings: Any) -> Stepper:
    """The model with the adapter in the second of three places, and in use."""
    stepper = Stepper(base, compile_cache, max_adapters=3, max_adapter_rank=RANK, **settings)
    executor = stepper.executor
    found = PeftAdapter.open(str(adapter), executor.arch, RANK)
    for layer, values in enumerate(found.layers(executor.decoder.split, RANK, np.dtype(executor.config.dtype))):
        executor.write_adapter(2, layer, values)
    stepper.adapter = 2
    return stepper


def targets(family: str) -> list[str] | str:
    """What PEFT adapts: names, or a pattern, where there is a vision tower that has the same ones."""
    if family == "muse_glimmer":
        return rf".*language_model\..*\.({'|'.join(making.ATTENTION + making.MLP)})"
    if family == "qwen3_5_moe":
        return list(making.ATTENTION)
    return list(making.FUSED if family == "phi3" else making.ATTENTION + making.MLP)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_are_those_of_the_merged_model(family: str, tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make(family)
    base = tiny_models.save(model, tmp_path / "base")
    peft = making.save_adapter(model, tmp_path / "adapter", r=RANK, lora_alpha=16, target_modules=targets(family))
    assert worst_error(Stepper(base, compile_cache), making.merged(peft)) > 0.05  # the adapter changes the answer
    assert worst_error(adapted(base, tmp_path / "adapter", compile_cache), making.merged(peft)) <= 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "devices"),
    [("llama2", 2), ("llama2", 4), ("phi3", 2), ("gemma", 2), ("gemma", 4), ("muse_glimmer", 2), ("qwen3_5", 2)],
)
def test_logits_on_several_devices(family: str, devices: int, tmp_path: Path) -> None:
    """Gemma's one key/value head is repeated for each device; four devices split a chunk's tokens."""
    program = [sys.executable, "-m", "tests.llm.engine.adapters.sharded_adapter", family, str(devices), str(tmp_path)]
    env = tiny_models.environment(XLA_FLAGS=tiny_models.xla_flags(devices))
    done = subprocess.run(program, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[-1]) <= 1e-4


@pytest.mark.slow
def test_attention_of_a_mixture_of_experts(tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make("qwen3_moe")
    base = tiny_models.save(model, tmp_path / "base")
    peft = making.save_adapter(model, tmp_path / "adapter", r=RANK, lora_alpha=4, target_modules=list(making.ATTENTION))
    assert worst_error(adapted(base, tmp_path / "adapter", compile_cache), making.merged(peft)) <= 1e-4


def test_ranks_and_scales_of_their_own(tmp_path: Path, compile_cache: str) -> None:
    """A rank below the padded one, other ranks and alphas for some modules, and rank-stabilized scales."""
    model = tiny_models.make("llama3.2")
    base = tiny_models.save(model, tmp_path / "base")
    peft = making.save_adapter(
        model,
        tmp_path / "adapter",
        r=3,
        lora_alpha=8,
        use_rslora=True,
        rank_pattern={"layers.1.self_attn.q_proj": 7, "up_proj": 2},
        alpha_pattern={"down_proj": 3},
        target_modules=["q_proj", "up_proj", "down_proj"],
        layers_to_transform=[1],
    )
    assert worst_error(adapted(base, tmp_path / "adapter", compile_cache), making.merged(peft)) <= 1e-4


def test_without_an_adapter_logits_are_the_models_to_the_bit(tmp_path: Path, compile_cache: str) -> None:
    model = tiny_models.make("llama3.2")
    base = tiny_models.save(model, tmp_path / "base")
    making.save_adapter(model, tmp_path / "adapter", r=RANK, target_modules=["q_proj", "down_proj"])
    beside = adapted(base, tmp_path / "adapter", compile_cache)
    beside.adapter = 0
    assert np.array_equal(beside(IDS[:90]), Stepper(base, compile_cache)(IDS[:90]))
