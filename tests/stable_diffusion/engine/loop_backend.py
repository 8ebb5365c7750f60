"""A backend of a few numpy lines whose every launch is noted: for what the loop does, not for what is drawn."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apps.stable_diffusion.engine.controlnets.use import KnownControls
from apps.stable_diffusion.engine.job import PictureJob
from apps.stable_diffusion.engine.loras.slots import LoraSlots
from apps.stable_diffusion.engine.request import SCHEDULERS, LoraUse, PictureRequest, Scheduler


@dataclass(eq=False)
class Sketch:
    """A picture of this backend: a grey that every step makes one brighter."""

    request: PictureRequest
    steps_total: int
    steps_done: int = 0
    warnings: tuple[str, ...] = ()
    slot: int = 0


class AnyLoras:
    """Knows whatever requests name."""

    def combination(self, uses: Sequence[LoraUse]) -> None: ...


@dataclass
class LoopBackend:
    """Steps take `step_s`; with `gate` closed, launches wait for it. Raises what `at_start` or `broken` say."""

    step_s: float = 0.0
    name: str = "numpy"
    device: str = "cpu"
    sizes: tuple[tuple[int, int], ...] = ((16, 16), (32, 16))
    schedulers: tuple[Scheduler, ...] = SCHEDULERS
    emphasis = True
    text_layers = 12
    batch_sizes: tuple[int, ...] = (1, 2, 4)
    compiles_after_ready: int = 0
    programs_compiled: int = 0
    launches: list[tuple[tuple[str, ...], int]] = field(default_factory=list)  # (prompts, steps)
    gate: threading.Event = field(default_factory=threading.Event)
    at_start: Callable[[PictureRequest], None] = lambda request: None
    broken: Exception | None = None
    began: threading.Event = field(default_factory=threading.Event)  # a launch is under way
    loras: Any = field(default_factory=AnyLoras)
    controls: KnownControls = field(default_factory=KnownControls)
    slots: LoraSlots = field(default_factory=lambda: LoraSlots(1))

    def __post_init__(self) -> None:
        self.gate.set()

    def group(self, size: tuple[int, int]) -> tuple[int, int]:
        return size

    def start(self, request: PictureRequest) -> Sketch:
        self.at_start(request)
        slot, _ = self.slots.take(request.loras) if request.loras else (0, False)
        steps = request.num_inference_steps
        warnings = ("a long prompt was cut",) if "long" in request.prompt else ()
        return Sketch(request, steps, warnings=warnings, slot=slot)

    def end(self, picture: Sketch) -> None:
        self.slots.release(picture.slot)

    def latents(self, picture: Sketch) -> np.ndarray:
        return np.full((picture.request.height // 8, picture.request.width // 8, 4), picture.request.seed, np.float32)

    def denoise(self, pictures: list[Sketch], steps: int) -> None:
        assert len({(p.request.width, p.request.height) for p in pictures}) == 1
        assert 0 < len(pictures) <= self.batch_sizes[-1] and len(set(map(id, pictures))) == len(pictures)
        self.launches.append((tuple(p.request.prompt for p in pictures), steps))
        for picture in pictures:
            picture.steps_done += steps
            assert picture.steps_done <= picture.steps_total
        self._steps = steps

    def wait(self, pictures: list[Sketch]) -> None:
        self.began.set()
        self.gate.wait(240)
        time.sleep(self.step_s * self._steps)
        if self.broken is not None:
            raise self.broken

    def decode(self, pictures: list[Sketch], estimate: bool = False) -> list[np.ndarray]:
        shape = [(p.request.height, p.request.width, 3) for p in pictures]
        return [np.full(s, (p.request.seed + p.steps_done) % 256, np.uint8) for s, p in zip(shape, pictures)]


def asked(
    prompt: str, steps: int = 3, size: tuple[int, int] = (16, 16), seed: int = 0, lora: str | None = None
) -> PictureRequest:
    loras = (LoraUse(lora),) if lora else ()
    return PictureRequest(prompt, *size, steps, 7.5, "ddim", seed=seed, loras=loras)


def read(job: PictureJob) -> list:
    """All events of a job, by their names."""
    return [type(event).__name__ for event in job]


def wait_for(condition: Callable[[], object], timeout_s: float = 240) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
