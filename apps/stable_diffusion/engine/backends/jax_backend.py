"""Pictures as a few JAX programs, all compiled before the first request. See `backend.Backend`.

Weights are replicated on every chip and a batch is split over the chips: no chip waits for another within a step. A
picture's text and latents are small, so they are replicated too.
"""

import logging
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apps.arrays.program_cache import use_compile_cache
from apps.arrays.programs import Key, ProgramSet
from apps.stable_diffusion.engine.backends.assembly import ServedPictures, loras_of, schedule_of, tokenizing_of
from apps.stable_diffusion.engine.backends.backend import Progress
from apps.stable_diffusion.engine.backends.picture_arrays import PictureArrays, nhwc
from apps.stable_diffusion.engine.backends.program_list import title
from apps.stable_diffusion.engine.backends.programs import DenoisingState, PictureInputs
from apps.stable_diffusion.engine.backends.stored import StoredPictures
from apps.stable_diffusion.engine.conditioning.interface import EncodedPrompt
from apps.stable_diffusion.engine.conditioning.prompts import REMEMBERED, Prompts
from apps.stable_diffusion.engine.controlnets.loaded import ControlNets, StartedControl
from apps.stable_diffusion.engine.controlnets.use import KnownControls
from apps.stable_diffusion.engine.loras.known import NO_LORAS, Combination, KnownLoras
from apps.stable_diffusion.engine.loras.pool import LoraPool
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.model import weights
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.request import PictureRequest, Size
from apps.stable_diffusion.engine.scheduling.trajectory import (
    RESTING,
    Planner,
    StartedPicture,
    check_batch,
)

log = logging.getLogger("podslice")
TEXT_BYTES, FEWEST_TEXTS = 160 << 20, 16
"""Memory for encoded prompts on each device, and how many are remembered whatever they take."""


