"""What LoRA adds to a layer's product: two small matrices for each picture of a batch.

A LoRA adds `up @ down @ x` to `weight @ x` (Hu et al. 2021, https://arxiv.org/abs/2106.09685). Each row of a batch has
a pair of its own, so pictures with different LoRAs share a pass.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class LoraPair(NamedTuple):
    """The matrices of one layer, for each of n rows."""

    down: jax.Array  # [n, rank, in]; of a convolution of more than one pixel [n, size, size, rank, in]
    up: jax.Array  # [n, rank, out], times the scale

    def linear(self, x: jax.Array) -> jax.Array:
        """[n, ..., in] -> [n, ..., out]."""
        inner = jnp.einsum("n...i,nri->n...r", x, self.down, preferred_element_type=jnp.float32)
        return jnp.einsum("n...r,nro->n...o", inner.astype(x.dtype), self.up)

    def conv(self, x: jax.Array, shape: tuple[int, ...], stride: int, around: tuple[int, int]) -> jax.Array:
        """[n, h, w, in] -> [n, *shape], for an output [n, height, width, out] of this shape.

        A product for each place of the kernel: a convolution with kernels of each row's own would be a grouped one,
        for which the pictures' channels are moved side by side first.
        """
        if self.down.ndim == 3:
            return self.linear(x)
        size, (_, height, width, _) = self.down.shape[1], shape
        x = jnp.pad(x, ((0, 0), around, around, (0, 0)))
        inner = jnp.zeros((*shape[:3], self.down.shape[3]), jnp.float32)
        for i in range(size):
            for j in range(size):
                rows = slice(i, i + stride * (height - 1) + 1, stride)
                columns = slice(j, j + stride * (width - 1) + 1, stride)
                seen, down = x[:, rows, columns], self.down[:, i, j]
                inner += jnp.einsum("nhwi,nri->nhwr", seen, down, preferred_element_type=jnp.float32)
        return jnp.einsum("nhwr,nro->nhwo", inner.astype(x.dtype), self.up)


def plus(y: jax.Array, pair: LoraPair | None, x: jax.Array) -> jax.Array:
    """A product y of x, plus what the pair adds."""
    return y if pair is None else y + pair.linear(x)
