"""Which backend serves a checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Literal

from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint

log = logging.getLogger("podslice")

Name = Literal["auto", "jax", "torch", "torch_xla"]


def open_backend(
    model: str,
    *,
    sizes: Sequence[tuple[int, int]],
    backend: Name = "auto",
    max_batch_size: int = 8,
    guidance_scale: float = 7.5,
    dtype: str = "bfloat16",
    compile_cache: str | None = None,
    progress: Callable[[str, int, int, float], None] | None = None,
) -> Backend:
    """A backend that is ready: weights loaded, programs compiled.

    Args:
        model: local folder, hub id, or fsspec URL.
        sizes: (width, height) in pixels.
        guidance_scale: the default of requests; at 1 and below no request may ask for guidance.
        compile_cache: folder in which compiled programs outlive the process (jax).
        progress: told (program, how many are done, of how many, its seconds) while compiling.

    Raises:
        CheckpointError: the model can't be read or is of another kind.
        ValueError: a size that the model can't make.
    """
    checkpoint = Checkpoint(model)
    chosen = choose() if backend == "auto" else backend
    settings = {
        "sizes": tuple(sizes),
        "max_batch_size": max_batch_size,
        "guided": guidance_scale > 1,
        "dtype": dtype,
    }
    if chosen == "jax":
        from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend

        opened = JaxBackend(checkpoint, compile_cache=compile_cache, **settings)
    else:
        from apps.stable_diffusion.engine.backends.torch_backend import TorchBackend

        opened = TorchBackend(checkpoint, device="xla" if chosen == "torch_xla" else None, **settings)
    log.info("%s on %s with %s", model, opened.device, opened.name)
    opened.compile(progress)
    return opened  # type: ignore[return-value]  # each takes the pictures that it started, and no other's


def choose() -> Literal["jax", "torch"]:
    """jax on a TPU; torch on a GPU, where diffusers is at home; jax on a CPU.

    On a CPU the jitted programs took half the processor time of torch's modules for one small picture, and two
    thirds of it for eight together (64x64, 20 steps, float32).
    """
    import torch

    if torch.cuda.is_available():
        return "torch"
    try:
        import jax  # noqa: F401
    except ImportError:
        return "torch"
    return "jax"