@dataclass(eq=False)
class JaxPicture(StartedPicture):
    state: DenoisingState
    inputs: PictureInputs
    slot: int
    """Of its LoRAs; see `LoraPool`."""
    controls: tuple[StartedControl, ...]


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
        lora_room: room for LoRAs; None: the programs have none.
        controlnets: locations by name: see `ControlNetFile`.
        prompt_chunks: of a prompt, at most, for CLIP: see `chunks`.
        prepared_programs: where `podslice prepare` has written some; None: all are compiled.

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
        lora_room: LoraRoom | None = None,
        controlnets: Mapping[str, str] | None = None,
        prompt_chunks: int = 1,
        prepared_programs: str | None = None,
    ) -> None:
        use_compile_cache(compile_cache)
        served = ServedPictures(
            tuple(sizes), max_batch_size, guided, dtype, attention, lora_room, controlnets, prompt_chunks
        )
        stored = None if prepared_programs is None else StoredPictures(prepared_programs, served.settings)
        if stored is not None:
            stored.try_sets()
        checkpoint = checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
        devices = list(devices or jax.local_devices())
        kind, self._dtype, self.sizes = checkpoint.kind, np.dtype(jnp.dtype(dtype)), served.sizes
        tokenizing, schedule = tokenizing_of(checkpoint, prompt_chunks), schedule_of(checkpoint)
        listed, controls = served.programs(checkpoint, tokenizing.lengths, devices)
        self.programs, self.batch_sizes = listed.programs, listed.batch_sizes
        pixels = self.programs.vae
        self.schedulers, self.emphasis, self.text_layers = schedule.schedulers, kind.emphasis, checkpoint.text_layers
        self._planner = Planner(
            *(pixels.reduction, pixels.latents, guided, kind.no_guidance, schedule),
            patch=self.programs.denoiser.noise_patch,
            from_images=kind.from_images,
        )
        self.device = devices[0].device_kind + (f" x{len(devices)}" if len(devices) > 1 else "")
        self._compiled = ProgramSet(listed.listed(), None if stored is None else stored.find(listed))
        remembered = max(FEWEST_TEXTS, min(REMEMBERED, TEXT_BYTES // _nbytes(self.programs.texts())))
        self.prompts = Prompts(checkpoint, tokenizing, guided, self._encode_text, self._zeros_like, remembered)
        self._weights = self._load(checkpoint)
        self._controls = None if listed.controls is None else ControlNets(listed.controls, controls)
        self.controls = KnownControls() if self._controls is None else self._controls.known
        self._arrays = PictureArrays(self.programs)
        self.loras = KnownLoras()
        self._lora_pool: LoraPool | None = None
        if lora_room is not None:
            self.loras, self._lora_pool = loras_of(self.programs, self._weights, lora_room, self._arrays.put, self._run)

    # -- loading ------------------------------------------------------------------------------------------------

    def _load(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Load only the tensors that the programs use. All headers are checked before any tensor is read."""
        functions = self.programs.functions(self.sizes[0])
        entries = {
            name: weights.required(checkpoint.source(name), name, f, self._dtype) for name, f in functions.items()
        }
        texts = self.programs.encoder.loader(checkpoint)
        loaded = {
            name: weights.load(checkpoint.source(name), e, self._dtype, self.programs.everywhere)
            for name, e in entries.items()
        }
        return texts() | loaded

    # -- compiling ----------------------------------------------------------------------------------------------

    def compile(self, progress: Progress | None = None) -> None:
        """Compile every program that a request may need, several at a time if there are CPUs for it."""
        started, done = time.monotonic(), 0

        def compiled(key: Key, seconds: float) -> None:
            nonlocal done
            done += 1
            if progress is not None:
                progress(title(key), done, len(self._compiled.specs), seconds)

        self._compiled.compile(compiled)
        log.info("compiled %d programs in %.1f s", done, time.monotonic() - started)
        if self._controls is not None:
            self._controls.make_ready(self.sizes, self.batch_sizes)
        self._compiled.ready()

    def _run(self, key: Key, *arguments: Any) -> Any:
        return self._compiled[key](*arguments)

    @property
    def programs_compiled(self) -> int:
        """See `Backend.programs_compiled`."""
        return self._compiled.compiled

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
        zeros = self._arrays.zeros(size)
        mask, original, start_noise = self._arrays.ones(size), zeros, zeros
        noise, schedule = nhwc(plan.start_noise), plan.schedule
        if request.image is None:
            given = 0 if request.latents is None else schedule.start_image * request.latents
            latents = self._arrays.put(denoiser.packed(given + schedule.start_noise * noise))
        else:
            mix = np.array([schedule.start_image, schedule.start_noise], np.float32)
            arguments = np.ascontiguousarray(request.image), nhwc(plan.image_noise), noise, mix
            original, latents = self._compiled["image", size](self._weights["vae"], *map(self._arrays.put, arguments))
        if request.mask is not None:
            mask = self._arrays.put(denoiser.packed(plan.mask[..., None]))  # type: ignore[index]  # a request's mask is in its plan
            start_noise = self._arrays.put(denoiser.packed(noise))
        there = None if place is None else self._arrays.constant("place", size, lambda: place)
        state = DenoisingState(latents, self._arrays.put(np.zeros(zeros.shape, np.float32)))
        controls = () if self._controls is None else self._controls.started(request, self._run)
        slot, (prompt, negative, warnings) = self._with_combination(request)  # last: nothing may fail with it in hand
        inputs = PictureInputs(prompt, negative, mask, original, start_noise, there)
        return JaxPicture(request, warnings, plan, state, inputs, slot, controls)

    def _with_combination(self, request: PictureRequest) -> tuple[int, tuple[Any, ...]]:
        """A slot for the request's LoRAs, and its prompts, encoded with them."""
        combination = self.loras.combination(request.loras)
        if self._lora_pool is None:
            return 0, self.prompts.encoded(request)
        slot = self._lora_pool.take(combination)
        try:
            return slot, self.prompts.encoded(request, self._lora_pool.text_key(combination), combination)
        except BaseException:
            self._lora_pool.release(slot)
            raise

    def end(self, picture: JaxPicture) -> None:
        """See `Backend.end`."""
        if self._lora_pool is not None:
            self._lora_pool.release(picture.slot)

    def denoise(self, pictures: Sequence[JaxPicture], steps: int) -> None:
        """See `Backend.denoise`."""
        groups = [self.group((picture.request.width, picture.request.height)) for picture in pictures]
        check_batch([picture.plan for picture in pictures], groups, steps, self.batch_sizes[-1])
        size = pictures[0].request.width, pictures[0].request.height
        denoiser = self.programs.denoiser
        b = next(b for b in self.batch_sizes if b >= len(pictures))
        program, spare = self._compiled["denoise", groups[0], b], self._arrays.spare_states(size, b - len(pictures))
        inputs = tuple(picture.inputs for picture in pictures) + (pictures[0].inputs,) * len(spare)
        still = self._arrays.zeros(size)
        more: tuple[Any, ...] = () if self._controls is None else (None, None)
        if self._lora_pool is not None:
            slots = np.array([picture.slot for picture in pictures] + [0] * len(spare), np.int32)
            more = self._lora_pool.arrays[denoiser.component], self._arrays.put(slots)
        added: tuple[Any, ...] = ()
        for _ in range(steps):
            rows = np.stack([picture.plan.next_coefficients() for picture in pictures] + [RESTING] * len(spare))
            drawn = (picture.plan.next_noise() for picture in pictures)
            noises = [still if noise is None else self._arrays.put(denoiser.packed(nhwc(noise))) for noise in drawn]
            noises += [still] * len(spare)
            states = tuple(picture.state for picture in pictures) + tuple(spare)
            now = self._arrays.put(rows), states, inputs
            if self._controls is not None:
                added = (self._controls.added(size, b, pictures, self._run, *now),)
            states = program(self._weights[denoiser.component], *now, tuple(noises), *more, *added)
            for picture, state in zip(pictures, states):
                picture.state = state
                picture.plan.steps_done += 1
            spare = states[len(pictures) :]
        self._arrays.keep(size, spare)

    def wait(self, pictures: Sequence[JaxPicture]) -> None:
        """See `Backend.wait`."""
        jax.block_until_ready([picture.state for picture in pictures])

    def latents(self, picture: JaxPicture) -> np.ndarray:
        """See `Backend.latents`."""
        return self.programs.denoiser.unpacked(np.asarray(picture.state.latents), picture.plan.shape)

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

    def _encode_text(self, inputs: tuple[np.ndarray, ...], combination: Combination = NO_LORAS) -> EncodedPrompt:
        arrays = {name: self._weights[name] for name in self.programs.encoder.components}
        loras = [] if self._lora_pool is None else [self._lora_pool.of_texts(combination)]
        return self._compiled["text",](arrays, tuple(map(self._arrays.put, inputs)), *loras)

    def _zeros_like(self, prompt: EncodedPrompt) -> EncodedPrompt:
        return jax.tree.map(lambda array: self._arrays.put(np.zeros(array.shape, array.dtype)), prompt)


def _nbytes(forms: Any) -> int:
    return sum(form.size * form.dtype.itemsize for form in jax.tree.leaves(forms))
