"""Stable Diffusion through diffusers' own torch modules, with the same tables of coefficients. See `backend.Backend`.

The same class runs on the CPU, on a GPU, and on a TPU through torch_xla. There torch only records operations; a sync
turns the record into a program, compiles it if it is new, and launches it. `compile` must meet every program that a
request can cause, so on XLA

- each part (a text, an image, gathering a batch, a step, splitting the batch, a decoded picture) ends with its own
  sync, at which only its results are alive: every tensor alive at a sync is an output of the program;
- batches are padded to fixed sizes, and no tensor is in a batch twice: a program with the same tensor as two inputs is
  a different program;
- numbers that differ between requests are tensors with dimensions: Python's 0 and 1 would become part of a program;
- inputs that a request does not use (a kept part, a step's noise) are passed too, with values that change nothing.

Everything runs under no_grad: torch_xla cannot take views of inference mode's tensors.
"""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from apps.stable_diffusion.engine.backends import torch_devices
from apps.stable_diffusion.engine.backends.backend import Progress
from apps.stable_diffusion.engine.backends.torch_networks import KeptRegion, TorchNetworks, TorchText
from apps.stable_diffusion.engine.conditioning.clip_tokens import ClipTokens
from apps.stable_diffusion.engine.conditioning.prompts import Prompts
from apps.stable_diffusion.engine.controlnets.use import KnownControls
from apps.stable_diffusion.engine.loras.known import KnownLoras
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint, refuse_others
from apps.stable_diffusion.engine.request import PictureRequest, Size
from apps.stable_diffusion.engine.scheduling.schedules import COLUMNS, NoiseSchedule, StepCoefficients
from apps.stable_diffusion.engine.scheduling.trajectory import (
    RESTING,
    Planner,
    StartedPicture,
    batch_sizes,
    check_batch,
)

log = logging.getLogger("podslice")
CHANNELS = 4  # of the latents


@dataclass(eq=False)
class TorchPicture(StartedPicture):
    latents: torch.Tensor  # [1, 4, h, w] float32
    estimate: torch.Tensor
    prompt: TorchText
    negative: TorchText | None
    kept: KeptRegion | None  # never None on XLA


