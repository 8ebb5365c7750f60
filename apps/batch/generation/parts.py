"""Answers on disk, so that a killed run can be resumed.

Beside OUTPUT there is, while the run lasts, a folder OUTPUT.parts:

    run.json            what the run is of: input, model and defaults. A run of something else is refused
    part-000000.jsonl   answers, as they came: a first line says which, the others are lines of the output
    .lock               held by the run that writes

A part appears whole or not at all (on a disk it is synced, then renamed; in a bucket an object is whole by nature),
and so there is no half line to be found and cut. OUTPUT itself appears the same way, at the end, when the parts are
merged in the input's order. Then run.json goes, and the parts: a folder without run.json is rubbish of a finished run.
Appending to OUTPUT in place would need neither folder nor merge, but then one long answer would keep all later ones
in memory, to be lost with the process; and a bucket has no appending.

Twice the output's size is needed on the disk for the moment of merging.
"""

import contextlib
import heapq
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
import numpy as np

from apps.batch.generation.lines import Chunk
from apps.serving.files import PARTIAL, is_local, leased, locked, writing

LEASE_S = 120.0
"""A run in a bucket that says nothing for this long counts as dead."""
LOSS = 0.01
"""Share of the run's time that a kill may cost: a part is written when so much has passed since the last one."""
PERIOD_S = (1.0, 60.0)
"""At least, at most, between two parts."""
PART_BYTES = 64 * 2**20
"""A part that has grown so large is written at once."""


class OutputRefused(ValueError):
    """The output cannot be written or resumed; the message says what to do."""


@dataclass(frozen=True)
class AnswersPart:
    """One part: which lines it has, as ranges [start, stop), ascending; how many of them are errors."""

    path: str
    runs: tuple[tuple[int, int], ...]
    errors: int

    @property
    def lines(self) -> int:
        return sum(stop - start for start, stop in self.runs)


