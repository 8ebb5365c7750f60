"""A text encoder's tensors as OpenCLIP names them: `transformer.resblocks.3.mlp.c_fc.weight`.

Source read: `convert_open_clip_checkpoint` in diffusers' loaders/single_file_utils.py.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from apps.arrays.model_folder import TensorEntry

BLOCK = re.compile(r"transformer\.resblocks\.(\d+)\.(.+)")
OUTSIDE = {
    "positional_embedding": "embeddings.position_embedding.weight",
    "token_embedding.weight": "embeddings.token_embedding.weight",
    "ln_final.weight": "final_layer_norm.weight",
    "ln_final.bias": "final_layer_norm.bias",
}
INSIDE = {
    "ln_1": "layer_norm1",
    "ln_2": "layer_norm2",
    "mlp.c_fc": "mlp.fc1",
    "mlp.c_proj": "mlp.fc2",
    "attn.out_proj": "self_attn.out_proj",
}


@dataclass(frozen=True)
class Transposed(TensorEntry):
    """A matrix that lies in its file the other way around; `shape` is what it is read as."""


def transformers(name: str, entry: TensorEntry) -> Iterator[tuple[str, TensorEntry]]:
    """A tensor there -> those that transformers has in its place; none of what it does not have."""
    if name in OUTSIDE:
        yield OUTSIDE[name], entry
    elif name == "text_projection":
        yield "text_projection.weight", Transposed(entry.file, entry.dtype, entry.shape[::-1], entry.start, entry.stop)
    elif found := BLOCK.fullmatch(name):
        layer, rest = f"encoder.layers.{found[1]}", found[2]
        if rest.startswith("attn.in_proj_"):
            for kind, part in zip("qkv", _thirds(entry)):
                yield f"{layer}.self_attn.{kind}_proj.{rest.removeprefix('attn.in_proj_')}", part
            return
        inside, _, end = rest.rpartition(".")
        if inside in INSIDE:
            yield f"{layer}.{INSIDE[inside]}.{end}", entry


def _thirds(entry: TensorEntry) -> Iterator[TensorEntry]:
    """Of rows: their bytes lie one after the other."""
    shape, size = (entry.shape[0] // 3, *entry.shape[1:]), (entry.stop - entry.start) // 3
    for i in range(3):
        start = entry.start + i * size
        yield replace(entry, shape=shape, start=start, stop=start + size)
