"""An autoencoder that is served in place of a checkpoint's own: in diffusers' layout, or in a single file."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from apps.arrays.model_folder import CheckpointError, TensorEntry
from apps.serving.numbers.ranges import check
from apps.stable_diffusion.engine.ldm import architecture, vae_names
from apps.stable_diffusion.engine.ldm.component import ComponentFile
from apps.stable_diffusion.engine.ldm.locations import located
from apps.stable_diffusion.engine.model.checkpoint import VAE_FILE
from apps.stable_diffusion.engine.model.config_ranges import FIELDS


class Autoencoder(ComponentFile):
    """Its config and tensors, as a `ComponentSource`.

    Args:
        location: a folder with config.json, or a file in safetensors: local, at a URL, or on the hub as OWNER/NAME or
            OWNER/NAME/FILE.
        is_xl: whether it is for XL, whose latents have a scale of their own.

    Raises:
        CheckpointError: it cannot be read, or is no autoencoder of these models.
    """

    def __init__(self, location: str, is_xl: bool) -> None:
        folder, file = located(location, ["config.json", VAE_FILE])
        super().__init__(folder, file or VAE_FILE)
        entries = self.header(self.name)
        if file is None:
            config = self.read_json("config.json")
            if not isinstance(config, dict):
                raise CheckpointError(f"{location}: config.json is missing or is not a JSON object")
            check(f"{location}/config.json", config, FIELDS["vae"], CheckpointError)
            self.vae_config, self.entries = config, entries
            return
        own = {name.removeprefix(architecture.VAE): entry for name, entry in entries.items()}
        try:
            self.vae_config = architecture.vae(own, is_xl)
        except CheckpointError as error:
            raise CheckpointError(f"{location} is no autoencoder of Stable Diffusion: {error}") from None
        self.entries = vae_tensors(own, self.vae_config)


def vae_tensors(own: Mapping[str, TensorEntry], config: Mapping[str, Any]) -> dict[str, TensorEntry]:
    """An autoencoder's tensors in a single file -> by diffusers' names."""
    levels = len(config["block_out_channels"])
    renamed = ((vae_names.diffusers(name, levels), entry) for name, entry in own.items())
    return {name: _without_pixels(name, entry) for name, entry in renamed}


def _without_pixels(name: str, entry: TensorEntry) -> TensorEntry:
    """The middle's attention is a convolution of one pixel there, and a product of matrices in diffusers."""
    if ".attentions." in name and len(entry.shape) == 4:
        return replace(entry, shape=entry.shape[:2])
    return entry
