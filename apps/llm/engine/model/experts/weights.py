"""The weights of a layer's experts, as the loop and the kernel take them."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from apps.arrays.quantization import Weight

Activation = Callable[[jax.Array, jax.Array], jax.Array]
"""Gate and up `[tokens, width]` -> the activations that go down."""


class ExpertWeights(NamedTuple):
    """The matrices and biases of all experts of a layer, one expert after another.

    Where `parts` devices share each expert's width, they are as if there were as many more experts of a part of it:
    those of the first group of devices with the first part, with the second, and so on.
    """

    into: Weight  # [experts * 2 * width, hidden]: an expert's gate rows, then its up rows
    down: Weight  # [experts * hidden, width], or [experts * parts * hidden, width / parts]
    # Columns are filled up with any values: see `whole_lanes`.
    into_bias: jax.Array | None = None  # [experts * 2 * width] float32
    down_bias: jax.Array | None = None  # [experts * hidden] float32, or [experts * parts * hidden], repeated
