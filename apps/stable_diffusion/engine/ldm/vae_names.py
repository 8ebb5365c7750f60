"""An autoencoder's tensors as CompVis' code names them: `encoder.down.0.block.1.nin_shortcut.weight`.

Source read: `convert_ldm_vae_checkpoint` in diffusers' loaders/single_file_utils.py.
"""

import re

BLOCK = re.compile(r"(encoder|decoder)\.(down|up)\.(\d+)\.(block\.(\d+)|downsample|upsample)\.(.+)")
MIDDLE = re.compile(r"(encoder|decoder)\.mid\.(block|attn)_(\d)\.(.+)")
ATTENTION = {"norm": "group_norm", "q": "to_q", "k": "to_k", "v": "to_v", "proj_out": "to_out.0"}


def diffusers(name: str, levels: int) -> str:
    """A tensor's name there -> in diffusers' layout.

    Args:
        levels: resolutions of the autoencoder; on the way up CompVis counts them from the finest.
    """
    if found := BLOCK.fullmatch(name):
        side, way, level, kind, number, rest = found.groups()
        place = int(level) if way == "down" else levels - 1 - int(level)
        if number is None:
            return f"{side}.{way}_blocks.{place}.{kind}rs.0.{rest}"
        return f"{side}.{way}_blocks.{place}.resnets.{number}.{_resnet(rest)}"
    if found := MIDDLE.fullmatch(name):
        side, kind, number, rest = found.groups()
        if kind == "block":
            return f"{side}.mid_block.resnets.{int(number) - 1}.{_resnet(rest)}"
        layer, _, end = rest.partition(".")
        return f"{side}.mid_block.attentions.0.{ATTENTION.get(layer, layer)}.{end}"
    return name.replace("coder.norm_out.", "coder.conv_norm_out.")


def _resnet(rest: str) -> str:
    return rest.replace("nin_shortcut", "conv_shortcut")
