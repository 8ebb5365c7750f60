"""Where a parameter's rows come from: a list of row ranges of a checkpoint's tensors.

This is data, so that two orders of the same rows can be compared: the one that a mesh needs, and the one that a
checkpoint prepared for another mesh has (see `positions`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Rows(NamedTuple):
    """Rows `[start, stop)` of a tensor, or some of their columns; `shape` is the whole tensor's."""

    tensor: str
    shape: tuple[int, ...]
    start: int
    stop: int
    columns: tuple[int, int] | None = None  # None: all


Source = tuple[Rows, ...]
"""All rows of a parameter, in order."""


def clipped(source: Source, first: int, last: int) -> Iterator[Rows]:
    """The source of a parameter's rows `[first, last)`."""
    at = 0
    for part in source:
        start, stop = part.start + max(first - at, 0), min(part.start + last - at, part.stop)
        at += part.stop - part.start
        if start < stop:
            yield part._replace(start=start, stop=stop)


def joined(source: Iterable[Rows]) -> Iterator[Rows]:
    """All rows and columns of the source's tensors that it has rows of; those that overlap or touch are one range."""
    last: Rows | None = None
    for part in sorted(source, key=lambda part: part[:3]):
        if last and last.tensor == part.tensor and part.start <= last.stop:
            last = last._replace(stop=max(last.stop, part.stop))
            continue
        if last:
            yield last
        last = part._replace(columns=None)
    if last:
        yield last


def positions(stored: Source, wanted: Iterator[Rows]) -> list[tuple[int, int]]:
    """The positions of the wanted rows among the stored ones, as ranges `[start, stop)`; adjacent ranges are merged.

    `stored` has every row of its tensors exactly once.
    """
    parts: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    at = 0
    for part in stored:
        parts[part.tensor].append((part.start, part.stop, at))
        at += part.stop - part.start
    for ranges in parts.values():
        ranges.sort()
    found: list[tuple[int, int]] = []
    for tensor, _, start, stop, _ in wanted:
        ranges = parts[tensor]
        place = bisect_right(ranges, (start, float("inf"), 0)) - 1
        while start < stop:
            first, last, at = ranges[place]
            begin, end = at + start - first, at + min(stop, last) - first
            if found and found[-1][1] == begin:
                found[-1] = found[-1][0], end
            else:
                found.append((begin, end))
            start, place = min(stop, last), place + 1
    return found