class Parts:
    """The answers of a run. `open` it within the folder's lock."""

    def __init__(self, fs: fsspec.AbstractFileSystem, output: str, lines: int):
        self._fs, self._output, self._folder = fs, output, folder_of(output)
        self.done = np.zeros(lines, bool)
        """Which lines of the input have their answer, here or in memory."""
        self.errors = 0
        self._parts: list[AnswersPart] = []
        self._next = 0
        self._new: list[Chunk] = []
        self._new_bytes = 0
        self._began = self._written = time.monotonic()

    @classmethod
    def open(
        cls, fs: fsspec.AbstractFileSystem, output: str, lines: int, run: dict[str, Any], overwrite: bool
    ) -> "Parts":
        """Begins, or goes on.

        Args:
            run: what the answers depend on; nested dicts of JSON values.
            overwrite: begin anew whatever is there.

        Raises:
            OutputRefused: there is an output already, or a run of something else.
        """
        parts = cls(fs, output, lines)
        fs.invalidate_cache()
        path = f"{parts._folder}/run.json"
        if fs.exists(path) and not overwrite:
            before = json.loads(fs.cat_file(path))
            if before != run:
                raise OutputRefused(
                    f"{parts._folder} has answers of another run, which differs in {_differences(before, run)}. "
                    "Run the same command as then to go on with it, choose another OUTPUT, or begin anew: --overwrite"
                )
            parts._load()
            return parts
        if fs.exists(output) and not overwrite:
            raise OutputRefused(f"{output} is there already. Choose another OUTPUT, or replace it: --overwrite")
        parts._clear()
        with writing(fs, path) as file:
            file.write(json.dumps(run, indent=2).encode())
        return parts

    def add(self, chunk: Chunk) -> bool:
        """Takes answers; writes a part when it is time to. False: they were there already."""
        if self.done[chunk.indices].all():
            return False
        self.done[chunk.indices] = True
        self.errors += chunk.errors
        self._new.append(chunk)
        self._new_bytes += sum(map(len, chunk.answers))
        now = time.monotonic()
        period = min(max(LOSS * (now - self._began), PERIOD_S[0]), PERIOD_S[1])
        if now - self._written > period or self._new_bytes > PART_BYTES:
            self.save()
        return True

    def save(self) -> None:
        """Writes what is in memory. Raises OSError when it cannot; then nothing that was written before is lost."""
        if not self._new:
            return
        answers = sorted(pair for chunk in self._new for pair in zip(chunk.indices, chunk.answers))
        runs = _runs([index for index, _ in answers])
        part = AnswersPart(f"{self._folder}/part-{self._next:06}.jsonl", runs, sum(chunk.errors for chunk in self._new))
        with writing(self._fs, part.path) as file:
            file.write(json.dumps({"runs": runs, "errors": part.errors}).encode() + b"\n")
            for _, answer in answers:
                file.write(answer + b"\n")
        self._parts.append(part)
        self._next += 1
        self._new, self._new_bytes, self._written = [], 0, time.monotonic()

    def finish(self) -> None:
        """Merges all parts into the output, which appears at once and whole, and removes them.

        Raises:
            OutputRefused: a part is damaged.
            OSError: it cannot be written; the parts stay.
        """
        self.save()
        with writing(self._fs, self._output) as file:
            for line in self._merged():
                file.write(line)
        self._clear()

    def _load(self) -> None:
        for path in sorted(self._fs.glob(f"{self._folder}/part-*.jsonl")):
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
            self._next = int(path.rsplit("-", 1)[1].split(".")[0]) + 1

    def _merged(self) -> Iterator[bytes]:
        """All lines in the input's order. A part is open only while its lines' turn is on."""
        ahead = sorted(self._parts, key=lambda part: part.runs[0], reverse=True)
        # (line's number, part's number to tell equal ones apart, the line, the part's further lines)
        heap: list[tuple[int, int, bytes, Iterator[tuple[int, bytes]]]] = []
        wanted = opened = 0
        while ahead or heap:
            while ahead and (not heap or ahead[-1].runs[0][0] <= heap[0][0]):
                further = self._read(ahead.pop())
                heapq.heappush(heap, (*_join(next(further), opened), further))
                opened += 1
            index, number, line, further = heap[0]
            if index == wanted:
                wanted += 1
                yield line
            elif index > wanted:
                break
            following = next(further, None)
            if following is None:
                heapq.heappop(heap)
            else:
                heapq.heapreplace(heap, (*_join(following, number), further))
        if wanted != len(self.done):
            raise OutputRefused(f"{self._folder} lacks line {wanted + 1}; run the same command again")

    def _read(self, part: AnswersPart) -> Iterator[tuple[int, bytes]]:
        with self._fs.open(part.path, "rb") as file:
            file.readline()
            for start, stop in part.runs:
                for index in range(start, stop):
                    line = file.readline()
                    if not line.endswith(b"\n"):
                        raise _damaged(part.path)
                    yield index, line

    def _clear(self) -> None:
        """run.json first: what is left of a folder without it is nobody's."""
        for pattern in ("run.json", "part-*", f"*{PARTIAL}"):
            for path in self._fs.glob(f"{self._folder}/{pattern}"):
                self._fs.rm_file(path)


def folder_of(output: str) -> str:
    return f"{output}.parts"


@contextlib.contextmanager
def held(fs: fsspec.AbstractFileSystem, folder: str, lease_s: float = LEASE_S) -> Iterator[None]:
    """One run at a time: holds a folder, which is made for it, and goes with it if nothing else is in it then.

    Raises:
        Busy: another run does. Of one in a bucket that is known only after waiting for as long as it may be silent.
    """
    try:
        with locked(folder) if is_local(fs) else leased(fs, folder, lease_s):
            yield
    finally:
        if is_local(fs):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _runs(indices: list[int]) -> tuple[tuple[int, int], ...]:
    """Ascending numbers as ranges [start, stop)."""
    numbers = np.asarray(indices)
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return tuple((int(run[0]), int(run[-1]) + 1) for run in np.split(numbers, breaks))


def _join(entry: tuple[int, bytes], number: int) -> tuple[int, int, bytes]:
    return entry[0], number, entry[1]


def _small_reads(fs: fsspec.AbstractFileSystem) -> dict[str, Any]:
    """For a part's first line: a bucket's file is fetched 5 MB at a time otherwise."""
    return {} if is_local(fs) else {"block_size": 2**16}


def _damaged(path: str) -> OutputRefused:
    return OutputRefused(f"{path} is damaged. Delete it and run the same command again: its lines are answered anew")


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Such as `input (lines, sha256), model (dtype)`."""
    found = []
    for part in sorted(before.keys() | now.keys()):
        old, new = before.get(part), now.get(part)
        if old != new and isinstance(old, dict) and isinstance(new, dict):
            fields = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
            found.append(f"{part} ({', '.join(fields)})")
        elif old != new:
            found.append(part)
    return ", ".join(found)
