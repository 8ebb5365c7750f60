"""CLIP's text encoders, one or two side by side: Stable Diffusion 1.x, 2.x and XL."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from apps.stable_diffusion.engine.conditioning.interface import AllWeights, EncodedPrompt
from apps.stable_diffusion.engine.loras.layout import Pool, adapted
from apps.stable_diffusion.engine.model import text_encoder, weights
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.model.weights import NamedWeights


@dataclass(frozen=True)
class ClipEncoder:
    """The `PromptEncoder`.

    Args:
        configs: of each encoder, by component.
        lengths: positions of each.
        chunks: of a prompt, at most, each encoded by itself; see `chunks`.
        everywhere: the sharding of what every device has.
    """

    configs: Mapping[str, Mapping[str, Any]]
    lengths: tuple[int, ...]
    dtype: jnp.dtype
    everywhere: jax.sharding.Sharding
    chunks: int = 1

    def __post_init__(self) -> None:
        for name, config in self.configs.items():
            text_encoder.check(config, name)

    @property
    def components(self) -> tuple[str, ...]:
        return tuple(self.configs)

    @property
    def adaptable(self) -> tuple[str, ...]:
        return self.components

    @property
    def is_xl(self) -> bool:
        return len(self.configs) == 2

    def inputs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Of each encoder the ids [chunks, positions], and their weights; of a single encoder, how many of its layers
        are left out; of several chunks, how many are used."""
        ids, weights = (
            [jax.ShapeDtypeStruct((self.chunks, length), dtype) for length in self.lengths]
            for dtype in (np.int32, np.float32)
        )
        left_out = [] if self.is_xl else [jax.ShapeDtypeStruct((), np.int32)]
        return *ids, *weights, *left_out, *self._count()

    def encoded(self) -> EncodedPrompt:
        configs = list(self.configs.values())
        positions = self.chunks * self.lengths[0]
        context = positions, sum(config["hidden_size"] for config in configs)
        pooled = jax.ShapeDtypeStruct((configs[-1]["projection_dim"],), self.dtype) if self.is_xl else None
        return EncodedPrompt(jax.ShapeDtypeStruct(context, self.dtype), pooled, *self._count())  # type: ignore[arg-type]  # shapes in the arrays' places

    def _count(self) -> list[jax.ShapeDtypeStruct]:
        return [jax.ShapeDtypeStruct((), np.int32)] if self.chunks > 1 else []

    def forms(self) -> dict[str, Any]:
        return {name: weights.declared(self._alone(name), self.dtype) for name in self.components}

    def loader(self, checkpoint: Checkpoint) -> Callable[[], dict[str, Any]]:
        entries = {name: weights.required(checkpoint, name, self._alone(name), self.dtype) for name in self.components}
        return lambda: {
            name: weights.load(checkpoint, each, self.dtype, self.everywhere) for name, each in entries.items()
        }

    def encode(
        self, weights: AllWeights, inputs: tuple[jax.Array, ...], loras: Mapping[str, Pool] | None = None
    ) -> EncodedPrompt:
        row = None if loras is None else jnp.zeros(self.chunks, np.int32)
        n, encoded = len(self.configs), []
        left_out = None if self.is_xl else inputs[2 * n]
        for name, ids, emphasis in zip(self.components, inputs[:n], inputs[n:]):
            pool = None if loras is None else loras[name]
            context, pooled = self._run(name, adapted(weights[name], pool, row), ids, left_out)
            encoded.append(_weighted(context, emphasis))
        whole = jnp.concatenate(encoded, axis=-1).reshape(self.encoded().context.shape)
        length = inputs[-1] * self.lengths[0] if self.chunks > 1 else None
        return EncodedPrompt(whole, None if pooled is None else pooled[0], length)

    def _run(
        self, name: str, weights: NamedWeights, ids: jax.Array, left_out: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """One encoder: [chunks, positions] -> [chunks, positions, hidden], and [chunks, e] of XL's second."""
        second = name == "text_encoder_2"
        return text_encoder.encode(weights, self.configs[name], ids, self.is_xl, second, left_out)

    def _alone(self, name: str) -> Callable[[NamedWeights], Any]:
        """A function of an encoder's weights that uses all that `encode` uses."""
        positions = self.lengths[self.components.index(name)]
        return lambda weights: self._run(name, weights, jnp.zeros((1, positions), np.int32))


def _weighted(context: jax.Array, weights: jax.Array) -> jax.Array:
    """Hidden states [chunks, positions, hidden] times [chunks, positions]; each chunk's mean stays what it was.

    Source: `EmphasisOriginal` in AUTOMATIC1111's modules/sd_emphasis.py, its default. Without weights nothing changes.
    """
    own = context.astype(jnp.float32)
    weighted = own * weights[..., None]
    weighted = weighted * (own.mean((1, 2), keepdims=True) / weighted.mean((1, 2), keepdims=True))
    return jnp.where(jnp.any(weights != 1, 1)[:, None, None], weighted, own).astype(context.dtype)
