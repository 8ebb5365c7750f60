"""Shared by both trainings: settings, the clock that ends them, and checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

OnStep = Callable[[int, float], None]


@dataclass(frozen=True)
class TrainConfig:
    """How long and on what to train. A training ends after its steps or its minutes, whichever come first."""

    work: Path  # folder of checkpoints
    vae_steps: int = 600
    vae_minutes: float = 15
    vae_batch: int = 16
    vae_learning_rate: float = 1e-2
    pictures: int = 16_000  # whose latents the denoiser learns from
    steps: int = 3700
    minutes: float = 80
    batch: int = 48
    learning_rate: float = 5e-3
    checkpoint_minutes: float = 4
    seed: int = 0


class Clock:
    """Tracks how much of a training is done, by steps or minutes, including earlier runs."""

    def __init__(self, steps: int, minutes: float, checkpoint_minutes: float) -> None:
        self.steps, self.seconds, self.checkpoint_seconds = steps, minutes * 60, checkpoint_minutes * 60
        self.spent = 0.0  # wall seconds, including earlier runs
        self.cpu = 0.0
        self._now = self._saved = time.monotonic()
        self._cpu_now = time.process_time()

    def done(self, step: int) -> float:
        """The fraction done, from 0 to 1."""
        now, cpu = time.monotonic(), time.process_time()
        self.spent += now - self._now
        self.cpu += cpu - self._cpu_now
        self._now, self._cpu_now = now, cpu
        return max(step / self.steps, self.spent / self.seconds)

    def checkpoint_due(self) -> bool:
        """Whether it is time to save. Returning True restarts the interval."""
        if time.monotonic() - self._saved < self.checkpoint_seconds:
            return False
        self._saved = time.monotonic()
        return True


class Threads:
    """Switches between all CPU threads and half of them, whichever is faster at the moment.

    Threads wait for each other many times in a step. When another program took one of two cores, two threads made a
    step nine times as long; one thread would have made it twice as long.
    """

    PROBE_EVERY, PROBE = 50, 2  # steps

    def __init__(self) -> None:
        every = torch.get_num_threads()
        self.choices = (every, max(1, every // 2))
        self.now, self.step = 0, 0
        self.seconds: list[list[float]] = [[], []]
        self.started = time.monotonic()

    def tick(self) -> None:
        """Call after each step."""
        self.seconds[self.now].append(time.monotonic() - self.started)
        self.step += 1
        probing = self.step % self.PROBE_EVERY
        if probing == 0:
            self.seconds = [[], []]
        if probing in (0, self.PROBE):
            self.now = 1 - self.now
        if probing == 2 * self.PROBE:  # both have been tried for equally many steps
            self.now = min((0, 1), key=lambda choice: sum(self.seconds[choice]))
        torch.set_num_threads(self.choices[self.now])
        self.started = time.monotonic()


def save_checkpoint(path: Path, step: int, clock: Clock, **parts: Any) -> None:
    """Writes the state of modules and optimizers atomically."""
    state = {name: part.state_dict() if hasattr(part, "state_dict") else part for name, part in parts.items()}
    half = path.with_suffix(".tmp")
    torch.save({"step": step, "seconds": clock.spent, "cpu": clock.cpu, "parts": state}, half)
    half.replace(path)


def load_checkpoint(path: Path, clock: Clock, **parts: Any) -> int:
    """Puts saved state back into modules, optimizers and lists of tensors; returns the step, 0 if none is saved."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location="cpu", weights_only=True)
    for name, part in parts.items():
        state = saved["parts"][name]
        if hasattr(part, "load_state_dict"):
            part.load_state_dict(state)
        else:
            for ours, theirs in zip(part, state, strict=True):
                ours.copy_(theirs)
    clock.spent, clock.cpu = saved["seconds"], saved["cpu"]
    return saved["step"]


def autocast(device: torch.device) -> AbstractContextManager:
    """bfloat16 products with float32 weights: twice as fast, on GPUs and on CPUs that support them."""
    return torch.autocast(device.type, torch.bfloat16)
