"""The interface of a backend: start a picture, advance pictures by some steps, decode them.

All schedulers are linear in (sample, prediction, last estimate, noise), so a picture carries its own table of
coefficients (`schedules`), and one compiled step serves pictures of any scheduler, number of steps and guidance scale
side by side: pictures join and leave a batch between steps. Only the `group` of sizes is fixed within a batch.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from apps.stable_diffusion.engine.controlnets.use import KnownControls
from apps.stable_diffusion.engine.loras.known import KnownLoras
from apps.stable_diffusion.engine.request import PictureRequest, Scheduler, Size

Progress = Callable[[str, int, int, float], None]
"""Called with (program, number done, total, its seconds) after each compilation."""


class Picture(Protocol):
    """A picture being made. Its other contents (latents, conditioning) are private to the backend."""

    request: PictureRequest
    steps_total: int
    """Denoising steps that it takes: fewer than requested with `strength` below 1."""
    steps_done: int
    warnings: tuple[str, ...]
    """Returned with the picture: that the prompt was cut, for example."""


PictureT = TypeVar("PictureT", bound=Picture)


class Backend(Protocol[PictureT]):
    """Owns the weights and the device. Called from one thread at a time, never from an event loop.

    A backend takes only pictures that it started itself.
    """

    name: str
    """jax, torch or torch_xla."""
    device: str
    """Human-readable device: 'TPU v5 lite x4', 'cpu'."""
    sizes: tuple[tuple[int, int], ...]
    """(width, height) in pixels that it is compiled for."""
    schedulers: tuple[Scheduler, ...]
    """Those that can serve the model."""
    emphasis: bool
    """Whether words of its prompts can have weights."""
    text_layers: int
    """Of its text encoder, of which requests may leave out the last ones; 0: they may not."""
    batch_sizes: tuple[int, ...]
    """Compiled batch sizes, ascending; a smaller batch is padded up to the next of them."""

    loras: KnownLoras
    """Those that requests may name."""
    controls: KnownControls
    """Likewise."""

    @property
    def programs_compiled(self) -> int:
        """Before it was ready, because none was prepared."""

    @property
    def compiles_after_ready(self) -> int:
        """Programs compiled since it was ready, as far as they are counted: a defect if not 0."""

    def group(self, size: Size) -> Hashable:
        """What pictures of this size can be in a batch with: for a UNet the size, for a transformer similar ones."""

    def compile(self, progress: Progress | None = None) -> None:
        """Make it ready: compile every program that a request may need."""

    def start(self, request: PictureRequest) -> PictureT:
        """Encode the prompts and draw the noise. The caller must `end` the picture.

        Raises:
            RequestError: this model cannot do what is requested.
            SlotsTaken: there is no place for the picture's LoRAs until another picture ends.
        """

    def end(self, picture: PictureT) -> None:
        """A started picture is over, in whatever way: free what it holds."""

    def denoise(self, pictures: Sequence[PictureT], steps: int) -> None:
        """Launch `steps` steps of each picture, without waiting for them.

        All are of one `group`, and are at most `batch_sizes[-1]`; each has at least `steps` steps left.
        """

    def wait(self, pictures: Sequence[PictureT]) -> None:
        """Wait for the steps launched for these pictures. Raises their errors."""

    def latents(self, picture: PictureT) -> np.ndarray:
        """[h, w, channels] float32 of a picture whose steps are done."""

    def decode(self, pictures: Sequence[PictureT], estimate: bool = False) -> list[np.ndarray | None]:
        """[height, width, 3] uint8 for each; None where its numbers are not finite.

        `estimate` decodes the current estimate of the result, for previews.
        """
