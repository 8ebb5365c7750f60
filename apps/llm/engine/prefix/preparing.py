"""Has an executor do what a prefix cache has decided on."""

from typing import Any

from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.prefix.reuse import PrefixReuse


def prepare(reuse: PrefixReuse, executor: Executor[Any]) -> None:
    """Copy and clean pages and copy states, after the steps launched so far and before the next.

    In this order: a page that leaves may be overwritten by one that returns, also to the place of one to be cleaned. So
    may the state in a slot.
    """
    leaving, returning = reuse.pool.host.take()
    if leaving.pages:
        executor.keep(leaving)
    if pages := reuse.pool.to_clean():
        executor.clean(pages)
    if returning.pages:
        executor.bring_back(returning)
    if reuse.states is not None:
        kept, brought_back = reuse.states.take()
        if kept.slots:
            executor.keep_states(kept)
        if brought_back.slots:
            executor.bring_back_states(brought_back)
