"""Pictures as a few JAX programs, all compiled before the first request. See `backend.Backend`.

Weights are replicated on every chip and a batch is split over the chips: no chip waits for another within a step. A
picture's text and latents are small, so they are replicated too.
"""

import logging
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.program_cache import use_compile_cache
from apps.arrays.programs import Key, ProgramSet
from apps.stable_diffusion.engine.backends.assembly import programs_of
from apps.stable_diffusion.engine.backends.backend import Progress
from apps.stable_diffusion.engine.backends.programs import DenoisingState, PictureInputs
from apps.stable_diffusion.engine.conditioning.chat_prompts import TemplatedPrompts
from apps.stable_diffusion.engine.conditioning.interface import EncodedPrompt
from apps.stable_diffusion.engine.conditioning.prompts import REMEMBERED, Prompts, Tokenizers, Tokenizing
from apps.stable_diffusion.engine.model import weights
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.model.pipelines import Z_IMAGE
from apps.stable_diffusion.engine.request import PictureRequest, Size
from apps.stable_diffusion.engine.scheduling.flow import FlowSchedule
from apps.stable_diffusion.engine.scheduling.schedules import NoiseSchedule
from apps.stable_diffusion.engine.scheduling.trajectory import (
    RESTING,
    Planner,
    StartedPicture,
    batch_sizes,
    check_batch,
)

log = logging.getLogger("podslice")
TEXT_BYTES, FEWEST_TEXTS = 160 << 20, 16
"""Memory for encoded prompts on each device, and how many are remembered whatever they take."""


@dataclass(eq=False)
class JaxPicture(StartedPicture):
    state: DenoisingState
    inputs: PictureInputs


