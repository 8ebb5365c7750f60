"""What a person sees of a start: bars on a terminal, and elsewhere a line now and then."""

import sys
import time
from collections import defaultdict
from typing import TYPE_CHECKING, Protocol

from apps.serving.progress import PERIOD_S, Event

if TYPE_CHECKING:
    from rich.progress import TaskID


class Display(Protocol):
    """Shows events in the order in which they come."""

    def show(self, event: Event) -> None: ...

    def close(self) -> None:
        """What follows is not of the start."""


def display() -> Display:
    """For where standard error goes."""
    return Bars() if sys.stderr.isatty() else Lines()


class Tally:
    """Countable work of one name, which several processes may share: each replica reads its own weights."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[int, int]] = {}

    def add(self, event: Event) -> tuple[int, int]:
        """(done, total), of all processes that said so far."""
        self._parts[event["process"]] = event["done"], event["total"]
        done, total = zip(*self._parts.values())
        return sum(done), sum(total)


class Lines:
    """Each stage, each work when it is done, and where a long one is, every few seconds."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._said: dict[str, float] = defaultdict(time.monotonic)
        self._tallies: dict[str, Tally] = defaultdict(Tally)

    def show(self, event: Event) -> None:
        if "stage" in event:
            self._say(_named(event, event["stage"]))
        elif "waiting" in event:
            self._say(f"waiting for {event['waiting']}")
        elif "part" in event:
            name = _named(event, event["part"])
            done, total = self._tallies[name].add(event)
            if time.monotonic() - self._said[name] > PERIOD_S or done == total:
                self._said[name] = time.monotonic()
                self._say(f"{name}: {done} of {total}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bars:
    """A bar for each work that can be counted, under one that only moves for all that cannot."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
        self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
        self._stage = self._progress.add_task("starting", total=None)
        self._tasks: dict[str, tuple[Tally, TaskID]] = {}
        self._progress.start()

    def show(self, event: Event) -> None:
        if "stage" in event:
            self._progress.update(self._stage, description=_named(event, event["stage"]))
        elif "waiting" in event:
            self._progress.update(self._stage, description=f"waiting for {event['waiting']}")
        elif "part" in event:
            name = _named(event, event["part"])
            if name not in self._tasks:
                self._tasks[name] = Tally(), self._progress.add_task(name, total=None)
            tally, task = self._tasks[name]
            done, total = tally.add(event)
            self._progress.update(task, completed=done, total=total)

    def close(self) -> None:
        self._progress.stop()


def _named(event: Event, what: str) -> str:
    """With the application's name, where there are several: a single one is `default`."""
    app = event.get("app", "")
    return f"{app}: {what}" if app not in ("", "default") else what
