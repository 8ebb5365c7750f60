"""Adapters that do not fit are refused, naming what does not."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from apps.arrays.model_folder import CheckpointError
from apps.llm.engine.adapters.peft import CONFIG, WEIGHTS, PeftAdapter
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families.hugging_face import from_hf_config
from tests.cloud_storage import cloud_storage
from tests.hub import hub
from tests.llm.engine import tiny_models
from tests.llm.engine.adapters import making


@pytest.fixture(scope="module")
def arch() -> Architecture:
    return from_hf_config(tiny_models.make("llama3").config.to_dict())


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    making.save_adapter(tiny_models.make("llama3"), tmp_path, r=8, target_modules=["q_proj", "down_proj"])
    return tmp_path


def refusal(folder: Path | str, arch: Architecture, max_rank: int = 16) -> str:
    with pytest.raises(CheckpointError) as refused:
        PeftAdapter.open(str(folder), arch, max_rank)
    assert str(folder) in str(refused.value)
    return str(refused.value)


def test_a_good_one_is_taken(adapter: Path, arch: Architecture) -> None:
    assert len(PeftAdapter.open(str(adapter), arch, 8).tensors) == 8


def test_from_a_bucket(adapter: Path, arch: Architecture) -> None:
    with cloud_storage() as storage:
        for name in (CONFIG, WEIGHTS):
            storage.put("adapters", f"sql/{name}", (adapter / name).read_bytes())
        found = PeftAdapter.open("gs://adapters/sql", arch, 8)
        assert same_as_in_the_folder(found, adapter, arch)
        assert "no such folder" in refusal("gs://adapters/other", arch)


def same_as_in_the_folder(found: PeftAdapter, folder: Path, arch: Architecture) -> bool:
    """Whether every matrix is the same."""
    of_both = [
        each.layers(arch.split(1), 8, np.dtype("float32")) for each in (found, PeftAdapter.open(str(folder), arch, 8))
    ]
    return bool(jax.tree.all(jax.tree.map(np.array_equal, *of_both)))


HUB_SCRIPT = """
import os
from apps.llm.engine.adapters.peft import PeftAdapter
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.arrays.model_folder import CheckpointError
from tests.llm.engine import tiny_models
arch = from_hf_config(tiny_models.make("llama3").config.to_dict())
found = PeftAdapter.open("someone/tiny", arch, 8)
print(len(found.tensors), sorted(os.listdir(found.folder.location)))
try:
    PeftAdapter.open("someone/else", arch, 8)
except CheckpointError as error:
    print(error)
"""


@pytest.mark.slow
def test_from_the_hub(adapter: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Only the adapter is fetched, not what training left beside it."""
    (adapter / "optimizer.pt").write_text("large")
    with hub(adapter, tmp_path_factory.mktemp("home")) as environment:
        command = [sys.executable, "-c", HUB_SCRIPT]
        found = subprocess.run(
            command, env=tiny_models.environment(**environment), capture_output=True, text=True, timeout=120
        )
    assert found.returncode == 0, found.stderr[-3000:]
    fetched, error = found.stdout.splitlines()[:2]
    assert fetched == f"8 {[CONFIG, WEIGHTS]}"
    assert "someone/else: neither a local folder nor a model" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'; only LORA"),
        ({"use_dora": True}, "use_dora is True, which is not supported"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is"),
        ({"r": 0}, "r must be a whole number from 1 .* not 0"),
        ({"r": 1e308}, "r must be"),
        ({"r": True}, "r must be"),
        ({"r": 10**400}, "r must be .* a number of 401 digits"),
        ({"r": None}, "r is missing"),
        ({"lora_alpha": "x"}, "lora_alpha must be a number from .* not 'x'"),
        ({"lora_alpha": float("nan")}, "lora_alpha must be .* not nan"),
        ({"lora_alpha": 1e308}, "lora_alpha must be"),
        ({"lora_alpha": -8}, "lora_alpha must be"),
        ({"rank_pattern": {"q_proj": 0}}, r"rank_pattern\['q_proj'\] must be"),
        ({"rank_pattern": 8}, "rank_pattern must be"),
        ({"alpha_pattern": {"q_proj": float("inf")}}, r"alpha_pattern\['q_proj'\] must be .* not inf"),
        ({"init_lora_weights": "pissa_niter_4"}, "also changes the base model's weights"),
        ({"r": 4}, "has shape .* it was made for another base model"),
    ],
)
def test_configs_that_are_refused(adapter: Path, arch: Architecture, changes: dict[str, Any], says: str) -> None:
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(config | changes))
    with pytest.raises(CheckpointError, match=says):
        PeftAdapter.open(str(adapter), arch, 16)


