"""Progress of long work: a rich bar on a terminal, periodic log lines elsewhere.

A process started by `podslice serve` also reports to that command, which shows all processes together: it appends each
event as a line of JSON to the file that PODSLICE_EVENTS names.
"""

import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, TypedDict

from apps.serving.logs.one_line import escaped

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("podslice")

EVENTS = "PODSLICE_EVENTS"
PERIOD_S = 5.0
"""Time between two log lines about the same work."""
LEAST_S = 0.1
"""Least time between two events about the same work: weights may have thousands of tensors."""


class Event(TypedDict, total=False):
    """A process's report of its start: `stage`, `part` with its numbers, `waiting`, `failure`, or `port`."""

    process: int
    stage: str
    """The stage that has begun; there is one at a time."""
    logs: str
    """Folder in which Ray writes all its logs."""
    joined: bool
    """Whether the cluster was already running; then it is left running."""
    app: str
    """The application that the process belongs to."""
    part: str
    """Countable work, such as weights."""
    done: int
    total: int
    failure: str
    """Why it failed, for the user."""
    over: str
    """Why the server cannot go on, for the user."""
    waiting: str
    """What the start is waiting for, other than its own work."""
    port: int
    """Port on which all applications now answer."""


app = ""
"""The Serve application that this process belongs to; set once at its start."""


def tell(event: Event) -> None:
    """Report an event to `podslice serve`, if that started this process."""
    path = os.environ.get(EVENTS)
    if path is None:
        return
    line = json.dumps(Event(process=os.getpid(), app=app) | event) + "\n"
    try:
        events = os.open(path, os.O_WRONLY | os.O_APPEND)
    except OSError:  # the command is gone, or on another host
        return
    with suppress(OSError):  # the disk is full: nothing is shown, and all goes on
        os.write(events, line.encode())
    os.close(events)


def reason(error: Exception) -> str:
    """Why something did not start, for the user. Errors meant for users are complete; others need their type's name. An
    error of Ray's that wraps what another process raised has a traceback for its text; what was raised is enough."""
    error = getattr(error, "cause", None) or error
    text = "\n".join(map(escaped, str(error).strip().split("\n")))
    told = isinstance(error, ValueError | MemoryError | TimeoutError) and text
    return text if told else f"{type(error).__name__}: {text}"


def bars(transient: bool = False) -> "Progress":
    """Bars on standard error, for work that is counted. `transient`: they go when it ends."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=Console(stderr=True), transient=transient)


@contextmanager
def bar(label: str, total: int) -> Iterator[Callable[[], None]]:
    """Show progress. Yields `advance()`, to be called `total` times."""
    if sys.stderr.isatty():
        with bars() as progress:
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
