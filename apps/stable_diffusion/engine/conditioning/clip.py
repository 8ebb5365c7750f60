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
        everywhere: the sharding of what every device has.
    """

    configs: Mapping[str, Mapping[str, Any]]
    lengths: tuple[int, ...]
    dtype: jnp.dtype
    everywhere: jax.sharding.Sharding

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
        return tuple(jax.ShapeDtypeStruct((1, length), np.int32) for length in self.lengths)

    def encoded(self) -> EncodedPrompt:
        configs = list(self.configs.values())
        context = self.lengths[0], sum(config["hidden_size"] for config in configs)
        pooled = jax.ShapeDtypeStruct((configs[-1]["projection_dim"],), self.dtype) if self.is_xl else None
        return EncodedPrompt(jax.ShapeDtypeStruct(context, self.dtype), pooled)  # type: ignore[arg-type]  # shapes in the arrays' places

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
        row = None if loras is None else jnp.zeros(1, np.int32)
        encoded = []
        for name, ids in zip(self.components, inputs):
            pool = None if loras is None else loras[name]
            encoded.append(self._run(name, adapted(weights[name], pool, row), ids))
        pooled = encoded[-1][1]
        context = jnp.concatenate([context for context, _ in encoded], axis=-1)
        return EncodedPrompt(context[0], None if pooled is None else pooled[0])

    def _run(self, name: str, weights: NamedWeights, ids: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        """One encoder: [1, positions] -> [1, positions, hidden], and [1, e] of XL's second."""
        second = name == "text_encoder_2"
        return text_encoder.encode(weights, self.configs[name], ids, self.is_xl, second)

    def _alone(self, name: str) -> Callable[[NamedWeights], Any]:
        """A function of an encoder's weights that uses all that `encode` uses."""
        positions = self.lengths[self.components.index(name)]
        return lambda weights: self._run(name, weights, jnp.zeros((1, positions), np.int32))
