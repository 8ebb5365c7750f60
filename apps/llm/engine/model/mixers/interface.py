"""What a mixer is to the rest of the engine.

A mixer is the part of a layer in which tokens see those before them. It declares its parameters, says what it keeps of
each sequence between steps, and applies itself to a step's tokens. The decoder, the engine's programs and the plan know
no more of it than this.
"""

from typing import Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp

from apps.llm.engine.adapters.low_rank import AdaptedProduct
from apps.llm.engine.attention.spec import AttentionBackend
from apps.llm.engine.model.param import Params
from apps.llm.engine.model.step_context import StepContext


class Capacity(NamedTuple):
    """How much state there is room for."""

    pages: int  # page 0 included, which nobody owns
    page_size: int  # in positions
    slots: int  # of sequences, and one more for padding
    dtype: jnp.dtype  # of a KV cache's numbers


class StateForm(NamedTuple):
    """What a mixer keeps of sequences between steps, in arrays whose first axis is that of pages, or of slots.

    A page holds `page_size` positions of a sequence (`Batch.pages`); its content can be shared by sequences that begin
    alike. A slot holds all of one sequence (`Batch.slots`), and what a former owner left in it; a sequence is new where
    its tokens in the step are all it has (`q_lens == kv_lens`).
    """

    arrays: Any  # a tree of jax.ShapeDtypeStruct, of all devices together
    partition: Any  # how they are split over the mesh: PartitionSpecs, each for all arrays below it
    held_by: Literal["pages", "slots"]


class Mixed(NamedTuple):
    """The result of a mixer."""

    y: jax.Array  # [T, hidden], to be added to the hidden states; split by token if the step is
    state: Any  # with the step's tokens
    observed: Any = None  # what `calibrated` makes scales of


class LayerMixer(Protocol):
    """A layer's mixer, for one split of the model."""

    def declare(self, layer: str) -> Params:
        """Its parameters, by keys of their own among the layer's.

        Args:
            layer: what the names of the layer's tensors begin with, such as `model.layers.0`.
        """

    def adapted(self) -> dict[str, AdaptedProduct]:
        """Its products that adapters can change, by parameter."""

    def state(self, attention: AttentionBackend, room: Capacity) -> StateForm | None:
        """What it keeps between steps; None if it keeps nothing, or reads another layer's."""

    def scales(self) -> Any:
        """Forms of what it needs to keep its state in int8, each split along its first axis; None: nothing."""

    def calibrated(self, observed: Any) -> Any:
        """Those scales, from what it `observed` of a sample text; None if that is None."""

    def shared(self, step: StepContext) -> Any:
        """Arrays that it needs in a step and that other layers may need too: made by `StepContext.once`."""

    def apply(self, x: jax.Array, layer: Params, state: Any, shared: Any, scales: Any, step: StepContext) -> Mixed:
        """Mix a step's tokens.

        Args:
            x: `[T, hidden]`, normed, replicated.
            state: its own, or that of the layer that it reads.
        """
