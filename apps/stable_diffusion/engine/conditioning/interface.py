"""What text encoders are to the programs."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax

from apps.stable_diffusion.engine.loras.layout import Pool
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint

ComponentWeights = Mapping[str, Any]
"""A component's arrays, in a tree whose form is its network's affair; by name, for most."""
AllWeights = Mapping[str, ComponentWeights]


class EncodedPrompt(NamedTuple):
    """An encoded prompt, or the shapes of one."""

    context: jax.Array  # [positions, d]
    pooled: jax.Array | None = None  # [e], of Stable Diffusion XL
    length: jax.Array | None = None  # [] int32: the positions that count, the first ones; None: all


class PromptEncoder(Protocol):
    """A model's text encoders. What it is given and returns as arrays can be shapes of them, too, where it says so."""

    @property
    def components(self) -> tuple[str, ...]: ...

    @property
    def adaptable(self) -> tuple[str, ...]:
        """The components that LoRA can change."""

    def inputs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """What a tokenized prompt is: int32 arrays, without their place on devices."""

    def encoded(self) -> EncodedPrompt:
        """What becomes of it: shapes, without their place on devices."""

    def forms(self) -> dict[str, Any]:
        """Shapes and types of the weights of each component, with shardings unless they are on every device."""

    def loader(self, checkpoint: Checkpoint) -> Callable[[], dict[str, Any]]:
        """A function that reads those weights. Raises CheckpointError where a tensor's header already shows a fault."""

    def encode(
        self, weights: AllWeights, inputs: tuple[jax.Array, ...], loras: Mapping[str, Pool] | None = None
    ) -> EncodedPrompt:
        """Encodes one prompt, inside a program. `loras`: pools of a single slot, by component."""
