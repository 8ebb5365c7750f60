"""Answers saved to storage as they arrive, so that a killed process loses little work.

    part-000000.jsonl   the first line says which input lines are answered; the others are output lines

A part is written atomically (synced and renamed on a disk; a bucket's objects are atomic), so no part ends in half a
line. At the end, the parts are merged in the input's order. Appending to one output file would need no merge, but
one long answer would hold all later ones in memory, lost if the process dies; and buckets cannot append.
"""

import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np

from apps.serving.files import PARTIAL, is_local, writing

LOSS = 0.01
"""Share of the run time that a kill may lose; sets the time between two parts, within PERIOD_S."""
PERIOD_S = (1.0, 60.0)
"""Minimum and maximum time between two parts."""
PART_BYTES = 64 * 2**20
"""A part of this size is written at once."""


@dataclass(frozen=True)
class Answers:
    """Answered lines: their indices in the input, ascending, and their output lines, without line ends."""

    indices: list[int]
    answers: list[bytes]
    errors: int


class PartDamaged(ValueError):
    """A part cannot be read; the message names it and the fix."""


@dataclass(frozen=True)
class AnswersPart:
    """One part: the ranges [start, stop) of input lines in it, ascending, and how many of them are errors."""

    path: str
    runs: tuple[tuple[int, int], ...]
    errors: int

    @property
    def lines(self) -> int:
        return sum(stop - start for start, stop in self.runs)


class Parts:
    """The answers to an input file of `lines` lines, in a folder. Thread-safe within its one process.

    Args:
        period_s: minimum and maximum time between two parts.
        writer: part of the file names, so that a stalled process that resumes cannot overwrite its successor's parts.
    """

    def __init__(
        self,
        fs: fsspec.AbstractFileSystem,
        folder: str,
        lines: int,
        period_s: tuple[float, float] = PERIOD_S,
        writer: str = "",
    ):
        self._fs, self._folder, self._period_s, self._writer = fs, folder, period_s, writer
        self.done = np.zeros(lines, bool)
        """Which input lines are answered, saved or in memory: bool [lines]."""
        self.errors = 0
        self._parts: list[AnswersPart] = []
        self._next = 0
        self._new: list[Answers] = []
        self._new_bytes = 0
        self._began = self._written = time.monotonic()
        self._taking, self._saving = threading.Lock(), threading.Lock()

    @property
    def saved(self) -> int:
        """The number of saved answers."""
        return sum(part.lines for part in self._parts)

    @property
    def saved_errors(self) -> int:
        return sum(part.errors for part in self._parts)

    @property
    def due(self) -> bool:
        """Whether it is time to save."""
        now = time.monotonic()
        period = min(max(LOSS * (now - self._began), self._period_s[0]), self._period_s[1])
        return bool(self._new) and (now - self._written > period or self._new_bytes > PART_BYTES)

    def take(self, answers: Answers) -> bool:
        """Holds answers in memory until `save`. False if all of them were there already."""
        if self.done[answers.indices].all():
            return False
        with self._taking:
            self.done[answers.indices] = True
            self.errors += answers.errors
            self._new.append(answers)
            self._new_bytes += sum(map(len, answers.answers))
        return True

    def save(self) -> None:
        """Writes the answers in memory as a part. Raises OSError; the answers then stay in memory."""
        with self._saving:  # a cancelled task may have left its thread saving
            self._save()

    def _save(self) -> None:
        with self._taking:
            new, self._new, self._new_bytes = self._new, [], 0
        if not new:
            return
        answers = sorted(pair for each in new for pair in zip(each.indices, each.answers))
        runs = _runs([index for index, _ in answers])
        name = f"part-{self._next:06}{self._writer and f'-{self._writer}'}.jsonl"
        part = AnswersPart(f"{self._folder}/{name}", runs, sum(each.errors for each in new))
        try:
            with writing(self._fs, part.path) as file:
                file.write(json.dumps({"runs": runs, "errors": part.errors}).encode() + b"\n")
                for _, answer in answers:
                    file.write(answer + b"\n")
        except BaseException:
            with self._taking:
                self._new = new + self._new
                self._new_bytes += sum(len(answer) for _, answer in answers)
            raise
        self._parts.append(part)
        self._next += 1
        self._written = time.monotonic()

    def load(self) -> None:
        """Finds the parts saved earlier. Raises PartDamaged."""
        for path in self._found("part-*.jsonl"):
            try:
                with self._fs.open(path, "rb", **_small_reads(self._fs)) as file:
                    head = json.loads(file.readline())
                part = AnswersPart(path, tuple(map(tuple, head["runs"])), head["errors"])
            except (ValueError, KeyError) as error:
                raise _damaged(path) from error
            for start, stop in part.runs:
                self.done[start:stop] = True
            self.errors += part.errors
            self._parts.append(part)
            self._next = int(path.rsplit("/part-", 1)[1][:6]) + 1

    def merged(self) -> Iterator[tuple[int, bytes]]:
        """Yields (index, line) of all saved answers, in the input's order. Raises PartDamaged.

        A part is open only from its first line to its last.
        """
        owner = np.full(len(self.done), -1, np.int32)  # the part that each line is read from
        for number, part in reversed(list(enumerate(self._parts))):  # the first of two answers to a line wins
            for start, stop in part.runs:
                owner[start:stop] = number
        reading: dict[int, Iterator[tuple[int, bytes]]] = {}
        for index in np.flatnonzero(owner >= 0).tolist():
            number = int(owner[index])
            if number not in reading:
                reading[number] = self._read(self._parts[number])
            yield index, next(line for at, line in reading[number] if at == index)
            if index + 1 == self._parts[number].runs[-1][1]:
                del reading[number]

    def clear(self, first: Sequence[str] = ()) -> None:
        """Removes the files that match `first`, then the parts."""
        for pattern in (*first, "part-*", f"*{PARTIAL}"):
            for path in self._found(pattern):
                self._fs.rm_file(path)

    def _found(self, pattern: str) -> list[str]:
        self._fs.invalidate_cache()
        return sorted(self._fs.glob(f"{self._folder}/{pattern}"))

    def _read(self, part: AnswersPart) -> Iterator[tuple[int, bytes]]:
        with self._fs.open(part.path, "rb") as file:
            file.readline()
            for start, stop in part.runs:
                for index in range(start, stop):
                    line = file.readline()
                    if not line.endswith(b"\n"):
                        raise _damaged(part.path)
                    yield index, line


def _runs(indices: list[int]) -> tuple[tuple[int, int], ...]:
    """Turns ascending indices into ranges [start, stop)."""
    numbers = np.asarray(indices)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks))


def _small_reads(fs: fsspec.AbstractFileSystem) -> dict[str, Any]:
    """Options of `open` for reading a part's first line: a bucket would fetch 5 MB."""
    return {} if is_local(fs) else {"block_size": 2**16}


def _damaged(path: str) -> PartDamaged:
    return PartDamaged(f"{path} is damaged. Delete it and start again: its lines will be answered again")
