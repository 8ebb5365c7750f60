"""What a layer's feed-forward network is to the decoder."""

from typing import Protocol

import jax

from apps.llm.engine.adapters.low_rank import AdaptedProduct
from apps.llm.engine.model.param import Params
from apps.llm.engine.model.step_context import StepContext


class LayerNetwork(Protocol):
    """A layer's feed-forward network, for one split of the model."""

    def declare(self, layer: str) -> Params:
        """Its parameters; see `LayerMixer.declare`."""

    def adapted(self) -> dict[str, AdaptedProduct]:
        """Its products that adapters can change, by parameter."""

    def apply(self, x: jax.Array, layer: Params, step: StepContext) -> jax.Array:
        """What is added to the hidden states, `[T, hidden]`, split by token if the step is.

        Args:
            x: `[T, hidden]`, normed (but for `BesideExperts`, whose parts have norms of their own), replicated. Of
                experts, padding takes none.
        """