def test_a_rank_above_the_configured_one(adapter: Path, arch: Architecture) -> None:
    said = refusal(adapter, arch, max_rank=4)
    assert "rank is 8 at model.layers." in said and "max_adapter_rank is 4: raise it" in said


def test_another_base(adapter: Path) -> None:
    wider = from_hf_config(tiny_models.make("llama3", intermediate_size=128).config.to_dict())
    assert "mlp.down_proj's lora_A has shape (8, 96)" in refusal(adapter, wider)
    shallow = from_hf_config(tiny_models.make("llama3", num_hidden_layers=1).config.to_dict())
    assert "but the model has 1 layers" in refusal(adapter, shallow)


def test_targets_that_cannot_be_changed(adapter: Path, arch: Architecture, tmp_path: Path) -> None:
    sparse = from_hf_config(tiny_models.make("mixtral").config.to_dict())
    assert "only self_attn.q_proj, self_attn.k_proj, self_attn.v_proj, self_attn.o_proj can be" in refusal(
        adapter, sparse
    )
    making.save_adapter(tiny_models.make("llama3"), tmp_path / "head", r=8, target_modules=["lm_head"])
    assert "is no LoRA matrix of a decoder layer" in refusal(tmp_path / "head", arch)


def test_files_that_are_missing_or_cut_short(adapter: Path, arch: Architecture, tmp_path: Path) -> None:
    tensors = load_file(adapter / WEIGHTS)
    missing = "layers.0.self_attn.q_proj.lora_B"
    save_file({name: tensor for name, tensor in tensors.items() if missing not in name}, adapter / WEIGHTS)
    assert "layers.0.self_attn.q_proj has a lora_A, but not the other matrix" in refusal(adapter, arch)
    whole = (adapter / WEIGHTS).read_bytes()
    (adapter / WEIGHTS).write_bytes(whole[:-100])
    assert "cut short" in refusal(adapter, arch)
    (adapter / WEIGHTS).rename(adapter / "adapter_model.bin")
    assert "pickled weights are not read" in refusal(adapter, arch)
    (adapter / CONFIG).write_text("{")
    assert "not valid JSON" in refusal(adapter, arch)
    (adapter / CONFIG).unlink()
    assert f"{CONFIG} is missing" in refusal(adapter, arch)
    assert "no such folder" in refusal(tmp_path / "nowhere", arch)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 3e38])
@pytest.mark.parametrize("matrix", ["A", "B"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_numbers_that_a_product_cannot_take(
    adapter: Path, arch: Architecture, bad: float, matrix: str, dtype: str
) -> None:
    tensors = load_file(adapter / WEIGHTS)
    name = f"base_model.model.model.layers.1.mlp.down_proj.lora_{matrix}.weight"
    tensors[name][-1, 0] = bad
    save_file(tensors, adapter / WEIGHTS)
    found = PeftAdapter.open(str(adapter), arch, 8)
    with pytest.raises(CheckpointError, match=rf"tensor model\.layers\.1\.mlp\.down_proj\.lora_{matrix}\.weight"):
        found.layers(arch.split(1), 8, np.dtype(dtype))


def test_numbers_that_only_their_scale_makes_too_large(adapter: Path, arch: Architecture) -> None:
    tensors = load_file(adapter / WEIGHTS)
    save_file({name: tensor * 1e13 for name, tensor in tensors.items()}, adapter / WEIGHTS)
    config = json.loads((adapter / CONFIG).read_text())
    (adapter / CONFIG).write_text(json.dumps(config | {"lora_alpha": 1e6}))
    with pytest.raises(CheckpointError, match="with the adapter's scale"):
        PeftAdapter.open(str(adapter), arch, 8).layers(arch.split(1), 8, np.dtype("float32"))
