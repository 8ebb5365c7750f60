r"""AUTOMATIC1111's weights in prompts: `(red)` weighs 1.1, `(red:1.5)` what it says, `[red]` 1 / 1.1; brackets within
brackets multiply, `\(` is the letter, and `BREAK` begins a new chunk of the prompt.

Source: `parse_prompt_attention` in its modules/prompt_parser.py. Differences: there, a `BREAK` within brackets is a
word of weight -1.1, a number such as `1.2.3` is an error of Python's, and nothing bounds weights and depth.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from apps.serving.errors import shortened

ROUND, SQUARE = 1.1, 1 / 1.1
MAX_WEIGHT = 100.0
MAX_DEPTH = 64
"""Brackets that are open at a time: each that closes multiplies every part since it was opened."""

_TOKEN = re.compile(r"\\[()\[\]\\]|\\|:\s*(?P<weight>[+-]?[.\d]+)\s*\)|[()\[\]:]|[^\\()\[\]:]+")
_BREAK = re.compile(r"\s*\bBREAK\b\s*")


@dataclass(slots=True)
class WeightedPart:
    """Words of one weight."""

    text: str
    weight: float = 1.0
    begins_chunk: bool = False
    """Whether a BREAK stands in front of it."""


def weighted_parts(prompt: str) -> list[WeightedPart]:
    """The parts of a prompt, none of them if it is empty.

    Raises:
        ValueError: a weight is no number or too large, or brackets are too deep.
    """
    parts: list[WeightedPart] = []
    opened: dict[str, list[int]] = {"(": [], "[": []}  # the parts in front of brackets that are open

    def close(bracket: str, factor: float) -> None:
        for part in parts[opened[bracket].pop() :]:
            part.weight *= factor

    for found in _TOKEN.finditer(prompt):
        token, weight = found[0], found["weight"]
        if token[0] == "\\":
            parts.append(WeightedPart(token[1:]))
        elif token in opened:
            opened[token].append(len(parts))
            if sum(map(len, opened.values())) > MAX_DEPTH:
                raise ValueError(
                    f"more than {MAX_DEPTH} brackets are open at {shortened(prompt[found.start() :], 30)!r}"
                )
        elif weight is not None and opened["("]:
            close("(", _number(weight))
        elif token == ")" and opened["("]:
            close("(", ROUND)
        elif token == "]" and opened["["]:
            close("[", SQUARE)
        else:
            first, *others = _BREAK.split(token)
            parts += [WeightedPart(first), *(WeightedPart(text, begins_chunk=True) for text in others)]
    for bracket, factor in (("(", ROUND), ("[", SQUARE)):
        while opened[bracket]:
            close(bracket, factor)
    for part in parts:
        if not abs(part.weight) <= MAX_WEIGHT:
            shown = shortened(part.text.strip(), 30)
            raise ValueError(f"{shown!r} weighs {part.weight:g}; it can be {-MAX_WEIGHT:g} to {MAX_WEIGHT:g}")
    return list(_merged(parts))


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"the weight {shortened(text, 20)!r} is no number") from None


def _merged(parts: list[WeightedPart]) -> Iterator[WeightedPart]:
    """Neighbors of one weight are one text: they are tokenized together."""
    last: WeightedPart | None = None
    for part in parts:
        if last is not None and part.weight == last.weight and not part.begins_chunk:
            last.text += part.text
            continue
        if last is not None:
            yield last
        last = part
    if last is not None:
        yield last
