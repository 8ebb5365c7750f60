"""Where a parameter's rows come from: a list of row ranges of a checkpoint's tensors.

Said as data, so that two orders of the same rows can be held against each other: what one mesh wants, and what a
checkpoint that was prepared for another mesh has (see `positions`).
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple


class Rows(NamedTuple):
    """Rows `[start, stop)` of a tensor, whose whole shape is given."""

    tensor: str
    shape: tuple[int, ...]
    start: int
    stop: int


Source = tuple[Rows, ...]
"""All rows of a parameter, in their order."""


def clipped(source: Source, first: int, last: int) -> Iterator[Rows]:
    """What a parameter's rows `[first, last)` come from."""
    at = 0
    for part in source:
        start, stop = part.start + max(first - at, 0), min(part.start + last - at, part.stop)
        at += part.stop - part.start
        if start < stop:
            yield part._replace(start=start, stop=stop)


def positions(stored: Source, wanted: Iterator[Rows]) -> list[tuple[int, int]]:
    """Where the wanted rows lie among the stored ones: ranges `[start, stop)`, neighbours joined.

    `stored` has every row of its tensors once.
    """
    parts: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    at = 0
    for part in stored:
        parts[part.tensor].append((part.start, part.stop, at))
        at += part.stop - part.start
    for ranges in parts.values():
        ranges.sort()
    found: list[tuple[int, int]] = []
    for tensor, _, start, stop in wanted:
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
