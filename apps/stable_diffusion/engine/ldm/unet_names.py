"""A UNet's layers as CompVis' code names them: `input_blocks.4.1.proj_in`.

Source read: `convert_ldm_unet_checkpoint` in diffusers' loaders/single_file_utils.py, which maps the other way.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # it imports JAX
    from apps.stable_diffusion.engine.model.unet import UNetArchitecture

RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
OUTSIDE = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "add_embedding.linear_1": "label_emb.0.0",
    "add_embedding.linear_2": "label_emb.0.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
_RESNET_BACK, _OUTSIDE_BACK = ({ldm: own for own, ldm in table.items()} for table in (RESNET, OUTSIDE))


class UNetNames:
    """The names of one architecture's layers."""

    def __init__(self, arch: "UNetArchitecture") -> None:
        self._blocks = dict(_blocks(arch))
        self._back = {ldm: block for block, ldm in self._blocks.items()}

    def ldm(self, name: str) -> str:
        """A layer's or tensor's name in diffusers' layout -> in CompVis'."""
        for outside, ldm in OUTSIDE.items():
            if name == outside or name.startswith(f"{outside}."):
                return ldm + name.removeprefix(outside)
        block = next(block for block in self._blocks if name.startswith(f"{block}."))
        rest = name.removeprefix(f"{block}.")
        if ".resnets." in block:
            layer, dot, end = rest.partition(".")
            rest = RESNET[layer] + dot + end
        if block.endswith("downsamplers.0"):
            rest = rest.replace("conv", "op", 1)
        return f"{self._blocks[block]}.{rest}"

    def diffusers(self, name: str) -> str | None:
        """The way back, of a tensor's name; None: this architecture has no such block."""
        for ldm, outside in _OUTSIDE_BACK.items():
            if name.startswith(f"{ldm}."):
                return outside + name.removeprefix(ldm)
        parts = name.split(".")
        block = self._back.get(".".join(parts[: 2 if parts[0] == "middle_block" else 3]))
        if block is None:
            return None
        rest = name.removeprefix(f"{self._blocks[block]}.")
        if ".resnets." in block:
            layer, _, end = rest.rpartition(".")
            rest = f"{_RESNET_BACK.get(layer, layer)}.{end}"
        if block.endswith("downsamplers.0"):
            rest = rest.replace("op", "conv", 1)
        return f"{block}.{rest}"


def _blocks(arch: "UNetArchitecture") -> Iterator[tuple[str, str]]:
    last, place = len(arch.channels) - 1, 1
    for i in range(last + 1):
        for j in range(arch.resnets):
            yield f"down_blocks.{i}.resnets.{j}", f"input_blocks.{place}.0"
            yield f"down_blocks.{i}.attentions.{j}", f"input_blocks.{place}.1"
            place += 1
        if i < last:
            yield f"down_blocks.{i}.downsamplers.0", f"input_blocks.{place}.0"
            place += 1
    for j, kind in enumerate(("resnets.0", "attentions.0", "resnets.1")):
        yield f"mid_block.{kind}", f"middle_block.{j}"
    place = 0
    for i in range(last + 1):
        for j in range(arch.resnets + 1):
            yield f"up_blocks.{i}.resnets.{j}", f"output_blocks.{place}.0"
            yield f"up_blocks.{i}.attentions.{j}", f"output_blocks.{place}.1"
            if j == arch.resnets and i < last:
                yield f"up_blocks.{i}.upsamplers.0", f"output_blocks.{place}.{2 if arch.up[i] else 1}"
            place += 1
