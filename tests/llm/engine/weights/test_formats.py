"""Quantized checkpoints: what is read of each format, against its own library or a writer that shares no code with us.

compressed-tensors writes its own kinds. The writers of the others are here: their libraries want a GPU.
"""

import json
from collections.abc import Callable
from pathlib import Path

import fsspec
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from jax.sharding import Mesh
from safetensors.torch import load_file, save_file
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from apps.arrays.model_folder import CheckpointError
from apps.jobs.preparation import PrepareArguments, prepare
from apps.llm.engine.model import params
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights import prepared_shards
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import open_checkpoint
from ray_configs.llm import EngineConfig
from tests.llm.engine import tiny_models
from tests.llm.engine.model.test_models import IDS, Stepper

Tensors = dict[str, torch.Tensor]
Written = tuple[Tensors, torch.Tensor]
"""What a weight is stored as, by the end of its name, and what that stands for."""


def fp8(weight: torch.Tensor, scale: torch.Tensor, each: torch.Tensor, name: str) -> Written:
    """`scale` as it is stored, and for each of the weights."""
    values = (weight / each).to(torch.float8_e4m3fn)
    return {"weight": values, name: scale}, values.float() * each


def fp8_blocks(weight: torch.Tensor, size: int = 32) -> Written:
    height, width = weight.shape
    rows, columns = -(-height // size), -(-width // size)
    scale = (
        torch.stack(
            [
                torch.stack(
                    [weight[r * size : (r + 1) * size, c * size : (c + 1) * size].abs().max() for c in range(columns)]
                )
                for r in range(rows)
            ]
        )
        / 448
    )
    each = scale.repeat_interleave(size, 0)[:height].repeat_interleave(size, 1)[:, :width]
    return fp8(weight, scale, each, "weight_scale_inv")


def fp8_tensor(weight: torch.Tensor) -> Written:
    scale = weight.abs().max() / 448
    return fp8(weight, scale, scale.expand(weight.shape), "weight_scale")


def fp8_rows(weight: torch.Tensor) -> Written:
    scale = weight.abs().amax(1, keepdim=True) / 448
    return fp8(weight, scale.bfloat16(), scale.bfloat16().float(), "weight_scale")


def compressed(kind: str, **weights: object) -> Callable[[torch.Tensor], Written]:
    def write(weight: torch.Tensor) -> Written:
        scheme = QuantizationScheme(targets=["Linear"], weights=weights, format=kind)
        compressor = BaseCompressor.get_value_from_registry(kind)
        bits, symmetric = int(str(weights["num_bits"])), weights["symmetric"]
        group = int(str(weights.get("group_size") or weight.shape[1]))
        parts = weight.reshape(weight.shape[0], -1, group)
        top = 2 ** (bits - 1)
        if symmetric:
            state = {"weight_scale": parts.abs().amax(2) / (top - 0.5)}
        else:
            low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
            scale = (high - low) / (2 * top - 1)
            state = {"weight_scale": scale, "weight_zero_point": (-top - (low / scale).round()).to(torch.int8)}
        state = compressor.compress({"weight": weight, **state}, scheme)
        stored = {name: tensor.clone() for name, tensor in state.items()}
        return stored, compressor.decompress(dict(state), scheme)["weight"].float()

    return write


def groups(weight: torch.Tensor, bits: int, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Asymmetric values `[in, out]`, and zero points and scales `[groups, out]`."""
    turned = weight.T.reshape(-1, size, weight.shape[0])
    low, high = turned.amin(1), turned.amax(1)
    scale = ((high - low) / (2**bits - 1)).half()
    zero = (-low / scale).round().clamp(1, 2**bits - 1).int()
    values = (turned / scale[:, None] + zero[:, None]).round().clamp(0, 2**bits - 1).int()
    return values.reshape(weight.T.shape), zero, scale


def packed(values: torch.Tensor, bits: int, order: list[int]) -> torch.Tensor:
    """`[rows, columns]` -> int32 `[rows, columns * bits / 32]`; the i-th bits of a word are its column `order[i]`."""
    words = values.long().reshape(values.shape[0], -1, len(order))
    total = sum(words[:, :, column] << bits * place for place, column in enumerate(order))
    return torch.from_numpy(total.numpy().astype(np.uint32).view(np.int32))


def meaning(values: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, group: torch.Tensor) -> torch.Tensor:
    return ((values - zero[group]).float() * scale.float()[group]).T


def awq(weight: torch.Tensor) -> Written:
    values, zero, scale = groups(weight, 4, 32)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    stored = {"qweight": packed(values, 4, order), "qzeros": packed(zero, 4, order), "scales": scale}
    return stored, meaning(values, zero, scale, torch.arange(weight.shape[1]) // 32)


def gptq(bits: int, zero_offset: int) -> Callable[[torch.Tensor], Written]:
    def write(weight: torch.Tensor) -> Written:
        shuffled = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(0))  # as desc_act has them
        values, zero, scale = groups(weight[:, shuffled], bits, 32)
        group = torch.empty(weight.shape[1], dtype=torch.int32)
        group[shuffled] = torch.arange(weight.shape[1], dtype=torch.int32) // 32
        values = values[torch.argsort(shuffled)]
        order = list(range(32 // bits))
        stored = {
            "qweight": packed(values.T.contiguous(), bits, order).T.contiguous(),
            "qzeros": packed(zero - zero_offset, bits, order),
            "scales": scale,
            "g_idx": group,
        }
        return stored, meaning(values, zero, scale, group.long())

    return write


INT = {"num_bits": 8, "type": "int", "strategy": "channel"}
W4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
CT = {"quant_method": "compressed-tensors"}
FORMATS: dict[str, tuple[dict[str, object], Callable[[torch.Tensor], Written], float]] = {
    "fp8 blocks": ({"quant_method": "fp8", "weight_block_size": [32, 32]}, fp8_blocks, 0.03),
    "fp8 tensor": ({"quant_method": "fp8"}, fp8_tensor, 0.03),
    "fp8 rows": (CT | {"format": "float-quantized"}, fp8_rows, 0.03),
    "int8 rows": (CT | {"format": "int-quantized"}, compressed("int-quantized", symmetric=True, **INT), 0.01),
    "int8 asymmetric": (CT | {"format": "int-quantized"}, compressed("int-quantized", symmetric=False, **INT), 0.01),
    "w4a16": (CT | {"format": "pack-quantized"}, compressed("pack-quantized", symmetric=True, **W4), 0.12),
    "w4a16 asymmetric": (CT | {"format": "pack-quantized"}, compressed("pack-quantized", symmetric=False, **W4), 0.12),
    "awq": ({"quant_method": "awq", "bits": 4, "version": "gemm"}, awq, 0.12),
    "gptq": ({"quant_method": "gptq", "bits": 4, "desc_act": True}, gptq(4, 1), 0.12),
    "gptq 2 bits": ({"quant_method": "gptq", "bits": 2}, gptq(2, 1), 0.7),
    "gptq 8 bits": ({"quant_method": "gptq", "bits": 8}, gptq(8, 1), 0.01),
    "gptq v2": ({"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}, gptq(4, 0), 0.12),
}
"""The config's field, the writer, and how far (RMS) the format itself may be from the weight."""


def quantize(folder: Path, name: str) -> Tensors:
    """Quantizes the matrices of the layers of a checkpoint in place; returns what they stand for."""
    field, write, bound = FORMATS[name]
    tensors, meant = load_file(folder / "model.safetensors"), {}
    matrices = "_proj.weight", "_proj_qkv.weight", "_proj_z.weight"
    for tensor in [tensor for tensor in tensors if tensor.endswith(matrices)]:
        weight = tensors.pop(tensor).float()
        parts, meant[tensor] = write(weight)
        assert (meant[tensor] - weight).pow(2).mean().sqrt() < bound * weight.pow(2).mean().sqrt()
        tensors |= {f"{tensor.removesuffix('weight')}{part}": value.contiguous() for part, value in parts.items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": field}))
    return meant


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_is_read_exactly(name: str, tmp_path: Path) -> None:
    tiny_models.save(tiny_models.make("llama3"), tmp_path)
    meant = quantize(tmp_path, name)
    checkpoint = Checkpoint(str(tmp_path))
    for tensor, weight in meant.items():
        shape = tuple(weight.shape)
        whole = checkpoint.read(tensor, shape)
        assert whole.dtype == np.float32
        np.testing.assert_allclose(whole, weight.numpy(), rtol=1e-6, atol=1e-7)
        for rows in (slice(3, 21), slice(8, 16), slice(shape[0] - 5, shape[0])):
            np.testing.assert_array_equal(checkpoint.read(tensor, shape, rows), whole[rows])
    plain = "model.layers.0.input_layernorm.weight"
    assert checkpoint.read(plain, (checkpoint.tensors[plain].shape[0],)).dtype != np.int8


@pytest.mark.parametrize(
    ("name", "family", "bound"),
    [
        *((name, "llama3", 0.03) for name in ("fp8 blocks", "int8 rows", "w4a16", "awq", "gptq")),
        ("fp8 blocks", "qwen3_5", 0.09),  # but for what makes decays and strengths, as the hub has it
        ("fp8 blocks", "muse_glimmer", 0.09),
    ],
)
def test_logits_are_those_of_the_weights_that_it_stands_for(
    name: str, family: str, bound: float, tmp_path: Path, compile_cache: str
) -> None:
    model = tiny_models.make(family)
    tiny_models.save(model, tmp_path)
    meant = quantize(tmp_path, name)
    model.load_state_dict(model.state_dict() | meant)
    with torch.no_grad():
        expected = model(torch.tensor([IDS[:90]])).logits[0].numpy()
    unrounded = Stepper(tmp_path, compile_cache)(IDS[:90])
    assert np.abs(unrounded - expected).max() <= 1e-4
    kept = Stepper(tmp_path, compile_cache, quantize_weights="int8")(IDS[:90])
    error = np.sqrt(np.mean((kept - expected) ** 2)) / np.sqrt(np.mean(expected**2))
    assert error < bound


@pytest.mark.parametrize("name", ["fp8 blocks", "gptq"])
def test_from_a_bucket_and_prepared(name: str, tmp_path: Path) -> None:
    """The same int8 weights by every way to them, on two devices."""
    (folder := tmp_path / "model").mkdir()
    tiny_models.save(tiny_models.make("llama3"), folder)
    quantize(folder, name)
    bucket = f"memory://{name.replace(' ', '-')}"
    fsspec.filesystem("memory").put(str(folder), bucket, recursive=True)
    prepare(PrepareArguments(str(folder), str(tmp_path / "prepared"), "bfloat16", "int8", tensor_parallel=2))
    checkpoints = [open_checkpoint(where) for where in (str(folder), bucket, str(tmp_path / "prepared"))]
    mesh = Mesh(np.array(jax.devices()[:2]), ("tensor",))
    arch = from_hf_config(checkpoints[0].json("config.json"))
    tree = declare(arch, arch.split(2))
    ways = (params.load, params.load, prepared_shards.load)
    loaded = [load(tree, at, mesh, jnp.dtype(jnp.bfloat16), True) for load, at in zip(ways, checkpoints)]
    for other in loaded[1:]:
        jax.tree.map(np.testing.assert_array_equal, loaded[0], other)


def mxfp4(folder: Path) -> transformers.PreTrainedModel:
    """Save a tiny gpt-oss as the hub has it, of random blocks; the model that they stand for, by transformers."""
    model, random = tiny_models.make("gpt_oss"), torch.Generator().manual_seed(5)
    tiny_models.save(model, folder)
    tensors = load_file(folder / "model.safetensors")
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        experts, inputs, outputs = tensors.pop(name).shape
        blocks = torch.randint(0, 256, (experts, outputs, inputs // 32, 16), generator=random, dtype=torch.uint8)
        scales = torch.randint(122, 126, (experts, outputs, inputs // 32), generator=random, dtype=torch.uint8)
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        model.get_parameter(name).data.copy_(convert_moe_packed_tensors(blocks, scales, dtype=torch.float32))
    save_file(tensors, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": {"quant_method": "mxfp4"}}))
    return model


def test_mxfp4(tmp_path: Path, compile_cache: str) -> None:
    model = mxfp4(tmp_path)
    checkpoint, experts = Checkpoint(str(tmp_path)), model.model.layers[1].mlp.experts
    for name, meant in {
        "gate_proj": experts.gate_up_proj[3, :, 0::2],
        "up_proj": experts.gate_up_proj[3, :, 1::2],
        "down_proj": experts.down_proj[3],
    }.items():
        found = checkpoint.read(f"model.layers.1.mlp.experts.3.{name}.weight", tuple(meant.T.shape))
        np.testing.assert_array_equal(found, meant.T.detach().numpy())
    with torch.no_grad():
        expected = model(torch.tensor([IDS[:90]])).logits[0].numpy()
    unrounded = Stepper(tmp_path, compile_cache)(IDS[:90])
    assert np.abs(unrounded - expected).max() <= 1e-4 * np.abs(expected).max()
    config = EngineConfig(model=str(tmp_path))
    assert Model.open(config).settle(config).quantize_weights == "int8"


def test_packed_experts_of_another_shape_are_named(tmp_path: Path) -> None:
    mxfp4(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_local_experts": 9}))
    checkpoint = Checkpoint(str(tmp_path))
    arch = from_hf_config(checkpoint.json("config.json"))
    tree = declare(arch, arch.split(1))
    with pytest.raises(CheckpointError, match=r"gate_up_proj_blocks has shape \(8, 192, 2, 16\), .* an expert 8"):
        tree["layers"][0]["experts_in"].read(checkpoint, (slice(0, None), slice(0, None)))


def test_int8_rows_are_kept_as_they_are(tmp_path: Path, compile_cache: str) -> None:
    tiny_models.save(tiny_models.make("llama3"), tmp_path)
    quantize(tmp_path, "int8 rows")
    stored = load_file(tmp_path / "model.safetensors")["model.layers.0.mlp.down_proj.weight"]
    stepper = Stepper(tmp_path, compile_cache, quantize_weights="int8", dtype="bfloat16")
    kept = np.asarray(stepper.executor.params["layers"][0]["down"].values)
    # The writer scales to 127.5 levels, the engine to 127, so a value may differ by a level.
    assert np.abs(kept.astype(int) - stored.numpy()).max() <= 1


def test_a_quantized_checkpoint_is_kept_as_int8(tmp_path: Path) -> None:
    tiny_models.save(tiny_models.make("llama3"), tmp_path)
    config = EngineConfig(model=str(tmp_path))
    assert Model.open(config).settle(config).quantize_weights == "none"
    quantize(tmp_path, "w4a16")
    assert Model.open(config).settle(config).quantize_weights == "int8"


UNSUPPORTED = {
    "quant_method 'bitsandbytes'": {"quant_method": "bitsandbytes", "load_in_4bit": True},
    "quant_method 'awq', bits 4, version 'gemv'": {"quant_method": "awq", "bits": 4, "version": "gemv"},
    "quant_method 'gptq', bits 3": {"quant_method": "gptq", "bits": 3},
    "checkpoint_format 'marlin'": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "marlin"},
    "format 'nvfp4-pack-quantized'": CT | {"format": "nvfp4-pack-quantized"},
    "sparsity_config": CT | {"sparsity_config": {"format": "sparse-24-bitmask"}},
    "transform_config": CT | {"transform_config": {"config_groups": {"u": {}}}},
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_what_cannot_be_read_is_named(message: str, tmp_path: Path) -> None:
    tiny_models.save(tiny_models.make("llama3"), tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"quantization_config": UNSUPPORTED[message]}))
    engine = EngineConfig(model=str(tmp_path))
    with pytest.raises(UnsupportedModel, match=message):
        Model.open(engine).settle(engine)


@pytest.mark.parametrize(
    ("name", "part", "message"),
    [
        ("fp8 blocks", "weight_scale_inv", "weight_scale_inv has shape .* needs"),
        ("w4a16", "weight_scale", "weight_scale has shape .* needs"),
        ("awq", "qzeros", "qzeros has shape .* needs"),
        ("gptq", "scales", "qzeros has shape .* needs|scales has shape .* needs"),
    ],
)
def test_parts_that_do_not_fit_are_named(name: str, part: str, message: str, tmp_path: Path) -> None:
    tiny_models.save(tiny_models.make("llama3"), tmp_path)
    quantize(tmp_path, name)
    tensors = load_file(tmp_path / "model.safetensors")
    place, shape = f"model.layers.0.mlp.up_proj.{part}", (tiny_models.SIZES["intermediate_size"], tiny_models.HIDDEN)
    damaged = {**tensors, place: tensors[place][:-1].contiguous()}
    save_file(damaged, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(str(tmp_path)).read("model.layers.0.mlp.up_proj.weight", shape)
    del damaged[place]
    save_file(damaged, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"{part} is missing|has no scale"):
        Checkpoint(str(tmp_path)).read("model.layers.0.mlp.up_proj.weight", shape)
