"""Answers saved to storage as they arrive, so that a killed process loses little work.

    part-000000.jsonl   the first line says which input lines are answered, and the checksum of the others, which are
                        output lines

A part is written atomically (synced and renamed on a disk; a bucket's objects are atomic), so no part ends in half a
line. At the end, the parts are merged in the input's order. Appending to one output file would need no merge, but
one long answer would hold all later ones in memory, lost if the process dies; and buckets cannot append.
"""

import io
import json
import re
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import fsspec
import numpy as np

from apps.llm.batch_api.files.storage import is_broken
from apps.serving.files import PARTIAL, writing

LOSS = 0.01
"""Share of the run time that a kill may lose; sets the time between two parts, within PERIOD_S."""
PERIOD_S = (1.0, 60.0)
"""Minimum and maximum time between two parts."""
PART_BYTES = 64 * 2**20
"""A part of this size is written at once."""
MAX_LINE_BYTES = 2**28
"""Longest line that is read: no answer is longer."""
MAX_LINES = 10**8
READ_BYTES = 2**20
BROKEN = (OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError)
"""What reading a damaged part may raise."""


@dataclass(frozen=True)
class Answers:
    """Answered lines: their indices in the input, ascending, and their output lines, without line ends."""

    indices: list[int]
    answers: list[bytes]
    errors: int


@dataclass(frozen=True)
class AnswersPart:
    """One part: the ranges [start, stop) of input lines in it, ascending, and how many of them are errors."""

    path: str
    runs: tuple[tuple[int, int], ...]
    errors: int
    checksum: int | None
    """CRC-32 of the output lines; None if an older version wrote the part."""

    @property
    def lines(self) -> int:
        return sum(stop - start for start, stop in self.runs)


class PartDamaged(ValueError):
    """A part cannot be read; the message names it and the fix."""

    def __init__(self, path: str, part: AnswersPart | None = None):
        super().__init__(f"{path} is damaged. Delete it and start again: its lines will be answered again")
        self.part = part
        """None if not even its first line could be read."""


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
        checksum = 0
        for _, answer in answers:
            checksum = zlib.crc32(b"\n", zlib.crc32(answer, checksum))
        part = AnswersPart(f"{self._folder}/{name}", runs, sum(each.errors for each in new), checksum)
        try:
            with writing(self._fs, part.path) as file:
                head = {"runs": runs, "errors": part.errors, "crc32": checksum}
                file.write(json.dumps(head).encode() + b"\n")
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

    def load(self, damaged: Callable[[PartDamaged], object] | None = None, grow: bool = False) -> None:
        """Finds the parts saved earlier, and reads each to see whether it is whole.

        Args:
            damaged: receives a damaged part, which is left out: its lines are then answered again. None: raise it.
            grow: the number of lines is not known any more: it is that of the last one in any part.

        Raises:
            PartDamaged
        """
        for path in self._found("part-*.jsonl"):
            number = re.match(r"part-([0-9]{6,18})", path.rpartition("/")[2])
            if number is None:  # not ours
                continue
            self._next = max(self._next, int(number[1]) + 1)
            try:
                part = self._loaded(path, MAX_LINES if grow else len(self.done))
            except BROKEN as error:
                if isinstance(error, OSError) and not is_broken(error):
                    raise  # the storage's error, not the part's
                found = error if isinstance(error, PartDamaged) else PartDamaged(path)
                if damaged is None:
                    raise found from error
                damaged(found)
                continue
            self._parts.append(part)
        if grow:
            self.done = np.zeros(max((part.runs[-1][1] for part in self._parts), default=0), bool)
        self._count()

    def _loaded(self, path: str, lines: int) -> AnswersPart:
        """Reads a part whole. Raises PartDamaged and what BROKEN lists."""
        if self._fs.info(path)["type"] != "file":
            raise PartDamaged(path)
        with self._opened(path) as file:
            head = json.loads(file.readline(MAX_LINE_BYTES))
            runs = tuple((int(start), int(stop)) for start, stop in head["runs"])
            part = AnswersPart(path, runs, int(head["errors"]), head.get("crc32"))
            bounds = [bound for run in runs for bound in run]
            if (
                not runs
                or bounds[0] < 0
                or bounds[-1] > lines
                or any(a >= b for a, b in runs)
                or bounds != sorted(bounds)
            ):
                raise PartDamaged(path)
            checksum, ends, last = 0, 0, b""
            while piece := file.read(READ_BYTES):
                checksum, ends, last = zlib.crc32(piece, checksum), ends + piece.count(b"\n"), piece[-1:]
        if ends != part.lines or last != b"\n" or part.checksum not in (None, checksum):
            raise PartDamaged(path, part)
        return part

    def drop(self, part: AnswersPart) -> None:
        """Forgets a part that turned out to be damaged."""
        self._parts.remove(part)
        self.done[:] = False
        self._count()

    def _count(self) -> None:
        """Marks the lines of all parts as answered."""
        for part in self._parts:
            for start, stop in part.runs:
                self.done[start:stop] = True
        self.errors = self.saved_errors

    def damaged_at(self, index: int) -> PartDamaged:
        """The error for a line of `merged` that is no answer."""
        part = next(part for part in self._parts if any(start <= index < stop for start, stop in part.runs))
        return PartDamaged(part.path, part)

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

    def _opened(self, path: str) -> io.BufferedReader:
        """A part, whose lines can be read up to a size: the file of a bucket itself cannot."""
        return io.BufferedReader(self._fs.open(path, "rb"), READ_BYTES)

    def _read(self, part: AnswersPart) -> Iterator[tuple[int, bytes]]:
        checksum = 0
        try:
            with self._opened(part.path) as file:
                file.readline(MAX_LINE_BYTES)
                for start, stop in part.runs:
                    for index in range(start, stop):
                        line = file.readline(MAX_LINE_BYTES)
                        checksum = zlib.crc32(line, checksum)
                        last = index + 1 == part.runs[-1][1]
                        if not line.endswith(b"\n") or (last and part.checksum not in (None, checksum)):
                            raise PartDamaged(part.path, part)
                        yield index, line
        except OSError as error:
            if not (is_broken(error) or isinstance(error, FileNotFoundError)):
                raise
            raise PartDamaged(part.path, part) from error


def _runs(indices: list[int]) -> tuple[tuple[int, int], ...]:
    """Turns ascending indices into ranges [start, stop)."""
    numbers = np.asarray(indices)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks))
