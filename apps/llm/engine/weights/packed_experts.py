"""Experts that a checkpoint holds together, one tensor for a layer, read under the names of single experts.

gpt-oss has its experts so, with `gate` in the even and `up` in the odd rows of `gate_up_proj`:

- in floating point, transposed: `experts.gate_up_proj` `[experts, hidden, 2 * width]` and `experts.down_proj`;
- in MXFP4: `experts.gate_up_proj_blocks` `[experts, 2 * width, hidden / 32, 16]`, two values to a byte, and
  `experts.gate_up_proj_scales` `[experts, 2 * width, hidden / 32]`, a power of two for each 32 values;
- the biases as `experts.gate_up_proj_bias` `[experts, 2 * width]`.

Without biases they are as in memory (Qwen3.5's): `experts.gate_up_proj` `[experts, 2 * width, hidden]`, the gate's rows
before the up's, and `experts.down_proj` `[experts, hidden, width]`; or both transposed (Qwen3-VL's), which their shapes
say. As in transformers, matrices of equal sides are as in memory.

Sources: transformers' GptOssExperts, Qwen3_5MoeExperts and its conversion of qwen3_vl_moe; MXFP4 is of the OCP
Microscaling Formats specification 1.0.
"""

import re

import ml_dtypes
import numpy as np

from apps.arrays.checkpoint_formats import QuantizedRows, Tensors, unpacked
from apps.arrays.model_folder import CheckpointError

NAME = re.compile(r"(.+\.experts)\.(\d+)\.(gate|up|down)_proj\.(weight|bias)")
GROUP = 32
"""Values of one scale."""
EXPONENT_BIAS = 127


def read(checkpoint: Tensors, name: str, shape: tuple[int, ...], rows: slice) -> np.ndarray | None:
    """Rows of a matrix `[out, in]` or of a bias `[out]` of one expert; None if no tensor holds it with others.

    Args:
        shape: of the whole matrix or bias.

    Raises:
        CheckpointError: the tensor has another shape.
    """
    match = NAME.fullmatch(name)
    if match is None or name in checkpoint.tensors:
        return None
    experts, expert, matrix, kind = match.groups()
    base = f"{experts}.down_proj" if matrix == "down" else f"{experts}.gate_up_proj"
    first, last, _ = rows.indices(shape[0])
    start, step = {"gate": (0, 2), "up": (1, 2), "down": (0, 1)}[matrix]
    own = slice(start + step * first, step * last, step)  # among those of the tensor that holds them
    height, number = shape[0] * step, int(expert)

    def stored(part: str, *size: int) -> np.ndarray:
        """The expert's share of a tensor whose share has that size."""
        entry = checkpoint.tensors.get(base + part)
        if entry is None:
            raise CheckpointError(f"{checkpoint.location}: tensor {base}{part} is missing from the safetensors files")
        if entry.shape[1:] != size or entry.shape[0] <= number:
            raise CheckpointError(
                f"{checkpoint.location}/{entry.file}: tensor {base}{part} has shape {entry.shape}, but config.json "
                f"implies a share of {size} for each expert, and an expert {number}"
            )
        if len(size) == 1 and not checkpoint.is_local:
            return checkpoint.part(base + part)[number]  # all experts' biases in one request
        return checkpoint.part(base + part, slice(number, number + 1))[0]

    if kind == "bias":
        return stored("_bias", height)[own] if f"{base}_bias" in checkpoint.tensors else None
    if base in checkpoint.tensors and f"{base}_bias" not in checkpoint.tensors:
        before = shape[0] if matrix == "up" else 0
        transposed = checkpoint.tensors[base].shape[1:] == (shape[1], height) and height != shape[1]
        own_matrix = stored("", shape[1], height).T if transposed else stored("", height, shape[1])
        return own_matrix[before + first : before + last]
    if base in checkpoint.tensors:
        return stored("", shape[1], height).T[own]
    if f"{base}_blocks" not in checkpoint.tensors:
        return None
    groups = shape[1] // GROUP
    codes = unpacked(stored("_blocks", height, groups, GROUP // 2)[own].reshape(last - first, -1), 4)
    scales = np.ldexp(np.float32(1), stored("_scales", height, groups)[own].astype(np.int32) - EXPONENT_BIAS)
    return QuantizedRows(codes.view(ml_dtypes.float4_e2m1fn), scales, None).weights()
