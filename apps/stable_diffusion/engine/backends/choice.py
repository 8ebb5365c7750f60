"""Chooses and opens the backend for a checkpoint."""

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.ldm.opening import open_checkpoint
from apps.stable_diffusion.engine.ldm.single_file import Prediction, SingleFile
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.model.pipelines import PipelineKind

log = logging.getLogger("podslice")

Name = Literal["auto", "jax", "torch", "torch_xla"]


def open_backend(
    model: str,
    *,
    tokenizer: str | None = None,
    prediction: Prediction | None = None,
    vae: str | None = None,
    sizes: Sequence[tuple[int, int]],
    backend: Name = "auto",
    max_batch_size: int = 8,
    guidance_scale: float = 7.5,
    dtype: str = "bfloat16",
    compile_cache: str | None = None,
    lora_room: LoraRoom | None = None,
    controlnets: Mapping[str, str] | None = None,
    prompt_chunks: int = 1,
    prepared_programs: str | None = None,
    progress: Callable[[str, int, int, float], None] | None = None,
) -> Backend[Any]:
    """A backend that is ready: weights loaded, programs compiled.

    Args:
        model, tokenizer, prediction, vae: see `open_checkpoint`.
        sizes: (width, height) in pixels.
        guidance_scale: default of requests; if that is without guidance, they cannot use it.
        compile_cache: folder that keeps compiled programs (jax).
        lora_room: room for LoRAs (jax); None: there are none.
        controlnets: locations by name (jax): see `ControlNetFile`.
        prompt_chunks: of a prompt, at most, for CLIP's text encoders.
        prepared_programs: where `podslice prepare` has written some (jax).
        progress: called with (program, number done, total, its seconds) while compiling.

    Raises:
        CheckpointError: the model cannot be read or is of another kind.
        ValueError: a size that the model cannot make.
    """
    checkpoint = open_checkpoint(model, tokenizer, prediction, vae)
    only_jax = isinstance(checkpoint, SingleFile) or vae is not None
    chosen = choose(checkpoint.kind, only_jax) if backend == "auto" else backend
    if only_jax and chosen != "jax":
        raise ValueError(
            f"backend {chosen} reads diffusers' layout alone, no single file and no other vae: set backend jax"
        )
    settings: dict[str, Any] = {
        "sizes": tuple(sizes),
        "max_batch_size": max_batch_size,
        "guided": checkpoint.kind.guided(guidance_scale),
        "dtype": dtype,
        "prompt_chunks": prompt_chunks,
    }
    if chosen == "jax":
        from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend

        settings |= {"lora_room": lora_room, "controlnets": controlnets, "prepared_programs": prepared_programs}
        opened: Backend[Any] = JaxBackend(checkpoint, compile_cache=compile_cache, **settings)
    elif controlnets:
        raise ValueError(f"backend {chosen} has no ControlNet: set backend jax, or leave controlnets out")
    elif lora_room is not None:
        raise ValueError(
            f"backend {chosen} has no LoRA: set backend jax, or leave loras, lora_folder, lora_loading out"
        )
    else:
        from apps.stable_diffusion.engine.backends.torch_backend import TorchBackend

        opened = TorchBackend(checkpoint, device="xla" if chosen == "torch_xla" else None, **settings)
    log.info("%s on %s with %s", model, opened.device, opened.name)
    opened.compile(progress)
    return opened


def choose(kind: PipelineKind, only_jax: bool = False) -> Literal["jax", "torch"]:
    """jax on a TPU and on a CPU; torch on a GPU, diffusers' home ground, for checkpoints that it can make ready here.

    On a CPU the jitted programs took half the CPU time of torch's modules for one small picture, and two thirds of it
    for a batch of eight (64x64, 20 steps, float32).
    """
    import torch

    unet = "unet" in kind.components and not only_jax
    if unet and torch.cuda.is_available():
        return "torch"
    try:
        import jax  # noqa: F401
    except ImportError:
        if unet:
            return "torch"
        raise
    return "jax"
