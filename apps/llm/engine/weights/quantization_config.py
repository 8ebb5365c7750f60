"""The format of a checkpoint's quantized weights, from the quantization_config of its config.json."""

from collections.abc import Mapping
from typing import Any

from apps.arrays.checkpoint_formats import BLOCK, QuantizedFormat
from apps.llm.engine.model.rope import UnsupportedModel
from apps.serving.numbers.ranges import Range, check

SUPPORTED = "fp8, fbgemm_fp8, compressed-tensors, awq, gptq and mxfp4"
SIDE = Range(1, 2**20, many=True)
RANGES = {
    "bits": Range(1, 64),
    "num_bits": Range(1, 64),
    "group_size": Range(-1, 2**20, "-1: a whole row"),
    "weight_block_size": SIDE,
    "block_structure": SIDE,
}
"""The numbers of a quantization_config, and of the groups in it."""
COMPRESSED_FORMATS = (
    *("dense", "float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "mixed-precision"),
)


def format_of(config: Mapping[str, Any]) -> QuantizedFormat | None:
    """The format that a config.json names; None if its weights are not quantized.

    Raises:
        UnsupportedModel: it cannot be read; the message names the field.
    """
    said = config.get("quantization_config") or config.get("compression_config")
    if not said:
        return None
    check("config.json: quantization_config", said, RANGES, UnsupportedModel)
    try:
        return _format_of(said)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        if isinstance(error, UnsupportedModel):
            raise
        raise UnsupportedModel(f"config.json: quantization_config has a value of the wrong type: {error!r}") from error


def _format_of(said: Mapping[str, Any]) -> QuantizedFormat:
    method, bits = said.get("quant_method"), said.get("bits", 4)
    if method == "fp8":
        return QuantizedFormat(_block(said.get("weight_block_size")))
    if method in ("fbgemm_fp8", "mxfp4"):  # MXFP4 is of experts alone: see packed_experts
        return QuantizedFormat()
    if method == "awq" and said.get("version", "gemm").lower() == "gemm" and bits == 4:
        return QuantizedFormat(awq=True)
    if method == "gptq" and said.get("checkpoint_format", "gptq") in ("gptq", "gptq_v2") and bits in (2, 4, 8):
        return QuantizedFormat(bits=bits, zero_offset=0 if said.get("checkpoint_format") == "gptq_v2" else 1)
    if method == "compressed-tensors":
        return _compressed(said)
    name = "".join(f", {field} {said[field]!r}" for field in ("bits", "version", "checkpoint_format") if field in said)
    raise UnsupportedModel(
        f"config.json: quantization_config.quant_method {method!r}{name} is not supported: supported are {SUPPORTED}; "
        "or use the unquantized checkpoint and set quantize_weights to int8 in the engine's config"
    )


def _compressed(said: Mapping[str, Any]) -> QuantizedFormat:
    groups = list((said.get("config_groups") or {}).values())
    for kind in [said.get("format") or "dense", *(group.get("format") for group in groups)]:
        if kind not in (None, *COMPRESSED_FORMATS):
            raise UnsupportedModel(f"config.json: quantization_config.format {kind!r} is not supported")
    if (said.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise UnsupportedModel("config.json: quantization_config.sparsity_config: sparse weights are not supported")
    if said.get("transform_config"):
        raise UnsupportedModel("config.json: quantization_config.transform_config is not supported")
    weights = [group["weights"] for group in groups if group.get("weights")]
    for found in weights:
        check("config.json: quantization_config.config_groups: weights", found, RANGES, UnsupportedModel)
    blocks = [found["block_structure"] for found in weights if found.get("block_structure")]
    return QuantizedFormat(_block(blocks[0] if blocks else None))


def _block(size: list[int] | None) -> tuple[int, int]:
    if size is None:
        return BLOCK
    if len(size) != 2:
        raise UnsupportedModel(f"config.json: quantization_config: a block has {len(size)} sides, not 2")
    return size[0], size[1]
