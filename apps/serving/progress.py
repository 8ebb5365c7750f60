"""Progress of long work: a rich bar on a terminal, a log line now and then elsewhere.

A process that `podslice serve` has started tells it to that command as well, which shows all of them together: each
event is a line of JSON at the end of the file that PODSLICE_EVENTS names.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypedDict

log = logging.getLogger("podslice")

EVENTS = "PODSLICE_EVENTS"
PERIOD_S = 5.0
"""Between two lines about the same work, where there is no terminal."""
LEAST_S = 0.1
"""Between two events of the same work: weights may have thousands of tensors."""


class Event(TypedDict, total=False):
    """What a process says of its start: `stage`, `part` with its numbers, `waiting`, `failure`, or `port`."""

    process: int
    stage: str
    """What has begun; one at a time."""
    logs: str
    """Folder in which Ray writes all its logs."""
    joined: bool
    """The cluster was there before and stays."""
    app: str
    """The application that the process belongs to."""
    part: str
    """Countable work, such as weights."""
    done: int
    total: int
    failure: str
    """Why it cannot go on; for the user."""
    waiting: str
    """What the start waits for, if it is not its own work."""
    port: int
    """All applications answer, there."""


app = ""
"""The Serve application that this process belongs to; set once, by whoever knows."""


def tell(event: Event) -> None:
    """To `podslice serve`, if that started this process."""
    path = os.environ.get(EVENTS)
    if path is None:
        return
    line = json.dumps(Event(process=os.getpid(), app=app) | event) + "\n"
    try:
        events = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:  # the command is gone, or on another host
        return
    os.write(events, line.encode())
    os.close(events)


def reason(error: Exception) -> str:
    """Why something did not start, for the user: errors raised for users say it whole, others need their name."""
    text = str(error).strip()
    told = isinstance(error, ValueError | MemoryError | TimeoutError) and text
    return text if told else f"{type(error).__name__}: {text}"


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Yields `advance()`, to be called `total` times."""
    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        with Progress(*columns, console=Console(stderr=True)) as progress:
            task = progress.add_task(label, total=total)
            yield lambda: progress.advance(task)
        return
    started = logged = time.monotonic()
    told = 0.0
    done = 0

    def advance() -> None:
        nonlocal done, logged, told
        done += 1
        now = time.monotonic()
        if now - logged > PERIOD_S:
            logged = now
            log.info("%s: %d of %d after %.0f s", label, done, total, now - started)
        if now - told > LEAST_S or done == total:
            told = now
            tell({"part": label, "done": done, "total": total})

    tell({"part": label, "done": 0, "total": total})
    yield advance
    log.info("%s: %d in %.1f s", label, done, time.monotonic() - started)
