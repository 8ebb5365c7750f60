"""A checkpoint in a single safetensors file, as Stability published them and as their users share them.

Its tensors are named as in CompVis' and Stability's code, and it has neither configs nor tokenizers: the first are read
off the shapes, the second, which all of these models share, come from another place.
"""

from functools import cached_property
from typing import Any, Literal

import numpy as np

from apps.arrays.model_folder import CheckpointError, ModelFolder, TensorEntry
from apps.stable_diffusion.engine.ldm import architecture, clip_names
from apps.stable_diffusion.engine.ldm.architecture import Config, Entries
from apps.stable_diffusion.engine.ldm.autoencoder import vae_tensors
from apps.stable_diffusion.engine.ldm.unet_names import UNetNames
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint, read_tokenizer
from apps.stable_diffusion.engine.model.pipelines import XL

Prediction = Literal["epsilon", "v_prediction"]

TOKENIZER = "openai/clip-vit-large-patch14"
PUBLISHED = {"num_train_timesteps": 1000, "beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
PUBLISHED |= {"steps_offset": 1, "set_alpha_to_one": False, "clip_sample": False}
"""What all of these models were trained with, and how their published configs take steps."""
SAYS = {"epsilon": "epsilon", "v": "v_prediction", "v_prediction": "v_prediction"}
"""`modelspec.prediction_type` in a file's metadata."""


class SingleFile(Checkpoint):
    """The checkpoint of Stable Diffusion 1.x, 2.x or XL in a file of a folder.

    Args:
        tokenizer: a local folder or hub id with CLIP's tokenizer.
        prediction: what the UNet predicts; None: what the file says, else noise.
        has_vae: False: another autoencoder is served in place of its own, which it need not have.

    Raises:
        CheckpointError: the file cannot be read, is of another kind, or has only a part of a model.
    """

    def __init__(
        self,
        folder: str,
        name: str,
        tokenizer: str = TOKENIZER,
        prediction: Prediction | None = None,
        has_vae: bool = True,
    ) -> None:
        ModelFolder.__init__(self, folder)
        self._name, self._tokenizer, self._prediction = name, tokenizer, prediction
        self.index = {"force_zeros_for_empty_prompt": True}
        whole = self.header(name)
        self.kind, prefixes = architecture.prefixes(self._where, whole, has_vae)
        self._open_clip = {component: prefix.endswith("model.") for component, prefix in prefixes.items()}
        own = {
            component: {key.removeprefix(prefix): entry for key, entry in whole.items() if key.startswith(prefix)}
            for component, prefix in prefixes.items()
        }
        self._markers = {key for key in ("v_pred", "ztsnr") if key in whole}
        try:
            self._entries, self._configs = self._read(own)
        except CheckpointError as error:
            raise CheckpointError(f"{self._where}: {error}") from None

    @property
    def _where(self) -> str:
        return f"{self.location}/{self._name}"

    def where(self, component: str) -> str:
        """See `Checkpoint.where`."""
        return f"{self._where}: {component}"

    def _read(self, own: dict[str, dict[str, TensorEntry]]) -> tuple[dict[str, Entries], dict[str, Config]]:
        entries: dict[str, Entries] = {}
        configs: dict[str, Config] = {}
        for component in self.text_encoders:
            entries[component] = self._of_text_encoder(component, own[component])
            # 2.x reads the last layer but one, which makes it the last.
            left_out = 1 if self._open_clip[component] and self.kind is not XL else 0
            configs[component] = architecture.text_encoder(entries[component], self._open_clip[component], left_out)
        second = any(self._open_clip[component] for component in self.text_encoders)
        configs["unet"] = self._checked_unet(architecture.unet(own["unet"], open_clip=second))
        if self.kind is XL:
            pooled = configs["text_encoder_2"]["projection_dim"]
            sizes = configs["unet"]["projection_class_embeddings_input_dim"] - pooled
            configs["unet"]["addition_time_embed_dim"] = sizes // 6
        if "vae" in own:
            configs["vae"] = architecture.vae(own["vae"], is_xl=self.kind is XL)
            entries["vae"] = vae_tensors(own["vae"], configs["vae"])
        from apps.stable_diffusion.engine.model.unet import UNetArchitecture  # with JAX

        names = UNetNames(UNetArchitecture.of(configs["unet"]))
        renamed = ((names.diffusers(name), entry) for name, entry in own["unet"].items())
        entries["unet"] = {name: entry for name, entry in renamed if name is not None}
        return entries, configs

    def _of_text_encoder(self, component: str, own: Entries) -> Entries:
        if not self._open_clip[component]:
            return {name.removeprefix("text_model."): entry for name, entry in own.items()}
        return {new: part for name, entry in own.items() for new, part in clip_names.transformers(name, entry)}

    def _checked_unet(self, config: Config) -> Config:
        what = {9: "an inpainting model, whose UNet reads the mask", 8: "an InstructPix2Pix model"}
        if config["in_channels"] in what:
            raise CheckpointError(f"it is {what[config['in_channels']]}; served are models that draw from text")
        return config

    def _own_config(self, component: str) -> dict[str, Any]:
        return dict(self._configs[component])

    @cached_property
    def scheduler_config(self) -> dict[str, Any]:
        """See `Checkpoint.scheduler_config`."""
        config = PUBLISHED | {"prediction_type": self._predicts()}
        if self.kind is XL:
            config["timestep_spacing"] = "leading"
        if "ztsnr" in self._markers:
            config |= {"rescale_betas_zero_snr": True, "timestep_spacing": "trailing"}
        return config

    def _predicts(self) -> str:
        if self._prediction is not None:
            return self._prediction
        if self._markers:
            return "v_prediction"
        said = self.metadata(self._name).get("modelspec.prediction_type")
        if said in SAYS:
            return SAYS[said]
        if self._open_clip["text_encoder"]:
            raise CheckpointError(
                f"{self._where} is Stable Diffusion 2.x and does not say what its UNet predicts: set prediction to "
                "v_prediction (2.x at 768) or epsilon (2.x base, at 512)"
            )
        return "epsilon"

    def tensors(self, component: str) -> dict[str, TensorEntry]:
        """See `Checkpoint.tensors`."""
        return dict(self._entries[component])

    def read(self, entry: TensorEntry) -> np.ndarray:
        """See `Checkpoint.read`."""
        if isinstance(entry, clip_names.Transposed):
            return super().read(TensorEntry(entry.file, entry.dtype, entry.shape[::-1], entry.start, entry.stop)).T
        return super().read(entry)

    def tokenizer(self, name: str) -> Any:
        """See `Checkpoint.tokenizer`."""
        tokenizer = read_tokenizer(self._tokenizer, "tokenizer")
        if self._open_clip[name.replace("tokenizer", "text_encoder")]:
            tokenizer.pad_token = "!"  # as OpenCLIP's, whose padding is the id 0
        return tokenizer
