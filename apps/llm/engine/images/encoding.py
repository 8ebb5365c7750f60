"""Encodes images: the program for some of them at a time, and what it gets from the host."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from apps.arrays.programs import ProgramSet, ProgramSpec, zeros
from apps.llm.api import PromptImage
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.param import Params
from apps.llm.engine.model.towers.blocks import QUERIES, Patches
from apps.llm.engine.model.towers.choice import AnyTower, tower_for
from apps.llm.engine.model.towers.spec import Tower
from ray_configs.llm import EngineConfig

SMALLEST = 64
"""Tokens of the smallest call; each is four times the one before, up to the largest image."""


class Encoding(NamedTuple):
    """A call's images on the host."""

    tokens: int  # that the program is compiled for
    numbers: np.ndarray  # int32: each patch's row, column, its image's rows, columns and number; each token's row
    pixels: np.ndarray  # [patches, channels * patch * patch] uint8

    def content(self) -> bytes:
        """To send to another process."""
        return len(self.numbers).to_bytes(4, "little") + self.numbers.tobytes() + self.pixels.tobytes()

    @classmethod
    def of(cls, tokens: int, content: bytes) -> "Encoding":
        count = int.from_bytes(content[:4], "little")
        numbers, pixels = (
            np.frombuffer(content, np.int32, count, 4),
            np.frombuffer(content, np.uint8, -1, 4 + 4 * count),
        )
        return cls(tokens, numbers, pixels.reshape((count - tokens) // 5, -1))


Encoded = Sequence[tuple[PromptImage, np.ndarray]]
"""Images, and the rows of their tokens."""


@dataclass(frozen=True)
class EncodingSizes:
    """The calls that are compiled.

    Args:
        most: tokens of the largest image.
        rows: tokens that there is room for.
    """

    tower: Tower
    most: int
    rows: int

    @classmethod
    def of(cls, config: EngineConfig, arch: Architecture) -> "EncodingSizes | None":
        """None: the model reads text alone.

        Raises:
            ValueError: the config leaves no room for an image.
        """
        if arch.tower is None:
            return None
        most, least = config.max_image_tokens, arch.tower.least
        if most < least:
            raise ValueError(f"max_image_tokens is {most}, but an image has {least} tokens in this model: raise it")
        span = min(most, arch.tower.most or most)
        if arch.sees_both_ways and config.max_step_tokens < (needed := span + config.max_batch_size - 1):
            raise ValueError(
                f"max_step_tokens is {config.max_step_tokens}, but this model takes each image in one step, beside "
                f"a token for each other sequence: raise it to {needed} at least, or lower max_image_tokens ({most}) "
                f"or max_batch_size ({config.max_batch_size})"
            )
        return cls(arch.tower, most, config.image_tokens)

    @property
    def tokens(self) -> list[int]:
        """Of each call, smallest first."""
        every = math.prod(self.tower.every or ())
        return [*(size for size in (SMALLEST << 2 * i for i in range(16)) if every <= size < self.most), self.most]

    def calls(self, images: Encoded) -> Iterator[Encoding]:
        """Some images after another, as many as a call takes."""
        some, count = list[tuple[PromptImage, np.ndarray]](), 0
        for image, rows in images:
            if some and count + image.parts > self.most:
                yield self._packed(some, count)
                some, count = [], 0
            some.append((image, rows))
            count += image.parts
        if some:
            yield self._packed(some, count)

    def empty(self, tokens: int) -> Encoding:
        """A call of this size without an image."""
        each, spec = self.tower.patches_a_token, self.tower
        numbers = np.zeros(5 * tokens * each + tokens, np.int32)
        numbers[4 * tokens * each : 5 * tokens * each] = -1
        numbers[5 * tokens * each :] = self.rows  # of none
        return Encoding(tokens, numbers, np.zeros((tokens * each, spec.bytes_a_patch), np.uint8))

    def each_empty(self) -> Iterator[Encoding]:
        """A call of each size without an image."""
        return map(self.empty, self.tokens)

    def _packed(self, images: Encoded, count: int) -> Encoding:
        call = self.empty(next(size for size in self.tokens if size >= count))
        each, merge = self.tower.patches_a_token, self.tower.merge
        patches, rows = call.numbers[: 5 * len(call.pixels)].reshape(5, -1), call.numbers[5 * len(call.pixels) :]
        inner_row, inner_column = np.divmod(np.arange(each), merge)
        first = 0
        for number, (image, own) in enumerate(images):
            row, column = np.divmod(np.arange(image.parts), image.grid[1])
            here = slice(first * each, (first + image.parts) * each)
            patches[0, here] = (row[:, None] * merge + inner_row).reshape(-1)
            patches[1, here] = (column[:, None] * merge + inner_column).reshape(-1)
            patches[2:4, here] = np.multiply(image.grid, merge)[:, None]
            patches[4, here] = number
            call.pixels[here] = np.frombuffer(image.pixels, np.uint8).reshape(-1, self.tower.bytes_a_patch)
            rows[first : first + image.parts] = own
            first += image.parts
        return call

    def bytes_needed(self, itemsize: int) -> int:
        """Of each device's memory: for what is kept, and while the largest call runs."""
        spec, patches = self.tower, self.most * self.tower.patches_a_token
        scores = 2 * spec.heads * min(patches, QUERIES) * patches * 4
        widest = max(3 * spec.width, spec.mlp_width, spec.bytes_a_patch)
        return self.rows * spec.features * itemsize + scores + 3 * patches * widest * 4

    def kept(self, dtype: jnp.dtype, sharding: NamedSharding) -> Any:
        """The form of the array that keeps the images' tokens: `[rows, features]`, whole on each device."""
        return jax.ShapeDtypeStruct((self.rows, self.tower.features), dtype, sharding=sharding)

    def listed(self, weights: Params, kept: Any) -> Iterator[ProgramSpec]:
        """`("images",)`, which makes what keeps them, and `("encode", tokens)` for each size."""
        yield ProgramSpec(("images",), partial(zeros, kept), (), out_shardings=kept.sharding)
        tower = tower_for(self.tower, kept.sharding.mesh.size, kept.dtype)
        for tokens in self.tokens:
            call = self.empty(tokens)
            given = [jax.ShapeDtypeStruct(part.shape, part.dtype, sharding=kept.sharding) for part in call[1:]]
            arguments = weights, kept, *given
            function = partial(encode, tower, tokens)
            yield ProgramSpec(("encode", tokens), function, arguments, donate=(1,), out_shardings=kept.sharding)


def encode(
    tower: AnyTower, tokens: int, weights: Params, kept: jax.Array, numbers: jax.Array, pixels: jax.Array
) -> jax.Array:
    """`kept` with the tokens of these images in their rows."""
    patches = numbers[: 5 * len(pixels)].reshape(5, -1)
    made = tower.apply(weights, Patches(pixels, *patches))
    return kept.at[numbers[-tokens:]].set(made.astype(kept.dtype), mode="drop")


class ImageMemory:
    """The encoded images on a DP rank's devices.

    Args:
        put: puts what the host has where the programs expect it.
    """

    def __init__(self, programs: ProgramSet, put: Callable[[np.ndarray], Any]):
        self._programs, self._put = programs, put
        self.kept = programs["images",]()

    def encode(self, tower: Params, call: Encoding) -> None:
        """Encode a call's images, after the steps launched so far and before the next."""
        program = self._programs["encode", call.tokens]
        self.kept = program(tower, self.kept, self._put(call.numbers), self._put(call.pixels))
