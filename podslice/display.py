"""What a person sees of a start: bars on a terminal, and elsewhere a line now and then."""

import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING

from apps.serving.progress import PERIOD_S, Event, bars

if TYPE_CHECKING:
    from rich.progress import TaskID


class Tally:
    """Countable work of one name, which several processes may share: each replica reads its own weights."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[int, int]] = {}

    def add(self, event: Event) -> tuple[int, int]:
        """(done, total), of all processes that said so far."""
        self._parts[event["process"]] = event["done"], event["total"]
        done, total = zip(*self._parts.values())
        return sum(done), sum(total)


class Display(ABC):
    """Shows events in the order in which they come."""

    def __init__(self) -> None:
        self._tallies: dict[str, Tally] = defaultdict(Tally)

    def show(self, event: Event) -> None:
        if "stage" in event:
            self.stage(_named(event, event["stage"]))
        elif "waiting" in event:
            self.stage(f"waiting for {event['waiting']}")
        elif "part" in event:
            name = _named(event, event["part"])
            self.counted(name, *self._tallies[name].add(event))

    @abstractmethod
    def stage(self, text: str) -> None:
        """What goes on now, and cannot be counted."""

    @abstractmethod
    def counted(self, name: str, done: int, total: int) -> None:
        """How far some work is."""

    @abstractmethod
    def close(self) -> None:
        """What follows is not of the start."""


class Lines(Display):
    """Each stage, each work when it is done, and where a long one is, every few seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._said: dict[str, float] = defaultdict(time.monotonic)

    def counted(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._said[name] > PERIOD_S or done == total:
            self._said[name] = time.monotonic()
            self.stage(f"{name}: {done} of {total}")

    def stage(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bars(Display):
    """A bar for each work that can be counted, under one that only moves for all that cannot."""

    def __init__(self) -> None:
        super().__init__()
        self._progress = bars(transient=True)
        self._stage = self._progress.add_task("starting", total=None)
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def stage(self, text: str) -> None:
        self._progress.update(self._stage, description=text)

    def counted(self, name: str, done: int, total: int) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(name, total=None)
        self._progress.update(self._tasks[name], completed=done, total=total)

    def close(self) -> None:
        self._progress.stop()


def display() -> Display:
    """For where standard error goes."""
    return Bars() if sys.stderr.isatty() else Lines()


def _named(event: Event, what: str) -> str:
    """With the application's name, where there are several: a single one is `default`."""
    app = event.get("app", "")
    return f"{app}: {what}" if app not in ("", "default") else what
