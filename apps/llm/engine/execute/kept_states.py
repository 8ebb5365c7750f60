"""States of sequences beside those in the slots, and the programs that copy between the two, one state at a time."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from apps.arrays.programs import ProgramSet, ProgramSpec, shardings, zeros
from apps.llm.engine.prefix.transfer import StateTransfer


def forms(by_slot: Any, rows: int) -> Any:
    """The arrays for so many states, split over the devices as those that are held by slot."""
    return jax.tree.map(
        lambda form: jax.ShapeDtypeStruct((rows, *form.shape[1:]), form.dtype, sharding=form.sharding), by_slot
    )


def copying(by_slot: Any, rows: int, everywhere: NamedSharding) -> Iterator[ProgramSpec]:
    """The programs `("kept states",)`, which makes the arrays, `("keep state",)` and `("bring back state",)`.

    These take what they write, what they read, and an index of each.
    """
    kept, index = forms(by_slot, rows), jax.ShapeDtypeStruct((2,), jnp.int32, sharding=everywhere)
    yield ProgramSpec(("kept states",), partial(zeros, kept), (), out_shardings=shardings(kept))
    for name, to, source in (("keep state", kept, by_slot), ("bring back state", by_slot, kept)):
        yield ProgramSpec((name,), copied, (to, source, index), donate=(0,), out_shardings=shardings(to))


def copied(to: Any, source: Any, index: jax.Array) -> Any:
    """`to` with a state of `source`, written in place.

    Args:
        index: `[2]` where it goes, and where it is.
    """

    def part(into: jax.Array, out_of: jax.Array) -> jax.Array:
        one = jax.lax.dynamic_slice_in_dim(out_of, index[1], 1)
        return jax.lax.dynamic_update_slice_in_dim(into, one, index[0], 0)

    return jax.tree.map(part, to, source)


class StateMemory:
    """The arrays of kept states, on a DP rank's devices.

    Args:
        put: puts indices where the programs expect them.
    """

    def __init__(self, programs: ProgramSet, put: Callable[[np.ndarray], Any]):
        self._keep, self._bring_back, self._put = programs["keep state",], programs["bring back state",], put
        self._arrays = programs["kept states",]()

    def keep(self, by_slot: Any, transfer: StateTransfer) -> None:
        for slot, row in zip(transfer.slots, transfer.rows):
            self._arrays = self._keep(self._arrays, by_slot, self._put(np.array([row, slot], np.int32)))

    def bring_back(self, by_slot: Any, transfer: StateTransfer) -> Any:
        """What is held by slot, with these states in it."""
        for slot, row in zip(transfer.slots, transfer.rows):
            by_slot = self._bring_back(by_slot, self._arrays, self._put(np.array([slot, row], np.int32)))
        return by_slot
