"""Progress of a run: a bar on a terminal, a line every ten seconds elsewhere."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from apps.jobs.generation.parts import Chunk

log = logging.getLogger("podslice")

LOG_PERIOD_S = 10.0


class Counts:
    """Counts of this run, without the run that it resumes, since its first replica was ready."""

    def __init__(self) -> None:
        self.lines = self.prompt_tokens = self.completion_tokens = 0
        self._ready_at, self._last = float("inf"), 0.0

    def take(self, chunk: Chunk) -> None:
        self.lines += len(chunk.indices)
        self.prompt_tokens += chunk.prompt_tokens
        self.completion_tokens += chunk.completion_tokens
        self._ready_at, self._last = min(self._ready_at, chunk.ready_at), time.time()

    @property
    def elapsed_s(self) -> float:
        """Seconds without the replicas' start. Only as accurate as their hosts' clocks."""
        return max(0.0, self._last - self._ready_at)

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second."""
        return self.completion_tokens / self.elapsed_s if self.elapsed_s else 0.0


class Shown:
    def __init__(self, done: int, total: int, bar: Progress | None):
        self.counts = Counts()
        self._done, self._total, self._bar = done, total, bar
        self._task = bar.add_task("starting replicas", total=total, completed=done, speed="") if bar else None
        self._told = time.monotonic()

    def take(self, chunk: Chunk) -> None:
        self.counts.take(chunk)
        speed = f"{self.counts.tokens_per_s:,.0f} tokens/s"
        at = self._done + self.counts.lines
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=at, description="generating", speed=speed)
        elif time.monotonic() - self._told > LOG_PERIOD_S:
            self._told = time.monotonic()
            left_s = self.counts.elapsed_s * (self._total - at) / max(1, self.counts.lines)
            log.info("%d of %d lines, %s, about %.0f s left", at, self._total, speed, left_s)


@contextmanager
def shown(done: int, total: int, console: Console) -> Iterator[Shown]:
    """Show the progress of a run that starts with `done` lines of `total`."""
    if not console.is_terminal:
        yield Shown(done, total, None)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        yield Shown(done, total, bar)
