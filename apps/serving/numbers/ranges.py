"""Ranges of the numbers in a model's own files: one table a file, each row a field, its range and what it is.

Python reads NaN, Infinity and 1e999 from JSON as floats, and JSON has no bound of its own. What is out of range here
would otherwise fail far from its file, fill the memory, or be served as noise.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Range:
    """The numbers that a field can have, from `low` to `high`, both included."""

    low: float
    high: float
    note: str = ""
    """What the field is, where its name does not say it."""
    whole: bool = True
    many: bool = False
    """A list may stand for one number: each in it is checked."""
    named: bool = False
    """An object of such numbers by name, and nothing else."""

    def has(self, value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, int if self.whole else int | float):
            return False
        return self.low <= value <= self.high  # NaN is in no range


def real(low: float, high: float, note: str = "", many: bool = False) -> Range:
    """A range of numbers that need not be whole."""
    return Range(low, high, note, whole=False, many=many)


def check(where: str, given: Any, ranges: Mapping[str, Range], error: type[ValueError]) -> None:
    """Check the fields of a file, or of an object in it. A field that is missing or null is not checked.

    Args:
        where: the file, and the object's place in it, such as `config.json: rope_scaling`.

    Raises:
        error: a number is out of range, or is no number; says the file, the field, the value and the range.
    """
    if not isinstance(given, Mapping):
        raise error(f"{where} must be an object, not {shown(given)}")
    for field, allowed in ranges.items():
        value = given.get(field)
        if value is None:
            continue
        if allowed.named:
            if not isinstance(value, Mapping):
                raise error(f"{where}: {field} must be an object, not {shown(value)}")
            parts = [(f"{field}[{key!r:.80}]", each) for key, each in value.items()]
        elif allowed.many and isinstance(value, list):
            parts = [(f"{field}[{place}]", each) for place, each in enumerate(value)]
        else:
            parts = [(field, value)]
        for name, each in parts:
            if not allowed.has(each):
                what = f" ({allowed.note})" if allowed.note else ""
                kind, form = ("a whole number", ".0f") if allowed.whole else ("a number", "g")
                bounds = f"from {allowed.low:{form}} to {allowed.high:{form}}"
                raise error(f"{where}: {name}{what} must be {kind} {bounds}, not {shown(each)}")


def shown(value: Any) -> str:
    """A value in an error: cut, and a number of thousands of digits only as its length."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return f"a number of {int(math.log10(abs(value))) + 1} digits"
    text = repr(value) if isinstance(value, int | float | str | None) else f"{type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
