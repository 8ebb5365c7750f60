"""The arrays that pictures share, or that stand for pictures which are not there."""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from apps.stable_diffusion.engine.backends.programs import DenoisingState, Programs
from apps.stable_diffusion.engine.request import Size


class PictureArrays:
    """On every device, each made when it is first asked for."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._constants: dict[tuple[str, Hashable], jax.Array] = {}
        self._spare: dict[Hashable, list[DenoisingState]] = {}

    def put(self, array: np.ndarray) -> jax.Array:
        """A new array."""
        return jax.device_put(array, self._programs.everywhere)

    def constant(self, name: str, of: Hashable, make: Callable[[], np.ndarray]) -> jax.Array:
        if (name, of) not in self._constants:
            self._constants[name, of] = self.put(make())
        return self._constants[name, of]

    def zeros(self, size: Size) -> jax.Array:
        """Latents of nothing."""
        shape = self._programs.denoiser.shape(self._programs.latents(size))
        return self.constant("zeros", shape, lambda: np.zeros(shape, np.float32))

    def ones(self, size: Size) -> jax.Array:
        """The mask of a picture that is made everywhere."""
        shape = self._programs.denoiser.mask_shape(self._programs.latents(size))
        return self.constant("ones", shape, lambda: np.ones(shape, np.float32))

    def spare_states(self, size: Size, count: int) -> list[DenoisingState]:
        """States of padding rows: a donated buffer cannot be passed twice, so each has its own."""
        spare = self._spare.setdefault(self._programs.denoiser.group(size), [])
        zeros = np.zeros(self.zeros(size).shape, np.float32)
        while len(spare) < count:
            spare.append(DenoisingState(self.put(zeros), self.put(zeros.copy())))
        return spare[:count]

    def keep(self, size: Size, spare: Sequence[DenoisingState]) -> None:
        """What a program has made of spare states."""
        self._spare[self._programs.denoiser.group(size)][: len(spare)] = spare


def nhwc(noise: Any) -> np.ndarray:
    """torch's [1, channels, h, w] -> [h, w, channels]."""
    return np.ascontiguousarray(noise[0].permute(1, 2, 0).numpy())
