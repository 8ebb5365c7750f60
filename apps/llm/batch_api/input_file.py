"""An input file of requests: its number of lines, their positions, and which are still to be answered.

The file is never held in memory: `scan` reads it once and notes where spans of lines begin; a span's lines are read
again when their turn comes.
"""

import hashlib
import io
from dataclasses import dataclass

import fsspec
import numpy as np

SPAN_LINES = 1024
SPAN_BYTES = 16 * 2**20
"""Limits of a span; a single longer line is a span by itself."""
BUFFER_BYTES = 8 * 2**20


@dataclass(frozen=True)
class Span:
    """`lines` consecutive lines starting at line `first` (from 0): bytes [start, stop) of the file."""

    first: int
    lines: int
    start: int
    stop: int


@dataclass(frozen=True)
class InputFile:
    url: str
    lines: int
    sha256: str
    spans: tuple[Span, ...]

    def span(self, span: Span) -> list[bytes]:
        """The span's lines, without line ends.

        Raises:
            ValueError: the file changed since it was scanned.
        """
        with fsspec.open(self.url, "rb") as file:
            file.seek(span.start)
            lines = file.read(span.stop - span.start).removesuffix(b"\n").split(b"\n")
        if len(lines) != span.lines:
            raise ValueError(f"{self.url} changed while it was being read: line {span.first + 1} is not where it was")
        return lines


def scan(url: str) -> InputFile:
    """Reads the whole file once. Blank lines at its end do not count.

    Raises:
        OSError: the file cannot be read.
    """
    digest = hashlib.sha256()
    begins, lines, at, last_line, last_byte = list[tuple[int, int]](), 0, 0, 0, 0
    with fsspec.open(url, "rb") as raw, io.BufferedReader(raw, BUFFER_BYTES) as file:
        while line := file.readline(SPAN_BYTES):
            digest.update(line)
            size, blank = len(line), line.isspace()
            while not line.endswith(b"\n") and (line := file.readline(SPAN_BYTES)):  # never a whole long line in memory
                digest.update(line)
                size, blank = size + len(line), blank and line.isspace()
            full = not begins or lines - begins[-1][0] == SPAN_LINES or at + size - begins[-1][1] > SPAN_BYTES
            if full:
                begins.append((lines, at))
            lines, at = lines + 1, at + size
            if not blank:
                last_line, last_byte = lines, at
    begins = [(first, start) for first, start in begins if first < last_line]
    ends = [*begins[1:], (last_line, last_byte)]
    spans = [Span(first, end - first, start, stop) for (first, start), (end, stop) in zip(begins, ends)]
    return InputFile(url, last_line, digest.hexdigest(), tuple(spans))


@dataclass(frozen=True)
class Todo:
    """A span, and the indices in it of the lines still to be answered."""

    span: Span
    missing: np.ndarray

    def lines(self, source: InputFile) -> list[tuple[int, bytes]]:
        """(index in the file, text) of each missing line."""
        texts = source.span(self.span)
        return [(self.span.first + i, texts[i]) for i in self.missing.tolist()]


def missing(source: InputFile, done: np.ndarray) -> list[Todo]:
    """The spans with unanswered lines, in file order. `done`: bool [lines]."""
    left = (Todo(span, np.flatnonzero(~done[span.first : span.first + span.lines])) for span in source.spans)
    return [todo for todo in left if len(todo.missing)]
