"""Puts the parts of a pipeline together: its programs, from its components' configs alone, tokenizer and schedule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.model_folder import CheckpointError
from apps.stable_diffusion.engine.backends.program_list import ProgramList
from apps.stable_diffusion.engine.backends.programs import Programs
from apps.stable_diffusion.engine.conditioning.chat_prompts import TemplatedPrompts
from apps.stable_diffusion.engine.conditioning.clip import ClipEncoder
from apps.stable_diffusion.engine.conditioning.clip_tokens import ClipTokens
from apps.stable_diffusion.engine.conditioning.interface import PromptEncoder
from apps.stable_diffusion.engine.conditioning.prompts import Tokenizing
from apps.stable_diffusion.engine.controlnets.loaded import ControlFile, control_programs
from apps.stable_diffusion.engine.denoisers.flux2 import Flux2Denoiser
from apps.stable_diffusion.engine.denoisers.interface import Denoiser
from apps.stable_diffusion.engine.denoisers.unet import UNetDenoiser
from apps.stable_diffusion.engine.denoisers.z_image import ZImageDenoiser
from apps.stable_diffusion.engine.ldm.unet_names import UNetNames
from apps.stable_diffusion.engine.loras.known import KnownLoras
from apps.stable_diffusion.engine.loras.layers import layers_of
from apps.stable_diffusion.engine.loras.names import LoraNames
from apps.stable_diffusion.engine.loras.pool import LoraPool
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.model import unet, vae
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.model.pipelines import KLEIN, Z_IMAGE, PipelineKind
from apps.stable_diffusion.engine.request import Size
from apps.stable_diffusion.engine.scheduling.flow import FlowSchedule, klein_shift
from apps.stable_diffusion.engine.scheduling.schedules import NoiseSchedule
from apps.stable_diffusion.engine.scheduling.trajectory import batch_sizes
from apps.stable_diffusion.engine.transformers import flux2, z_image
from ray_configs.stable_diffusion import StableDiffusionConfig

Configs = Mapping[str, Mapping[str, Any]]
KLEINS_LAYERS = 9, 18, 27
"""Of the text encoder. Source: `Flux2KleinPipeline.encode_prompt` in diffusers."""


def programs_of(
    kind: PipelineKind,
    configs: Configs,
    sizes: Sequence[Size],
    lengths: tuple[int, ...],
    *,
    mesh: Mesh,
    attention: str,
    dtype: jnp.dtype,
    guided: bool,
    chunks: int = 1,
) -> Programs:
    """The programs of a pipeline.

    Args:
        configs: component -> its config.
        lengths: positions of each text encoder.
        chunks: of a prompt, at most, of so many positions: see `chunks`.

    Raises:
        CheckpointError: the model is not supported.
        ValueError: it cannot make pictures of one of these sizes, or has no chunks.
    """
    if chunks > 1 and not kind.emphasis:
        raise ValueError(f"max_prompt_tokens is for CLIP's text encoders: leave it out for {kind.says}")
    pixels = vae.VaeArchitecture.of(configs["vae"])
    encoder: PromptEncoder
    denoiser: Denoiser
    if kind is Z_IMAGE:
        encoder = _language(configs, "cap_feat_dim", (-1,), False, lengths[0], mesh, dtype)
        denoiser = ZImageDenoiser.of(z_image.ZImageArchitecture.of(configs["transformer"]), pixels.reduction, sizes)
    elif kind is KLEIN:
        encoder = _language(configs, "joint_attention_dim", KLEINS_LAYERS, True, lengths[0], mesh, dtype)
        denoiser = Flux2Denoiser.of(flux2.Flux2Architecture.of(configs["transformer"]), pixels.reduction, sizes)
    else:
        encoders = {name: configs[name] for name in kind.text_encoders}
        encoder = ClipEncoder(encoders, lengths, dtype, NamedSharding(mesh, P()), chunks)
        denoiser = UNetDenoiser(unet.UNetArchitecture.of(configs["unet"]), pixels.reduction)
    if pixels.latents != denoiser.channels:
        raise CheckpointError(
            f"vae/config.json: latent_channels is {pixels.latents}, but the {denoiser.component} takes "
            f"{denoiser.channels}"
        )
    side = pixels.reduction * denoiser.granularity
    for width, height in sizes:
        if width % side or height % side:
            raise ValueError(f"size {width}x{height}: this model needs multiples of {side}")
    return Programs(mesh, encoder, denoiser, pixels, attention, dtype, guided)


@dataclass(frozen=True)
class ServedPictures:
    """What a server makes pictures with, of its checkpoint: all that programs hang on.

    Args:
        sizes: (width, height) in pixels.
        max_batch_size: pictures in one pass.
        guided: False for models without guidance: half the work, and requests for guidance are refused.
        dtype: of weights and activations, bfloat16 or float32.
        attention: xla or flash, see `attention.attend`; None: flash on TPU.
        lora_room: room for LoRAs; None: the programs have none.
        controlnets: locations by name: see `ControlNetFile`.
        prompt_chunks: of a prompt, at most, for CLIP: see `chunks`.
    """

    sizes: tuple[Size, ...]
    max_batch_size: int = 8
    guided: bool = True
    dtype: str = "bfloat16"
    attention: str | None = None
    lora_room: LoraRoom | None = None
    controlnets: Mapping[str, str] | None = None
    prompt_chunks: int = 1

    @classmethod
    def of(cls, config: StableDiffusionConfig, kind: PipelineKind) -> "ServedPictures":
        """What a server of this config has, with JAX."""
        return cls(
            config.pixel_sizes,
            config.max_batch_size,
            kind.guided(config.guidance_scale),
            config.dtype,
            lora_room=LoraRoom.of(config),
            controlnets=config.controlnets,
            prompt_chunks=config.prompt_chunks,
        )

    @property
    def settings(self) -> dict[str, str]:
        """Those that programs hang on, in words."""
        return {
            "dtype": self.dtype,
            "sizes": ", ".join(f"{width}x{height}" for width, height in self.sizes),
            "guidance": str(self.guided),
            "max_prompt_tokens": f"{self.prompt_chunks} chunks",
            "loras": "0" if self.lora_room is None else "{} of rank {}".format(*self.lora_room),
            "controlnets": str(bool(self.controlnets)),
        }

    def programs(
        self, checkpoint: Checkpoint, lengths: Sequence[int], devices: Sequence[jax.Device]
    ) -> tuple[ProgramList, dict[str, ControlFile]]:
        """The programs, and the ControlNets by name. Raises as `programs_of` and `control_programs`.

        Args:
            lengths: positions of each text encoder.
            devices: they need not exist.
        """
        if self.guided and checkpoint.distilled:
            raise ValueError(
                "guidance_scale: this model is distilled, and makes no pictures with guidance: set guidance_scale=1"
            )
        configs = {name: checkpoint.config(name) for name in checkpoint.components}
        programs = programs_of(
            checkpoint.kind,
            configs,
            self.sizes,
            tuple(lengths),
            mesh=Mesh(np.array(devices), ("data",)),
            attention=self.attention or ("flash" if devices[0].platform == "tpu" else "xla"),
            dtype=np.dtype(jnp.dtype(self.dtype)),
            guided=self.guided,
            chunks=self.prompt_chunks,
        )
        controls, files = None, dict[str, ControlFile]()
        if self.controlnets:
            controls, files = control_programs(self.controlnets, configs.get("unet", {}), programs)
        batches = batch_sizes(self.max_batch_size, len(devices), passes=2 if self.guided else 1)
        return ProgramList(programs, self.sizes, batches, self.lora_room, controls), files


def loras_of(
    programs: Programs,
    arrays: Mapping[str, Any],
    room: LoraRoom,
    put: Callable[[Any], Any],
    run: Callable[..., Any],
) -> tuple[KnownLoras, LoraPool]:
    """The LoRAs that requests may name, none yet, and those on the devices.

    Args:
        arrays: the model's weights, by component.
        put: an array of the host -> of the devices.
        run: runs a compiled program: its key, then its arguments.
    """
    forms, denoiser = programs.low_rank(arrays, room), programs.denoiser
    layers = {name: layers_of(arrays[name]) for name in (*forms.pool, *forms.texts)}
    unet_names = UNetNames(denoiser.arch) if isinstance(denoiser, UNetDenoiser) else None
    names = LoraNames(layers, denoiser.component, unet_names)
    pool = LoraPool(layers, forms, lambda tree: jax.tree.map(put, tree), partial(run, ("lora",)))
    return KnownLoras(names, room.rank), pool


def tokenizing_of(checkpoint: Checkpoint, chunks: int) -> Tokenizing:
    """What makes its text encoders' inputs, of prompts of so many chunks at most. Raises CheckpointError."""
    if checkpoint.kind.flow:
        return TemplatedPrompts(checkpoint, thinking=checkpoint.kind is Z_IMAGE)
    return ClipTokens(checkpoint, chunks)


def schedule_of(checkpoint: Checkpoint) -> FlowSchedule | NoiseSchedule:
    """Its noise levels. Raises CheckpointError."""
    noise = checkpoint.scheduler_config
    if not checkpoint.kind.flow:
        return NoiseSchedule(noise, checkpoint.is_xl)
    return FlowSchedule(noise, klein_shift if checkpoint.kind is KLEIN else None)


def _language(
    configs: Configs, field: str, layers: Sequence[int], padded: bool, length: int, mesh: Mesh, dtype: jnp.dtype
) -> PromptEncoder:
    """The text encoder of a transformer whose config has its width in `field`. See `LanguageEncoder`."""
    from apps.stable_diffusion.engine.conditioning.language import LanguageEncoder  # with the language engine

    config, wanted = configs["text_encoder"], configs["transformer"].get(field)
    if wanted != (has := len(layers) * config.get("hidden_size", 0)):
        raise CheckpointError(
            f"transformer/config.json: {field} is {wanted}, but the text encoder's hidden_size "
            f"{'is' if len(layers) == 1 else f'times {len(layers)} layers is'} {has}"
        )
    return LanguageEncoder.of(config, layers, padded, length, dtype, mesh.devices)
