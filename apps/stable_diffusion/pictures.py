"""A picture model as the HTTP dialects see it: defaults, limits, and jobs that yield PNGs."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from apps.serving.errors import RequestError
from apps.serving.stuck import StuckWatch
from apps.stable_diffusion.engine.conditioning.emphasis import weighted_parts
from apps.stable_diffusion.engine.controlnets.use import ControlUse, KnownControls
from apps.stable_diffusion.engine.engine import Engine, EngineStats
from apps.stable_diffusion.engine.job import Finished, PictureJob, Preview, QueuePosition, Step
from apps.stable_diffusion.engine.loras.known import KnownLoras
from apps.stable_diffusion.engine.request import MAX_SEED, LoraUse, PictureRequest, SecondPass, Size, check_size
from apps.stable_diffusion.metrics import PictureMetrics
from apps.stable_diffusion.png import encode_png, parameters_of
from apps.stable_diffusion.prompt_syntax import marks, with_loras
from apps.stable_diffusion.safety import HIDDEN, SafetyChecker
from apps.stable_diffusion.samplers import sampler_named
from ray_configs.stable_diffusion import StableDiffusionConfig

T = TypeVar("T")
Finish = Callable[[np.ndarray], np.ndarray]

MAX_PROMPT = 32_000  # characters; a model reads some hundred tokens of them at most


def check_length(field: str, prompt: str) -> None:
    """Raises RequestError for a prompt that is too long. Before anything reads it: reading takes as long as it is."""
    if len(prompt) > MAX_PROMPT:
        raise RequestError(field, f"{field} has {len(prompt)} characters; it can have {MAX_PROMPT}")


def check_emphasis(field: str, prompt: str, chunks: int) -> None:
    """Raises RequestError for weights that cannot be read, or more parts than there are chunks for."""
    try:
        parts = weighted_parts(prompt)
    except ValueError as error:
        raise RequestError(field, f"{field}: {error}") from None
    needed = 1 + sum(part.begins_chunk for part in parts)
    if needed > chunks:
        raise RequestError(
            field,
            f"{field} has {needed} parts between BREAKs, and this server reads {chunks}: leave BREAK out, or serve "
            f"with max_prompt_tokens={75 * needed}",
        )


@dataclass(frozen=True)
class PicturesRequest:
    """A request for n pictures, independent of any dialect. None: the model's default."""

    prompt: str
    size: Size
    n: int = 1
    negative_prompt: str = ""
    emphasis: bool = False
    """Whether the prompts have AUTOMATIC1111's weights."""
    clip_skip: int | None = None
    seed: int | None = None
    num_inference_steps: int | None = None
    guidance_scale: float | None = None
    scheduler: str | None = None
    """Any name of a sampler; see `samplers`."""
    schedule: str | None = None
    """AUTOMATIC1111's schedule type of that sampler."""
    image: np.ndarray | None = None
    """[height, width, 3] uint8, of that size."""
    mask: np.ndarray | None = None
    """[height, width] bool, of that size."""
    strength: float | None = None
    min_steps: int = 0
    loras: tuple[LoraUse, ...] = ()
    controls: tuple[ControlUse, ...] = ()
    second_pass: SecondPass | None = None
    """Over the finished picture, enlarged; see `SecondPass`."""
    previews: int = 0
    """Number of previews of each picture, spread evenly over its steps."""


@dataclass(frozen=True)
class PreviewPng:
    """A preview of an unfinished picture, as PNG."""

    picture: int
    number: int
    step: int
    steps: int
    png: bytes


@dataclass(frozen=True)
class FinishedPng:
    """A finished picture of a job, as PNG."""

    picture: int
    png: bytes
    request: PictureRequest
    parameters: str
    """Its generation parameters, as in its metadata."""
    warnings: tuple[str, ...]
    seconds: float
    """From the request to the last pixel, including the wait; without PNG encoding and transfer."""

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings, and one for prompts in AUTOMATIC1111's syntax: for dialects that do not speak it."""
        request = self.request
        texts = {"prompt": request.prompt, "negative_prompt": request.negative_prompt}
        own = (note for field, text in texts.items() for note in marks(field, text, request.emphasis))
        return (*self.warnings, *own)