class TorchBackend:
    """Loads a checkpoint through diffusers; `compile` makes it ready. Its arguments are JaxBackend's, and:

    Args:
        device: cpu, cuda, cuda:1, or xla (one chip of a slice); default: a GPU if there is one.

    Raises:
        CheckpointError: the checkpoint cannot be read or is of another kind.
        ValueError: a size that this model cannot make; xla without torch_xla, or without a device for it.
    """

    programs_compiled = compiles_after_ready = 0  # not counted

    def __init__(
        self,
        checkpoint: Checkpoint | str,
        *,
        sizes: Sequence[tuple[int, int]],
        max_batch_size: int = 8,
        guided: bool = True,
        dtype: str = "bfloat16",
        device: str | None = None,
        prompt_chunks: int = 1,
    ) -> None:
        checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        self._xla = device is not None and device.startswith("xla")
        self.name = "torch_xla" if self._xla else "torch"
        self._device, self.device = torch_devices.opened(device, precise=dtype == "float32")
        self._dtype = getattr(torch, dtype)
        self._guided = guided
        if "unet" not in checkpoint.components:
            raise ValueError(f"backend {self.name} makes pictures with UNets only: {checkpoint.kind.says} needs jax")
        refuse_others(checkpoint.config("unet"), "unet", {"in_channels": (CHANNELS,), "time_cond_proj_dim": (None,)})
        refuse_others(checkpoint.config("vae"), "vae", {"latents_mean": (None,), "latents_std": (None,)})
        schedule = NoiseSchedule(checkpoint.scheduler_config, checkpoint.is_xl)
        self._networks = TorchNetworks(checkpoint, self._device, self._dtype, guided)
        self.sizes = tuple(sizes)
        reduction = self._networks.reduction
        for width, height in self.sizes:
            if width % reduction or height % reduction:
                raise ValueError(f"size {width}x{height}: this model needs multiples of {reduction}")
        self.schedulers, self.emphasis = schedule.schedulers, checkpoint.kind.emphasis
        self.text_layers = checkpoint.text_layers
        self._planner = Planner(reduction, CHANNELS, guided, checkpoint.kind.no_guidance, schedule)
        self.batch_sizes = batch_sizes(max_batch_size)
        self._is_xl = checkpoint.is_xl
        tokens = ClipTokens(checkpoint, prompt_chunks)
        self._prompts = Prompts(checkpoint, tokens, guided, self._encode_text, lambda text: text.map(torch.zeros_like))
        self.loras, self.controls = KnownLoras(), KnownControls()
        self._fillers: dict[tuple[int, int], list[TorchPicture]] = {}
        self._sync()

    def group(self, size: Size) -> Size:
        """See `Backend.group`."""
        return size

    def compile(self, progress: Progress | None = None) -> None:
        """Run every size (on XLA, every batch size too) once, so that everything is warm for the first request."""
        batches = self.batch_sizes if self._xla else self.batch_sizes[:1]
        total = len(self.sizes) * len(batches)
        for done, (size, b) in enumerate(((size, b) for size in self.sizes for b in batches), start=1):
            began = time.monotonic()
            pictures = [self.start(self._sample(size)) for _ in range(b)]
            self.denoise(pictures, 1)
            if b == batches[0]:  # the parts that handle one picture at a time
                width, height = size
                self.start(self._sample(size, image=np.zeros((height, width, 3), np.uint8)))
                self.decode(pictures[:1])
            self.wait(pictures)
            if progress is not None:
                progress(f"{size[0]}x{size[1]} batch {b}", done, total, time.monotonic() - began)

    def _sample(self, size: tuple[int, int], **more: Any) -> PictureRequest:
        """A request used only for its shapes."""
        return PictureRequest("a", *size, 2, 7.5 if self._guided else 1.0, "ddim", seed=0, **more)

    # -- pictures -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def start(self, request: PictureRequest) -> TorchPicture:
        """See `Backend.start`."""
        plan = self._planner.plan(request)
        self.loras.combination(request.loras)
        self.controls.check(request.controls)
        start_noise, schedule = plan.start_noise, plan.schedule
        noise = schedule.start_noise * start_noise
        if request.latents is not None:
            noise = noise + schedule.start_image * torch.from_numpy(request.latents).permute(2, 0, 1)[None]
        latents, kept = noise.to(self._device), None
        if request.image is not None:
            original = self._encode_image(request.image, plan.image_noise)
            latents = latents + torch.full((1, 1, 1, 1), schedule.start_image).to(self._device) * original
            self._sync()
            if request.mask is not None:
                mask = torch.from_numpy(plan.mask)[None, None].to(self._device)
                kept = KeptRegion(mask, original, start_noise.to(self._device))
        if kept is None and self._xla:
            nothing = torch.zeros_like(start_noise)
            kept = KeptRegion(*(part.to(self._device) for part in (torch.ones_like(nothing[:, :1]), nothing, nothing)))
        prompt, negative, warnings = self._prompts.encoded(request)
        prompt, negative = prompt.map(self._upload), None if negative is None else negative.map(self._upload)
        estimate = torch.zeros_like(start_noise).to(self._device)
        self._sync()
        return TorchPicture(request, warnings, plan, latents, estimate, prompt, negative, kept)

    def end(self, picture: TorchPicture) -> None:
        """See `Backend.end`."""

    @torch.no_grad()
    def denoise(self, pictures: Sequence[TorchPicture], steps: int) -> None:
        """See `Backend.denoise`."""
        groups = [self.group((picture.request.width, picture.request.height)) for picture in pictures]
        check_batch([picture.plan for picture in pictures], groups, steps, self.batch_sizes[-1])
        b = next(b for b in self.batch_sizes if b >= len(pictures)) if self._xla else len(pictures)
        batch = [*pictures, *self._filled_up(pictures[0].request, b - len(pictures))]
        texts = self._conditioning(batch)
        latents, estimate = (torch.cat([getattr(p, name) for p in batch]) for name in ("latents", "estimate"))
        kept = self._kept(batch)
        self._sync()
        for _ in range(steps):
            rows = np.stack([p.plan.next_coefficients() for p in pictures] + [RESTING] * (b - len(pictures)))
            coefficients, noise = torch.from_numpy(rows).to(self._device), self._noise(pictures, b)
            latents, estimate = self._step(latents, estimate, coefficients, noise, texts, kept)
            self._sync()
            for picture in pictures:
                picture.plan.steps_done += 1
        # A copy: on XLA a slice keeps the whole batch.
        each = [(latents[i : i + 1].clone(), estimate[i : i + 1].clone()) for i in range(b)]
        self._sync()
        for picture, (its_latents, its_estimate) in zip(pictures, each):
            picture.latents, picture.estimate = its_latents, its_estimate

    def wait(self, pictures: Sequence[TorchPicture]) -> None:
        """See `Backend.wait`."""
        if self._xla:
            from torch_xla.core import xla_model

            xla_model.wait_device_ops()
        elif self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def latents(self, picture: TorchPicture) -> np.ndarray:
        """See `Backend.latents`."""
        return picture.latents[0].permute(1, 2, 0).cpu().numpy()

    @torch.no_grad()
    def decode(self, pictures: Sequence[TorchPicture], estimate: bool = False) -> list[np.ndarray | None]:
        """See `Backend.decode`. One picture at a time: a decoder's attention is large."""
        decoded = []
        for picture in pictures:
            decoded.append(self._networks.decode(picture.estimate if estimate else picture.latents))
            self._sync()
        return [
            np.ascontiguousarray(pixels.cpu().numpy().transpose(1, 2, 0)) if bool(finite) else None
            for pixels, finite in decoded
        ]

    # -- parts of a step ----------------------------------------------------------------------------------------

    def _conditioning(self, batch: Sequence[TorchPicture]) -> dict[str, Any]:
        """The UNet's arguments that say what is drawn, all negative prompts before all prompts."""
        negatives = [p.negative for p in batch if p.negative is not None] if self._guided else []
        texts = [*negatives, *(p.prompt for p in batch)]
        found: dict[str, Any] = {"encoder_hidden_states": torch.cat([text.context for text in texts])}
        if texts[0].seen is not None:
            found["encoder_attention_mask"] = torch.cat([text.seen for text in texts])
        if self._is_xl:
            request = batch[0].request
            sizes = [request.height, request.width, 0, 0, request.height, request.width]
            ids = torch.tensor([sizes] * len(texts), dtype=self._dtype).to(self._device)
            pooled = torch.cat([text.pooled for text in texts])
            found["added_cond_kwargs"] = {"text_embeds": pooled, "time_ids": ids}
        return found

    def _step(
        self,
        latents: torch.Tensor,
        estimate: torch.Tensor,
        coefficients: torch.Tensor,
        noise: torch.Tensor | None,
        texts: dict[str, Any],
        kept: KeptRegion | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The next latents and estimates. `coefficients` has each picture's `next_coefficients`."""
        step = StepCoefficients(*(coefficients[:, i, None, None, None] for i in range(COLUMNS)))
        guidance = coefficients[:, COLUMNS, None, None, None]
        out = self._networks.predict(step.scale * latents, coefficients[:, 0], guidance, texts)
        before, estimate = estimate, step.from_sample * latents + step.from_output * out
        latents = step.keep * latents + step.toward * estimate + step.momentum * before
        if noise is not None:
            latents = latents + step.jitter * noise
        if kept is not None:
            originals = step.original * kept.original + step.noise * kept.start_noise
            latents = kept.mask * latents + (1 - kept.mask) * originals
        return latents, estimate

    def _noise(self, pictures: Sequence[TorchPicture], b: int) -> torch.Tensor | None:
        """The next step's fresh noise [b, 4, h, w]; None if no picture needs any (never None on XLA)."""
        drawn = [picture.plan.next_noise() for picture in pictures]
        if not self._xla and all(noise is None for noise in drawn):
            return None
        still = torch.zeros_like(pictures[0].plan.start_noise)
        drawn += [None] * (b - len(pictures))
        return torch.cat([still if noise is None else noise for noise in drawn]).to(self._device)

    def _kept(self, batch: Sequence[TorchPicture]) -> KeptRegion | None:
        """What inpainting keeps of each picture; None if none is inpainted (never None on XLA)."""
        if all(picture.kept is None for picture in batch):
            return None
        nothing = torch.zeros_like(batch[0].latents)
        everywhere = torch.ones_like(nothing[:, :1])
        each = [picture.kept or KeptRegion(everywhere, nothing, nothing) for picture in batch]
        return KeptRegion(*(torch.cat(parts) for parts in zip(*each)))

    def _filled_up(self, request: PictureRequest, n: int) -> list[TorchPicture]:
        """Pictures of the request's size that pad a batch on XLA: always the same ones, each with its own tensors."""
        size = request.width, request.height
        fillers = self._fillers.setdefault(size, [])
        fillers += [self.start(self._sample(size)) for _ in range(n - len(fillers))]
        return fillers[:n]

    # -- texts and images ---------------------------------------------------------------------------------------

    def _encode_text(self, inputs: tuple[np.ndarray, ...]) -> TorchText:
        """Encode a tokenized text; on XLA the result is on the host: see `_upload`."""
        found = self._networks.encode_text(inputs)
        self._sync()
        return found.map(torch.Tensor.cpu) if self._xla else found

    def _upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy to the device: on XLA a new tensor each time, as two pictures of a batch may share a prompt."""
        return tensor.to(self._device)

    def _encode_image(self, image: np.ndarray, noise: torch.Tensor) -> torch.Tensor:
        """[H, W, 3] uint8 -> [1, 4, h, w] float32, scaled for the UNet."""
        latents = self._networks.encode_image(image, noise)
        self._sync()
        return latents

    def _sync(self) -> None:
        """On XLA: run what was recorded so far as one program."""
        if self._xla:
            torch_devices.sync()
