"""Layers that are computed in another form than they are defined in."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from apps.stable_diffusion.engine.model.layers import upsample
from apps.stable_diffusion.engine.model.weights import NamedWeights, by_parity, undo_by_parity

HEIGHT, WIDTH, CHANNELS = 5, 7, 16
KERNEL = np.random.default_rng(0).normal(size=(3, 3, CHANNELS, CHANNELS)).astype(np.float32) / 12
BIAS = np.random.default_rng(1).normal(size=CHANNELS).astype(np.float32)
X = np.random.default_rng(2).normal(size=(2, HEIGHT, WIDTH, CHANNELS)).astype(np.float32)


def defined(size: tuple[int, int], dtype: jnp.dtype) -> np.ndarray:
    """The nearest pixel of each, then a convolution of 3 x 3."""
    rows, columns = (np.arange(new) * old // new for new, old in zip(size, (HEIGHT, WIDTH)))
    large, kernel = jnp.asarray(X[:, rows][:, :, columns], dtype), jnp.asarray(KERNEL, dtype)
    numbers = ("NHWC", "HWIO", "NHWC")
    y = lax.conv_general_dilated(large, kernel, (1, 1), ((1, 1), (1, 1)), dimension_numbers=numbers)
    return np.asarray(y + jnp.asarray(BIAS, dtype), np.float32)


def computed(size: tuple[int, int], dtype: jnp.dtype) -> np.ndarray:
    weights = NamedWeights(
        {"conv.weight": jnp.asarray(by_parity(KERNEL), dtype), "conv.bias": jnp.asarray(BIAS, dtype)}
    )
    return np.asarray(upsample(weights, jnp.asarray(X, dtype), size), np.float32)


@pytest.mark.parametrize("height", [2 * HEIGHT, 2 * HEIGHT - 1])
@pytest.mark.parametrize("width", [2 * WIDTH, 2 * WIDTH - 1])
def test_upsampling_is_repeating_pixels_and_a_convolution(height: int, width: int) -> None:
    np.testing.assert_allclose(computed((height, width), jnp.float32), defined((height, width), jnp.float32), atol=1e-5)


def test_sums_of_weights_cost_no_precision() -> None:
    """In bfloat16, where a sum is rounded once more, but fewer products are."""
    size = 2 * HEIGHT, 2 * WIDTH
    exact = defined(size, jnp.float32)
    ours, plain = (np.abs(each - exact).mean() for each in (computed(size, jnp.bfloat16), defined(size, jnp.bfloat16)))
    assert 1e-4 < ours < 1.2 * plain


def test_the_weights_can_be_had_again() -> None:
    np.testing.assert_allclose(jax.jit(undo_by_parity)(by_parity(KERNEL)), KERNEL, atol=1e-6)
