"""Which programs CI compiles on which day: enough for a few minutes, and other ones each day."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest

from tools.plan_check.expectations import TIMED, Figures

TURN = 600.0
"""Seconds of CPU: five minutes of two cores, or six, as one program does not keep both busy all the time."""
Turn = tuple[str, slice]
"""A config's name, and which of its programs."""


def turn(day: int, expected: Mapping[str, Mapping[str, Figures]]) -> Turn:
    """Takes every config's first part, then the second of those that have one, and so on, and then begins again.

    Args:
        expected: the figures of each config's programs.
    """
    seconds = {name: [figures[TIMED] for figures in programs.values()] for name, programs in expected.items()}
    parts = [[(name, part) for part in _parts(each)] for name, each in seconds.items()]
    every = [turn for round in zip_longest(*parts) for turn in round if turn is not None]
    return every[day % len(every)]


def _parts(seconds: Sequence[float]) -> Iterator[slice]:
    """Neighbours that fit into a turn; a longer program is a part alone."""
    start, total = 0, 0.0
    for i, each in enumerate(seconds):
        if i > start and total + each > TURN:
            yield slice(start, i)
            start, total = i, 0.0
        total += each
    yield slice(start, len(seconds))
