"""What the keys of LoRA files mean, in the layouts that are in use.

- kohya's: `lora_unet_` or `lora_te_`, `lora_te1_`, `lora_te2_`, then the layer's name with underscores for dots, of an
  XL UNet as CompVis' code has it; `lora_down.weight`, `lora_up.weight` and `alpha`;
- diffusers' and PEFT's: `unet.`, `transformer.` or `text_encoder.`, the layer's name, then `lora_A.weight`, or
  `lora.down.weight`, or in older files `processor.to_q_lora.down.weight` and `lora_linear_layer.down.weight`; `alpha`;
- that of ComfyUI and others for transformers: `diffusion_model.`, the layer's name, then kohya's or PEFT's ends.

Sources read: `_convert_non_diffusers_lora_to_diffusers`, `_convert_non_diffusers_z_image_lora_to_diffusers` and
`convert_state_dict_to_peft` in diffusers.
"""

import re
from collections.abc import Mapping
from typing import Literal, NamedTuple

from apps.stable_diffusion.engine.ldm.unet_names import UNetNames
from apps.stable_diffusion.engine.loras.layers import Layers

Part = Literal["down", "up", "alpha"]

OTHER_METHODS = {
    "dora_scale": "DoRA",
    "lora_magnitude_vector": "DoRA",
    "hada_": "LoHa",
    "lokr_": "LoKr",
    "lora_mid": "a LoCon in Tucker's form",
    "oft_": "OFT",
    "boft_": "BOFT",
    "on_input": "IA3",
    "a1.weight": "GLoRA",
    "glora": "GLoRA",
    "w_norm": "a change of norms",
    "b_norm": "a change of norms",
    "lora_B.bias": "LoRA with biases",
    "lora_up.bias": "LoRA with biases",
    "diff_b": "a difference of biases",
    "diff": "a difference of whole weights",
    "bundle_emb": "an embedding",
    "lora_embedding_A": "LoRA of an embedding",
    "lora_embedding_B": "LoRA of an embedding",
    "modules_to_save": "whole layers",
}
"""What a key has after a dot, or begins with there -> the method that writes it."""

_KOHYA = re.compile(
    r"lora_(?P<component>unet|te|te1|te2)_(?P<layer>\w+)\.(?P<part>lora_down\.weight|lora_up\.weight|alpha)"
)
_DIFFUSERS = re.compile(
    r"(?P<layer>[\w.]+?)(?P<part>\.lora_A(?:\.default)?\.weight|\.lora_B(?:\.default)?\.weight"
    r"|\.lora_(?:down|up)\.weight|(?:[._]lora|\.lora_linear_layer)\.(?:down|up)\.weight|(?:\.lora|\.lora_linear_layer)?\.alpha)"
)
_PARTS: dict[str, Part] = {"alpha": "alpha", "down": "down", "A": "down", "up": "up", "B": "up"}
_TEXT_ATTENTION = {"to_q": "q_proj", "to_k": "k_proj", "to_v": "v_proj", "to_out": "out_proj"}
"""Names of a text encoder's projections in diffusers' older files."""


class LoraKey(NamedTuple):
    """What a tensor is."""

    component: str
    layer: str
    part: Part


def other_method(key: str) -> str | None:
    """The method that writes such a key, if it is another one than LoRA."""
    parts = key.split(".")[1:]
    tails = [".".join(parts[i:]) for i in range(len(parts))]
    return next(
        (method for start, method in OTHER_METHODS.items() if any(_begins(tail, start) for tail in tails)), None
    )


def _begins(tail: str, start: str) -> bool:
    return tail.startswith(start) if start.endswith("_") else f"{tail}.".startswith(f"{start}.")


class LoraNames:
    """The layers of a model by the names that files have for them.

    Args:
        layers: by component.
        denoiser: the component that kohya's files call the UNet, and others' `diffusion_model`.
        unet: its names in CompVis' layout, if it is a UNet.
    """

    def __init__(self, layers: Mapping[str, Layers], denoiser: str, unet: UNetNames | None = None) -> None:
        self.layers, self.denoiser = layers, denoiser
        self._flat = {
            component: {flat: name for name in own for flat in _flat(component, name)}
            for component, own in layers.items()
        }
        if unet is not None:
            self._flat[denoiser] |= {unet.ldm(name).replace(".", "_"): name for name in layers[denoiser]}

    def read(self, key: str) -> LoraKey | None:
        """What a key means; None: nothing in this model."""
        if found := _KOHYA.fullmatch(key):
            component = {"unet": self.denoiser, "te2": "text_encoder_2"}.get(found["component"], "text_encoder")
            layer = self._flat.get(component, {}).get(found["layer"])
            part = found["part"].removeprefix("lora_").removesuffix(".weight")
            return None if layer is None else LoraKey(component, layer, _PARTS[part])
        if (found := _DIFFUSERS.fullmatch(key)) is None:
            return None
        component, _, layer = found["layer"].partition(".")
        if component == "diffusion_model":
            component = self.denoiser
        if component not in self.layers:  # the oldest have the UNet alone
            component, layer = self.denoiser, found["layer"]
        if layer not in self.layers[component]:
            layer = _current(component, layer)
        part = next(part for part in re.split(r"[._]", found["part"]) if part in _PARTS)
        return LoraKey(component, layer, _PARTS[part]) if layer in self.layers[component] else None


def _flat(component: str, layer: str) -> list[str]:
    """A layer's names with underscores.

    transformers had `text_model.` before a text encoder's layers until 5.0; diffusers has renamed some transformers'.
    """
    is_text = component.startswith("text_encoder") and layer != "text_projection"
    names = [layer, f"text_model.{layer}"] if is_text else [layer]
    if layer.endswith(".attention.to_out.0"):
        names += [layer.replace(".to_out.0", ".to_out"), layer.replace(".to_out.0", ".out")]
    return [name.replace(".", "_") for name in names]


def _current(component: str, layer: str) -> str:
    """A layer's name as files of today have it."""
    if component.startswith("text_encoder"):
        path, _, last = layer.removeprefix("text_model.").rpartition(".")
        return f"{path}.{_TEXT_ATTENTION.get(last, last)}" if path else last
    layer = layer.replace(".processor.", ".")
    if layer.endswith(".attention.out"):  # of the transformers that diffusers has renamed
        layer = layer.removesuffix("out") + "to_out"
    return f"{layer}.0" if layer.endswith(".to_out") else layer
