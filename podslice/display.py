"""Shows the progress of a server's start: bars on a terminal, else a line now and then."""

import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from typing import TYPE_CHECKING

from apps.serving.progress import PERIOD_S, Event, bars

if TYPE_CHECKING:
    from rich.progress import TaskID


class Tally:
    """Progress of work that several processes may share: each replica reads its own weights."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[int, int]] = {}

    def add(self, event: Event) -> tuple[int, int]:
        """(done, total) over all processes that have reported."""
        self._parts[event["process"]] = event["done"], event["total"]
        done, total = zip(*self._parts.values())
        return sum(done), sum(total)


class Display(ABC):
    """Shows events in the order in which they arrive."""

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
        """Shows the current stage, which has no progress count."""

    @abstractmethod
    def counted(self, name: str, done: int, total: int) -> None:
        """Shows the progress of counted work."""

    @abstractmethod
    def close(self) -> None:
        """Ends the display, before other output."""


class Lines(Display):
    """Prints a line for each stage, for work when it is done, and for long work every few seconds."""

    def __init__(self) -> None:
        super().__init__()
        self._began = time.monotonic()
        self._printed: dict[str, float] = defaultdict(time.monotonic)

    def counted(self, name: str, done: int, total: int) -> None:
        if time.monotonic() - self._printed[name] > PERIOD_S or done == total:
            self._printed[name] = time.monotonic()
            self.stage(f"{name}: {done} of {total}")

    def stage(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        pass


class Bars(Display):
    """A bar for the current stage, and one for each kind of counted work."""

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
    """Bars if standard error is a terminal, else lines."""
    return Bars() if sys.stderr.isatty() else Lines()


def _named(event: Event, what: str) -> str:
    """Prefixes the application's name, unless it is the only one, named `default`."""
    app = event.get("app", "")
    return f"{app}: {what}" if app not in ("", "default") else what
