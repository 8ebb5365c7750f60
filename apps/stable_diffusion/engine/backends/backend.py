"""The interface of a backend: start a picture, move pictures on by some steps, decode them.

The three schedulers' families are linear in (sample, prediction, last estimate, noise), so a
picture carries its own table of coefficients (`schedules`), and one compiled step serves pictures
of any scheduler, number of steps and guidance scale side by side: pictures join and leave a batch
between steps, as sequences do in continuous batching. Only the size is fixed within a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from apps.stable_diffusion.engine.request import PictureRequest


class Picture(Protocol):
    """A picture being made. Beyond these fields its contents (latents, conditioning) are the backend's own."""

    request: PictureRequest
    steps_total: int
    """Denoising steps that it takes: fewer than asked for with `strength` below 1."""
    steps_done: int
    warnings: tuple[str, ...]
    """Said to the user with the picture: a prompt that was cut, for example."""


class Backend(Protocol):
    """Owns the weights and the device. Called from one thread at a time, never from an event loop."""

    name: str
    """jax, torch or torch_xla."""
    device: str
    """Where it runs, for people: 'TPU v5 lite x4', 'cpu'."""
    sizes: tuple[tuple[int, int], ...]
    """(width, height) in pixels that it is ready for."""
    batch_sizes: tuple[int, ...]
    """Compiled batch sizes, ascending; a smaller batch is padded up to the next of them."""

    def start(self, request: PictureRequest) -> Picture:
        """Encodes the prompts, draws the noise. RequestError if this model can't do what is asked."""

    def denoise(self, pictures: Sequence[Picture], steps: int) -> None:
        """Moves each picture on by `steps` steps, none beyond its last; launched, not waited for.

        All are of one size and at most `batch_sizes[-1]`. `steps` is at most the smallest number
        of steps that any of them has left.
        """

    def wait(self, pictures: Sequence[Picture]) -> None:
        """Returns when what was launched for these pictures is done; raises what went wrong there."""

    def decode(self, pictures: Sequence[Picture], estimate: bool = False) -> list[np.ndarray]:
        """[height, width, 3] uint8 for each; `estimate` decodes the present guess at the end, as a preview."""
