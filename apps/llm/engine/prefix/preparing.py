"""Has an executor do what a page pool has decided on."""

from typing import Any

from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.prefix.page_pool import PagePool


def prepare_pages(pool: PagePool, executor: Executor[Any]) -> None:
    """Copy and clean pages, after the steps launched so far and before the next.

    In this order: a page that leaves may be overwritten by one that returns, also to the place of one to be cleaned.
    """
    leaving, returning = pool.host.take()
    if leaving.pages:
        executor.keep(leaving)
    if pages := pool.to_clean():
        executor.clean(pages)
    if returning.pages:
        executor.bring_back(returning)
