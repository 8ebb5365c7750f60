"""A ControlNet's tensors as its authors' code names them: `control_model.zero_convs.3.0.weight`.

Source read: `convert_controlnet_checkpoint` in diffusers' loaders/single_file_utils.py.
"""

from apps.stable_diffusion.engine.ldm.unet_names import UNetNames

PREFIX = "control_model."
LAST_OF_IMAGE = "input_hint_block.14"
"""They all make an image eight times smaller: six convolutions between the first and this one."""


def diffusers(name: str, unet: UNetNames) -> str | None:
    """A tensor's name -> in diffusers' layout; None: this architecture has no such block.

    Args:
        unet: names of the UNet whose first half it is.
    """
    layer, _, end = name.removeprefix(PREFIX).rpartition(".")
    parts = layer.split(".")
    match parts[0]:
        case "zero_convs":
            return f"controlnet_down_blocks.{parts[1]}.{end}"
        case "middle_block_out":
            return f"controlnet_mid_block.{end}"
        case "input_hint_block":
            return f"controlnet_cond_embedding.{_of_image(layer, int(parts[1]))}.{end}"
        case _:
            return unet.diffusers(name.removeprefix(PREFIX))


def _of_image(layer: str, place: int) -> str:
    if place == 0:
        return "conv_in"
    return "conv_out" if layer == LAST_OF_IMAGE else f"blocks.{place // 2 - 1}"
