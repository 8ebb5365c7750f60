"""Facts are relations, such as `day after`, with rows, phrasings and answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from tools.demo_models.language.facts.phrasing import expand, fill, listed, normalise, pick, sentence

Row = dict[str, str]
FRAMES = (
    "(what is|what's|which is|tell me|do you know|I want to know|I would like to know|let me know"
    "|name|give me|say|find|show me|can you name|can you give me|could you tell me|what would be"
    "|I am looking for|I am asking for|I wonder what is|please write|what do you think is"
    "|just tell me|explain to me|help me with|look up|remind me of|any idea what is|) NOUN",
    "NOUN is (what|which|called what|what exactly|)",
    "(and|so|now) what is NOUN (then|)",
    "(I|we) (need|want|need to know|am looking for|forgot|have forgotten|can't remember|want to find|must find"
    "|asked for|have to write|would love to know) NOUN (, what is it|, help me|please|)",
    "(could|can|would|will) you (please|) (tell|show|give|name|find|remind|teach) me NOUN",
    "(do|can|could) you (know|remember|guess|see) NOUN",
    "(what|which) (would|should|will|could|might|must) NOUN be",
    "NOUN, (what is it|what is that|do you know it|please|can you help)",
    "(my|the|a) (teacher|friend|child|boss|book|quiz) (asks for|wants|needs|asks me) NOUN",
    "(figure out|work out|find out|write down|type|complete:) NOUN",
    "how about NOUN",
)

SMALL = listed(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
)


@dataclass(frozen=True)
class Relation:
    """A question that has one right answer for each row.

    A row holds the slots of the templates; its `value` is the fact asked for. `train` and
    `development` are templates (see `phrasing`): the model is trained on the first; the second, which
    no training text contains, show what it gets wrong. The phrasings that it is scored on are in
    `heldout`.
    """

    name: str
    category: str
    train: tuple[str, ...]
    development: tuple[str, ...]
    answer: str
    rows: tuple[Row, ...]
    weight: float = 1.0
    # The noun asked for: it is inserted into every one of FRAMES, for more ways to ask.
    noun: str = ""

    @cached_property
    def values(self) -> frozenset[str]:
        """The values of all rows; those of other rows are the wrong answers."""
        return frozenset(normalise(row["value"]) for row in self.rows)

    @cached_property
    def framed(self) -> tuple[str, ...]:
        """The templates of every frame around the noun; none where the relation has no noun."""
        noun = f"({self.noun})"
        return tuple(frame.replace("NOUN", noun) for frame in FRAMES if self.noun)

    def phrasing(self, rng: random.Random) -> str:
        """One training phrasing, drawn from `rng`, its slots unfilled."""
        if self.framed and rng.random() < 0.35:
            # The first frame has most of the phrasings.
            return pick(rng.choices(self.framed, (6, *[1] * (len(self.framed) - 1)))[0], rng)
        return pick(rng.choice(self.train), rng)

    def reply(self, row: Row) -> str:
        """The answer that the model learns, a sentence."""
        return sentence(fill(self.answer, row))

    def phrasings(self) -> Iterable[str]:
        """Every training phrasing, its slots unfilled."""
        return (one for template in (*self.train, *self.framed) for one in expand(template))


def table(slots: str, text: str) -> tuple[Row, ...]:
    """Rows from lines of `a, b, c`, one value for each of the names in `slots`."""
    names = slots.split()
    lines = (line.split(",") for line in text.strip().splitlines())
    return tuple(dict(zip(names, map(str.strip, cells), strict=True)) for cells in lines)


def pairs(slots: str, text: str) -> tuple[Row, ...]:
    """Rows from `a b; c d; ...`, for slots of one word each."""
    names = slots.split()
    return tuple(dict(zip(names, one.split(), strict=True)) for one in text.split(";"))


def a(word: str) -> str:
    """`word` with its indefinite article."""
    return ("an " if word[0].lower() in "aeiou" else "a ") + word


def each(rows: Iterable[Row], **slots: Callable[[Row], str]) -> tuple[Row, ...]:
    """`rows` with more slots, each computed from its row."""
    return tuple(row | {name: slot(row) for name, slot in slots.items()} for row in rows)