class JaxBackend:
    """Loads a checkpoint onto devices of this process; `compile` makes it ready.

    Args:
        checkpoint: opened, or its location: see `Checkpoint`.
        sizes: (width, height) in pixels.
        max_batch_size: pictures in one pass.
        guided: False for models without guidance: half the work, and requests for guidance are refused.
        dtype: of weights and activations, bfloat16 or float32.
        devices: default: all of this process.
        attention: xla or flash, see `attention.attend`; default: flash on TPU.

    Raises:
        CheckpointError: the checkpoint cannot be read or is of another kind.
        ValueError: a size that this model cannot make.
    """

    name = "jax"

    def __init__(
        self,
        checkpoint: Checkpoint | str,
        *,
        sizes: Sequence[tuple[int, int]],
        max_batch_size: int = 8,
        guided: bool = True,
        dtype: str = "bfloat16",
        devices: Sequence[jax.Device] | None = None,
        attention: str | None = None,
        compile_cache: str | None = None,
    ) -> None:
        use_compile_cache(compile_cache)
        checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        devices = list(devices or jax.local_devices())
        kind, mesh = checkpoint.kind, Mesh(np.array(devices), ("data",))
        self._everywhere = NamedSharding(mesh, P())
        self._dtype = np.dtype(jnp.dtype(dtype))
        flow = kind is Z_IMAGE
        tokenizing: Tokenizing = TemplatedPrompts(checkpoint) if flow else Tokenizers(checkpoint)
        self.sizes = tuple(sizes)
        self.programs = programs_of(
            kind,
            {name: checkpoint.config(name) for name in checkpoint.components},
            self.sizes,
            tuple(tokenizing.lengths),
            mesh=mesh,
            attention=attention or ("flash" if devices[0].platform == "tpu" else "xla"),
            dtype=self._dtype,
            guided=guided,
        )
        noise = checkpoint.scheduler_config
        schedule = FlowSchedule(noise) if flow else NoiseSchedule(noise, checkpoint.is_xl)
        pixels = self.programs.vae
        self.schedulers = schedule.schedulers
        self._planner = Planner(pixels.reduction, pixels.latents, guided, kind.no_guidance, schedule)
        self.batch_sizes = batch_sizes(max_batch_size, len(devices), passes=2 if guided else 1)
        chip = devices[0].device_kind
        self.device = f"{chip} x{len(devices)}" if len(devices) > 1 else chip
        remembered = max(FEWEST_TEXTS, min(REMEMBERED, TEXT_BYTES // _nbytes(self.programs.texts())))
        self.prompts = Prompts(checkpoint, tokenizing, guided, self._encode_text, self._zeros_like, remembered)
        self._weights = self._load(checkpoint)
        self._compiled = self._programs()
        self._constants: dict[tuple[str, Hashable], jax.Array] = {}
        self._spare: dict[Hashable, list[DenoisingState]] = {}

    # -- loading ------------------------------------------------------------------------------------------------

    def _load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Load only the tensors that the programs use. All headers are checked before any tensor is read."""
        functions = self.programs.functions(self.sizes[0])
        entries = {name: weights.required(checkpoint, name, f, self._dtype) for name, f in functions.items()}
        texts = self.programs.encoder.loader(checkpoint)
        loaded = {name: weights.load(checkpoint, e, self._dtype, self._everywhere) for name, e in entries.items()}
        return texts() | loaded

    # -- compiling ----------------------------------------------------------------------------------------------

    def compile(self, progress: Progress | None = None) -> None:
        """Compile every program that a request may need, several at a time if there are CPUs for it."""
        started, done = time.monotonic(), 0

        def compiled(key: Key, seconds: float) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(_describe(key), done, len(self._compiled.specs), seconds)

        self._compiled.compile(compiled)
        log.info("compiled %d programs in %.1f s", done, time.monotonic() - started)
        self._compiled.ready()

    def _programs(self) -> ProgramSet:
        forms = jax.tree.map(
            lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=array.sharding), self._weights
        )
        return ProgramSet(self.programs.listed(forms, self.sizes, self.batch_sizes))

    @property
    def compiles_after_ready(self) -> int:
        """Programs compiled since `compile`: a defect if not 0."""
        return self._compiled.compiles_after_ready

    # -- pictures -----------------------------------------------------------------------------------------------

    def start(self, request: PictureRequest) -> JaxPicture:
        """See `Backend.start`."""
        plan = self._planner.plan(request)
        size = request.width, request.height
        denoiser = self.programs.denoiser
        place = denoiser.place(plan.shape)
        zeros = self._zeros(size)
        mask, original, start_noise = self._ones(size), zeros, zeros
        noise, schedule = _nhwc(plan.start_noise), plan.schedule
        if request.image is None:
            latents = self._put(denoiser.packed(schedule.start_noise * noise))
        else:
            mix = np.array([schedule.start_image, schedule.start_noise], np.float32)
            arguments = np.ascontiguousarray(request.image), _nhwc(plan.image_noise), noise, mix
            original, latents = self._compiled["image", size](self._weights["vae"], *map(self._put, arguments))
        if request.mask is not None:
            mask = self._put(denoiser.packed(plan.mask[..., None]))  # type: ignore[index]  # a request's mask is in its plan
            start_noise = self._put(denoiser.packed(noise))
        prompt, negative, warnings = self.prompts.encoded(request)
        there = None if place is None else self._constant("place", size, lambda: place)
        inputs = PictureInputs(prompt, negative, mask, original, start_noise, there)
        state = DenoisingState(latents, self._put(np.zeros(zeros.shape, np.float32)))
        return JaxPicture(request, warnings, plan, state, inputs)

    def denoise(self, pictures: Sequence[JaxPicture], steps: int) -> None:
        """See `Backend.denoise`."""
        groups = [self.group((picture.request.width, picture.request.height)) for picture in pictures]
        check_batch([picture.plan for picture in pictures], groups, steps, self.batch_sizes[-1])
        size = pictures[0].request.width, pictures[0].request.height
        denoiser = self.programs.denoiser
        b = next(b for b in self.batch_sizes if b >= len(pictures))
        program, spare = self._compiled["denoise", groups[0], b], self._spare_states(size, b - len(pictures))
        inputs = tuple(picture.inputs for picture in pictures) + (pictures[0].inputs,) * len(spare)
        still = self._zeros(size)
        for _ in range(steps):
            rows = np.stack([picture.plan.next_coefficients() for picture in pictures] + [RESTING] * len(spare))
            drawn = (picture.plan.next_noise() for picture in pictures)
            noises = [still if noise is None else self._put(denoiser.packed(_nhwc(noise))) for noise in drawn]
            noises += [still] * len(spare)
            states = tuple(picture.state for picture in pictures) + tuple(spare)
            states = program(self._weights[denoiser.component], self._put(rows), states, inputs, tuple(noises))
            for picture, state in zip(pictures, states):
                picture.state = state
                picture.plan.steps_done += 1
            spare = states[len(pictures) :]
        self._spare[groups[0]][: len(spare)] = spare

    def wait(self, pictures: Sequence[JaxPicture]) -> None:
        """See `Backend.wait`."""
        jax.block_until_ready([picture.state for picture in pictures])

    def decode(self, pictures: Sequence[JaxPicture], estimate: bool = False) -> list[np.ndarray | None]:
        """See `Backend.decode`. One picture per chip at a time: a decoder's attention is large."""
        chips, launched = self.programs.mesh.size, []
        by_size: dict[tuple[int, int], list[int]] = {}
        for i, picture in enumerate(pictures):
            by_size.setdefault((picture.request.width, picture.request.height), []).append(i)
        for size, places in by_size.items():
            for first in range(0, len(places), chips):
                share = places[first : first + chips]
                states = [pictures[i].state for i in share]
                latents = [state.estimate if estimate else state.latents for state in states]
                latents += latents[-1:] * (chips - len(latents))
                launched.append((share, self._compiled["decode", size](self._weights["vae"], tuple(latents))))
        pixels: dict[int, np.ndarray | None] = {}
        for share, decoded in launched:
            batch, finite = map(np.asarray, decoded)
            pixels.update((i, own if sound else None) for i, own, sound in zip(share, batch, finite))
        return [pixels[i] for i in range(len(pictures))]

    def group(self, size: Size) -> Hashable:
        """See `Backend.group`."""
        return self.programs.denoiser.group(size)

    def _encode_text(self, ids: tuple[np.ndarray, ...]) -> EncodedPrompt:
        arrays = {name: self._weights[name] for name in self.programs.encoder.components}
        return self._compiled["text",](arrays, tuple(map(self._put, ids)))

    def _zeros_like(self, prompt: EncodedPrompt) -> EncodedPrompt:
        return jax.tree.map(lambda array: self._put(np.zeros(array.shape, array.dtype)), prompt)

    def _put(self, array: np.ndarray) -> jax.Array:
        return jax.device_put(array, self._everywhere)

    def _constant(self, name: str, of: Hashable, make: Callable[[], np.ndarray]) -> jax.Array:
        """Cached arrays that pictures share."""
        if (name, of) not in self._constants:
            self._constants[name, of] = self._put(make())
        return self._constants[name, of]

    def _zeros(self, size: Size) -> jax.Array:
        """Latents of nothing."""
        shape = self.programs.denoiser.shape(self.programs.latents(size))
        return self._constant("zeros", shape, lambda: np.zeros(shape, np.float32))

    def _ones(self, size: Size) -> jax.Array:
        """The mask of a picture that is made everywhere."""
        shape = self.programs.denoiser.mask_shape(self.programs.latents(size))
        return self._constant("ones", shape, lambda: np.ones(shape, np.float32))

    def _spare_states(self, size: Size, count: int) -> list[DenoisingState]:
        """States of padding rows: a donated buffer cannot be passed twice, so each has its own."""
        spare = self._spare.setdefault(self.group(size), [])
        zeros = np.zeros(self._zeros(size).shape, np.float32)
        while len(spare) < count:
            spare.append(DenoisingState(self._put(zeros), self._put(zeros.copy())))
        return spare[:count]


def _nhwc(noise: Any) -> np.ndarray:
    """torch's [1, channels, h, w] -> [h, w, channels]."""
    return np.ascontiguousarray(noise[0].permute(1, 2, 0).numpy())


def _nbytes(forms: Any) -> int:
    return sum(form.size * form.dtype.itemsize for form in jax.tree.leaves(forms))


def _describe(key: Key) -> str:
    kind, *rest = key
    if kind == "text":
        return "text encoder"
    where = f"{rest[0]} patches" if isinstance(rest[0], int) else "{}x{}".format(*rest[0])
    name = {"denoise": "denoising", "decode": "decoder", "image": "image encoder"}[kind]
    return f"{name} {where}" + (f" batch {rest[1]}" if kind == "denoise" else "")
