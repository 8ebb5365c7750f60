"""Pages in the hosts' memory: the arrays there, and the programs that copy between them and the KV cache.

Each device's part of a page stays on its own host, so nothing crosses the network. The arrays are pinned, and written
in place. A CPU's own memory is its host's.
"""

import logging
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from apps.arrays.programs import ProgramSet, ProgramSpec, shardings
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.prefix.transfer import Transfer

log = logging.getLogger("podslice")

COPIED = 16
"""Pages that one call of a program copies."""
PINNED = "pinned_host"


def forms(caches: Any, pages: int) -> Any:
    """The arrays for so many pages of these caches, and for one more, which takes the writes of padding."""

    def on_host(form: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        where: Any = form.sharding
        if where.mesh.devices.flat[0].platform != "cpu":
            where = where.with_memory_kind(PINNED)
        return jax.ShapeDtypeStruct((pages + 1, *form.shape[1:]), form.dtype, sharding=where)

    return jax.tree.map(on_host, caches)


def copying(caches: Any, pages: int, everywhere: NamedSharding) -> Iterator[ProgramSpec]:
    """The programs `("keep",)` and `("bring back",)`. Each takes what it writes, what it reads, and rows of both.

    Args:
        caches: those that are split into pages.
        everywhere: for the rows.
    """
    host, rows = forms(caches, pages), jax.ShapeDtypeStruct((COPIED,), jnp.int32, sharding=everywhere)
    pinned = any(form.sharding.memory_kind == PINNED for form in jax.tree.leaves(host))
    to_host, to_device = (jax.memory.Space.Host, jax.memory.Space.Device) if pinned else (None, None)
    for name, space, to, source in (("keep", to_host, host, caches), ("bring back", to_device, caches, host)):
        arguments = to, source, rows, rows
        yield ProgramSpec((name,), partial(copied, space), arguments, donate=(0,), out_shardings=shardings(to))


def copied(space: Any, to: Any, source: Any, rows: jax.Array, source_rows: jax.Array) -> Any:
    """`to` with these rows of `source`, written in place, one after the other.

    Args:
        space: the `jax.memory.Space` of `to`; None if both are in one. Then the rows are gathered first: a CPU's
            compiler would copy all of what a loop reads. From another space they can only be sliced.
    """
    if space is None:
        source, source_rows = jax.tree.map(lambda part: part[source_rows], source), jnp.arange(COPIED)

    def copy(i: jax.Array, to: Any) -> Any:
        def part(into: jax.Array, out_of: jax.Array) -> jax.Array:
            row = jax.lax.dynamic_slice_in_dim(out_of, source_rows[i], 1)
            row = row if space is None else jax.device_put(row, space)
            return jax.lax.dynamic_update_slice_in_dim(into, row, rows[i], 0)

        return jax.tree.map(part, to, source)

    return jax.lax.fori_loop(0, COPIED, copy, to)


class HostMemory:
    """The arrays in host memory of a DP rank's devices.

    Args:
        put: puts rows where the programs expect them.
    """

    def __init__(self, programs: ProgramSet, put: Callable[[np.ndarray], Any]):
        self._keep, self._bring_back, self._put = programs["keep",], programs["bring back",], put
        self._arrays = jax.tree.map(_empty, programs.specs["keep",].arguments[0])
        self._spare = jax.tree.leaves(self._arrays)[0].shape[0] - 1

    @property
    def nbytes(self) -> int:
        """On all hosts together."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self._arrays))

    def keep(self, caches: Any, transfer: Transfer) -> None:
        for pages, rows in self._calls(transfer):
            self._arrays = self._keep(self._arrays, caches, rows, pages)

    def bring_back(self, caches: Any, transfer: Transfer) -> Any:
        """The caches, with these pages in them."""
        for pages, rows in self._calls(transfer):
            caches = self._bring_back(caches, self._arrays, pages, rows)
        return caches

    def _calls(self, transfer: Transfer) -> Iterator[tuple[Any, Any]]:
        for first in range(0, len(transfer.pages), COPIED):
            pages = np.zeros(COPIED, np.int32)  # page 0, which nobody reads, where there are fewer
            rows = np.full(COPIED, self._spare, np.int32)
            some = slice(first, first + COPIED)
            count = len(transfer.pages[some])
            pages[:count], rows[:count] = transfer.pages[some], transfer.rows[some]
            yield self._put(pages), self._put(rows)


def pages_worth(
    executor: Executor[Any], page_size: int, largest: StepShape, pages: int, copied: Callable[[], object]
) -> int:
    """All of the pages, if copying one is quicker than computing it, else none. Arguments as of `seconds_a_page`."""
    copied_s, computed_s = seconds_a_page(executor, page_size, largest, pages, copied)
    log.info(
        "host memory: a page takes %.2f ms to copy there and back, %.2f ms to compute%s",
        copied_s * 1000,
        computed_s * 1000,
        "" if copied_s < computed_s else ": not used",
    )
    return pages if copied_s < computed_s else 0


def seconds_a_page(
    executor: Executor[Any], page_size: int, largest: StepShape, pages: int, copied: Callable[[], object]
) -> tuple[float, float]:
    """Seconds to copy a page to host memory and back, and to compute its tokens in the largest step.

    Args:
        pages: for which there is host memory.
        copied: waits for the copies.
    """
    count = min(largest.tokens // page_size, executor.pages - 1, largest.max_pages) or 1
    tokens = min(count * page_size, largest.tokens)
    step = executor.shape_for(tokens, 1).host()
    step.add([0] * tokens, tokens, range(1, count + 1), decoding=False)
    computed_s = median_s(lambda: executor.read(executor.launch(step)))
    some = min(COPIED, executor.pages - 1, pages)
    transfer = Transfer(list(range(1, some + 1)), list(range(some)))

    def copy() -> None:
        executor.keep(transfer)
        executor.bring_back(transfer)
        copied()

    copied_s = median_s(copy)
    executor.clean(range(1, max(count, some) + 1))
    return copied_s / some, computed_s * page_size / tokens


def _empty(form: jax.ShapeDtypeStruct) -> jax.Array:
    """Zeros, made on the host: devices have no room for them."""
    assert form.sharding is not None
    shard = form.sharding.shard_shape(form.shape)
    return jax.make_array_from_callback(form.shape, form.sharding, lambda index: np.zeros(shard, form.dtype))


def median_s(run: Callable[[], object]) -> float:
    """Seconds that it takes, of a few runs after the first."""
    run()
    times = []
    for _ in range(3):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return statistics.median(times)
