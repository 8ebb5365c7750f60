"""A checkpoint with a number that is not finite is refused as it is loaded, whatever its format; names the tensor."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from apps.arrays.layout import Layout
from apps.arrays.model_folder import CheckpointError
from apps.jobs.preparation import PrepareArguments, prepare
from apps.llm.engine.execute.local import LocalDevices
from apps.llm.engine.weights.model import Model
from apps.serving.numbers.finite import all_finite
from ray_configs.llm import EngineConfig
from tests.llm.engine import tiny_models


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", ml_dtypes.bfloat16, ml_dtypes.float8_e5m2], ids=str)
@pytest.mark.parametrize("size", [1, 1000, 300_001])
def test_every_place_is_looked_at(dtype: str, size: int) -> None:
    """NumPy's isfinite of the same numbers as float64 is the oracle, and large ones are finite."""
    dtype = np.dtype(dtype)
    values = np.random.default_rng(size).normal(size=size).astype(dtype)
    values[size // 2] = ml_dtypes.finfo(dtype).max
    assert all_finite(values) and all_finite(values.reshape(1, -1).T)
    for place in (0, size // 3, size - 1):
        for bad in (np.nan, np.inf, -np.inf):
            damaged = values.copy()
            damaged[place] = bad
            assert np.isfinite(damaged.astype(np.float64)).all() == all_finite(damaged) == False  # noqa: E712


def load(folder: Path, **settings: object) -> None:
    config = EngineConfig(**tiny_models.SMALL | {"model": str(folder)} | settings)
    model = Model.open(config)
    config = model.settle(config)
    LocalDevices().load(config, model, Layout(1, 1))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_models.save(tiny_models.make("llama3"), tmp_path / "model")


def damage(folder: Path, name: str, bad: float, dtype: torch.dtype | None = None) -> None:
    file = folder / "model.safetensors"
    tensors = {key: tensor if dtype is None else tensor.to(dtype) for key, tensor in load_file(file).items()}
    tensors[name].view(-1)[-1] = bad
    save_file(tensors, file, metadata={"format": "pt"})


TENSORS = "model.embed_tokens.weight", "model.layers.1.self_attn.k_proj.weight", "model.layers.0.input_layernorm.weight"


@pytest.mark.parametrize("quantize", ["none", "int8"])
@pytest.mark.parametrize("name", [*TENSORS, "lm_head.weight", "model.layers.0.mlp.up_proj.weight"])
@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_tensor_is_named(model: Path, name: str, bad: float, quantize: str) -> None:
    load(model, quantize_weights=quantize)
    damage(model, name, bad)
    with pytest.raises(CheckpointError, match=rf"tensor {name.replace('.', '[.]')} has numbers that are not finite"):
        load(model, quantize_weights=quantize)


@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16, torch.float64])
def test_in_every_type_of_a_file(model: Path, stored: torch.dtype) -> None:
    damage(model, TENSORS[1], float("nan"), stored)
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.1\.self_attn\.k_proj\.weight has"):
        load(model, dtype="bfloat16")


@pytest.mark.parametrize(("stored", "large"), [(torch.float32, 3.4e38), (torch.float64, 1e300)])
def test_numbers_that_their_type_in_memory_makes_infinite(model: Path, stored: torch.dtype, large: float) -> None:
    damage(model, TENSORS[1], large, stored)
    with pytest.raises(CheckpointError, match=r"tensor model\.layers\.1\.self_attn\.k_proj\.weight has"):
        load(model, dtype="bfloat16")


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_neither_a_preparation_nor_what_was_prepared_is_taken(model: Path, tmp_path: Path, quantize: str) -> None:
    out = tmp_path / "prepared"
    prepare(PrepareArguments(str(model), str(out), "float32", quantize))
    load(out, dtype="float32")
    for file in sorted(out.glob("layer-*.safetensors"))[:1]:
        content = bytearray(file.read_bytes())
        content[-4:] = np.float32("nan").tobytes()  # the last of a norm, or of a scale
        file.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"tensor layers\.0\.\w+ has numbers that are not finite"):
        load(out, dtype="float32")
    damage(model, TENSORS[1], float("inf"))
    with pytest.raises(CheckpointError, match="not finite"):
        prepare(PrepareArguments(str(model), str(tmp_path / "other"), "float32", quantize))