News = QueuePosition | Step | PreviewPng | FinishedPng


class PictureModel:
    """A loaded model with its limits and metrics."""

    def __init__(self, config: StableDiffusionConfig, engine: Engine, checker: SafetyChecker | None = None):
        self.config, self.name, self.created = config, config.served_name, int(time.time())
        self.engine, self._checker = engine, checker
        deadline_s = config.health_step_deadline_s
        self._watch = StuckWatch(self.check, lambda: engine.lose_stuck(deadline_s), lambda: engine.busy, deadline_s)
        self.sizes: tuple[Size, ...] = engine.backend.sizes
        self._metrics = PictureMetrics(self.name, engine.step_times)
        # Encoding releases the interpreter lock; two threads keep up with any one slice.
        self._encoders = ThreadPoolExecutor(2, "podslice-png")
        self._decoders = ThreadPoolExecutor(2, "podslice-decode")

    @property
    def default_size(self) -> Size:
        return self.sizes[0]

    @property
    def loras(self) -> KnownLoras:
        """The LoRAs that requests may name."""
        return self.engine.backend.loras

    @property
    def controls(self) -> KnownControls:
        """The ControlNets that requests may name."""
        return self.engine.backend.controls

    def size(self, width: int, height: int) -> Size:
        """The size, if the model is compiled for it; else raises RequestError."""
        check_size((width, height), self.sizes)
        return width, height

    def size_named(self, text: str | None) -> Size:
        """Parse a size such as 512x512; None and `auto` are the default one. Raises RequestError."""
        if text is None or text == "auto":
            return self.default_size
        parts = text.lower().split("x")
        if len(parts) == 2 and all(part.isdecimal() and len(part) < 6 for part in parts):
            return self.size(int(parts[0]), int(parts[1]))
        raise RequestError("size", f"size must be WIDTHxHEIGHT, such as {self.sizes[0][0]}x{self.sizes[0][1]}, or auto")

    def requests(self, wanted: PicturesRequest) -> list[PictureRequest]:
        """One request for each picture, with consecutive seeds. Raises RequestError if a limit is exceeded."""
        config = self.config
        if not 1 <= wanted.n <= config.max_images_per_request:
            raise RequestError(
                "n", f"n is {wanted.n}; a request can have 1 to {config.max_images_per_request} pictures"
            )
        for field in ("prompt", "negative_prompt"):
            check_length(field, getattr(wanted, field))
            if wanted.emphasis:
                check_emphasis(field, getattr(wanted, field), config.prompt_chunks)
        steps = config.num_inference_steps if wanted.num_inference_steps is None else wanted.num_inference_steps
        again = None if wanted.second_pass is None else wanted.second_pass.num_inference_steps
        for name, count in (("num_inference_steps", steps), ("second_pass", again)):
            if count is not None and count > config.max_inference_steps:
                raise RequestError(name, f"{name} is {count}; it can be 1 to {config.max_inference_steps} steps")
        scheduler, karras = sampler_named(wanted.scheduler or config.scheduler, wanted.schedule)
        width, height = wanted.size
        optional: dict[str, Any] = {"strength": wanted.strength, "seed": wanted.seed}
        first = PictureRequest(
            prompt=wanted.prompt,
            width=width,
            height=height,
            num_inference_steps=steps,
            guidance_scale=float(config.guidance_scale if wanted.guidance_scale is None else wanted.guidance_scale),
            scheduler=scheduler,
            karras=karras,
            negative_prompt=wanted.negative_prompt,
            emphasis=wanted.emphasis,
            clip_skip=config.clip_skip if wanted.clip_skip is None else wanted.clip_skip,
            image=wanted.image,
            mask=wanted.mask,
            min_steps=wanted.min_steps,
            loras=wanted.loras,
            controls=wanted.controls,
            second_pass=wanted.second_pass,
            **{name: value for name, value in optional.items() if value is not None},
        )
        others = (replace(first, seed=(first.seed + index) % (MAX_SEED + 1)) for index in range(1, wanted.n))
        return [first, *others]

    async def decoded(self, decode: Callable[[], T]) -> T:
        """What `decode` makes of a client's pictures, in threads of their own: it takes up to a second."""
        return await asyncio.get_running_loop().run_in_executor(self._decoders, decode)

    def submit(self, wanted: PicturesRequest) -> PictureJob:
        """Queue a job whose events this event loop reads. A caller that stops before its end must `abort()` it.

        Raises:
            RequestError: a limit is exceeded, or a size is not served.
            QueueFull: too many pictures wait already.
            EngineStopped: the engine has ended.
        """
        job = self.engine.submit(self.requests(wanted), wanted.previews, asyncio.get_running_loop())
        self._watch.look()
        return job

    async def news(self, job: PictureJob, finish: Finish | None = None) -> AsyncIterator[News]:
        """The job's events, with pictures as PNG.

        Args:
            finish: what is done to a picture's pixels [height, width, 3] before it becomes a PNG.

        Raises:
            EngineError: the job failed, or was aborted.
        """
        loop = asyncio.get_running_loop()
        async for event in job:
            match event:
                case Preview(picture, number, step, steps, pixels):
                    png = await loop.run_in_executor(self._encoders, self._previewed, pixels)
                    yield PreviewPng(picture, number, step, steps, png)
                case Finished():
                    self._metrics.observe("picture", event.seconds)
                    yield await loop.run_in_executor(self._encoders, self._drawn, event, finish)
                case _:
                    yield event

    async def draw(self, job: PictureJob) -> list[FinishedPng]:
        """All pictures of a job, in the order of their seeds."""
        pictures = [news async for news in self.news(job) if isinstance(news, FinishedPng)]
        return sorted(pictures, key=lambda drawn: drawn.picture)

    def _previewed(self, pixels: np.ndarray) -> bytes:
        return encode_png(self._shown(pixels)[0], {})

    def _shown(self, pixels: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
        """A picture as its caller sees it, and a warning if the safety checker hides it."""
        if self._checker is None or not self._checker.hidden(pixels):
            return pixels, ()
        return np.zeros_like(pixels), (HIDDEN,)

    def _drawn(self, finished: Finished, finish: Finish | None) -> FinishedPng:
        request = finished.request
        parameters = parameters_of(request, self.name)
        texts = {
            "parameters": parameters,
            "prompt": with_loras(request.prompt, request.loras),
            "seed": str(request.seed),
            "steps": str(request.num_inference_steps),
            "model": self.name,
        }
        pixels, hidden = self._shown(finished.pixels)
        png = encode_png(finish(pixels) if finish else pixels, texts)
        return FinishedPng(finished.picture, png, request, parameters, finished.warnings + hidden, finished.seconds)

    def stats(self) -> EngineStats:
        return self.engine.stats()

    def cards(self) -> list[dict[str, Any]]:
        """The model's entry in OpenAI's list of models."""
        return [{"id": self.name, "object": "model", "created": self.created, "owned_by": "podslice"}]

    def report(self) -> dict[str, Any]:
        backend = self.engine.backend
        return asdict(self.stats()) | {"backend": backend.name, "device": backend.device}

    def check(self) -> None:
        """Raises EngineStopped if the engine is dead or stuck."""
        self.engine.check(self.config.health_step_deadline_s)

    def shutdown(self) -> None:
        self.engine.shutdown()
        self._encoders.shutdown(wait=False)
        self._decoders.shutdown(wait=False)

    async def report_forever(self) -> None:
        await self._metrics.publish_forever(self.stats)
