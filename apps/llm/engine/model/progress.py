"""Progress of long work: a rich bar on a terminal, a log line now and then elsewhere."""

import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger("podslice")


@contextmanager
def bar(label: str, total: int, shown: bool = True) -> Iterator[Callable[[], None]]:
    """Yields `advance()`, to be called `total` times."""
    if shown and sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(label, total=total)
            yield lambda: progress.advance(task)
        return
    started = told = time.monotonic()
    done = 0

    def advance() -> None:
        nonlocal done, told
        done += 1
        now = time.monotonic()
        if shown and now - told > 5:
            told = now
            log.info("%s: %d of %d after %.0f s", label, done, total, now - started)

    yield advance
    if shown:
        log.info("%s: %d in %.1f s", label, done, time.monotonic() - started)
