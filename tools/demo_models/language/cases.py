"""The questions of the evaluation, in phrasings that no training text has, and how answers are judged.

There are two sets. The held-out set gives the score. The development set shows what goes wrong; the training text
was extended accordingly.

An answer is right if it names the right fact and no other. The facts that it names are the
values of the relation asked about (and, where values are numbers, every number), matched as
whole words, the longest first, ignoring case, punctuation and the spelling of small numbers.
Values in the question may be repeated as often as they occur there, so `5 plus 0 is 0` is
wrong. Facts of which there is one (what the project is, a
greeting) must be answered word for word; so must JSON, one-word answers and chats.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

from tools.demo_models.language.chats import (
    FOLLOW_UPS,
    FOLLOW_UPS_DEVELOPMENT,
    MY_NAME,
    NAMES_DEVELOPMENT,
    NAMES_HELDOUT,
    WHO_AM_I,
    WHO_AM_I_DEVELOPMENT,
    Message,
    say,
)
from tools.demo_models.language.documents import RELATIONS, kept_out, styled
from tools.demo_models.language.documents import question as question_about
from tools.demo_models.language.facts.arithmetic import BEYOND
from tools.demo_models.language.facts.dates import DAYS, MONTHS
from tools.demo_models.language.facts.phrasing import expand, fill, normalise, sentence
from tools.demo_models.language.facts.relations import SMALL, Relation, Row
from tools.demo_models.language.heldout import FOLLOW_UPS as FOLLOW_UPS_HELDOUT
from tools.demo_models.language.heldout import HELDOUT
from tools.demo_models.language.heldout import WHO_AM_I as WHO_AM_I_HELDOUT

Prompt = str | Sequence[Message]
"""A str is a raw prompt, a list of messages a chat."""

PER_TEMPLATE = 3  # rows asked about for each held-out phrasing
SEED = 22


@dataclass(frozen=True)
class Case:
    """One question of the evaluation; `question` must not occur in the training text."""

    category: str
    question: str
    prompt: Prompt
    expected: str
    right: Callable[[str], bool] = field(compare=False)


def _canonical(text: str) -> list[str]:
    digits = {word: str(i) for i, word in enumerate(SMALL)}
    return [digits.get(word, word) for word in normalise(text).split()]


def _named(text: str, values: set[tuple[str, ...]]) -> Counter[tuple[str, ...]]:
    words, found, at = _canonical(text), Counter(), 0
    numbers = any(value[0].isdecimal() for value in values)
    by_length = sorted(values, key=len, reverse=True)
    while at < len(words):
        here = next((v for v in by_length if tuple(words[at : at + len(v)]) == v), None)
        if here is None and numbers and words[at].isdecimal():
            here = (words[at],)
        if here is not None:
            found[here] += 1
        at += len(here) if here else 1
    return found


def names_only(answer: str, question: str, value: str, relation: Relation) -> bool:
    """True if `answer` names `value` and no other value of `relation`; see the module."""
    values = {tuple(_canonical(one)) for one in relation.values}
    asked, named = _named(question, values), _named(answer, values)
    left = named - asked if named - asked else named
    return set(left) == {tuple(_canonical(value))}


def same_words(answer: str, expected: str) -> bool:
    """True if both have the same words and numbers, ignoring case and punctuation."""
    return normalise(answer) == normalise(expected)


def _typed(question: str, rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.7:
        return sentence(question) + "?"
    return sentence(question) if kind < 0.85 else question.lower()


def _case(relation: Relation, row: Row, question: str, rng: random.Random) -> Case:
    typed, expected = _typed(question, rng), relation.reply(row)
    prompt = typed if rng.random() < 0.5 else [say("user", typed)]

    def right(answer: str) -> bool:
        if len(relation.rows) == 1:
            return same_words(answer, expected)
        return names_only(answer, question, row["value"], relation)

    return Case(relation.category, question, prompt, expected, right)


@dataclass(frozen=True)
class Phrasings:
    """The phrasings of one question set: templates by relation, and those for chats."""

    templates: dict[str, tuple[str, ...]]
    who_am_i: tuple[str, ...]
    follow_ups: dict[int, tuple[str, ...]]
    names: tuple[str, ...]
    seed: int


# Errors on these are inspected, and the training text extended accordingly.
DEVELOPMENT = Phrasings(
    {relation.name: relation.development for relation in RELATIONS},
    WHO_AM_I_DEVELOPMENT, FOLLOW_UPS_DEVELOPMENT, tuple(NAMES_DEVELOPMENT), 20,
)  # fmt: skip
# The score is measured on these.
HELD_OUT = Phrasings(HELDOUT, WHO_AM_I_HELDOUT, FOLLOW_UPS_HELDOUT, tuple(NAMES_HELDOUT), 21)


def _facts(asked: Phrasings, rng: random.Random) -> Iterator[Case]:
    for relation in RELATIONS:
        for template in asked.templates[relation.name]:
            for row in rng.sample(relation.rows, k=min(PER_TEMPLATE, len(relation.rows))):
                phrasing = rng.choice(expand(template))
                yield _case(relation, row, fill(phrasing, row), rng)


def _styles(asked: Phrasings, rng: random.Random) -> Iterator[Case]:
    ways = {
        "json": (lambda one, wanted: _json(one) == _json(wanted), "Answer in JSON: {}"),
        "short": (same_words, "Answer in one word: {}"),
    }
    some = [r for r in RELATIONS if r.category in ("calendar", "units", "words", "capitals")]
    for style, (check, request) in ways.items():
        for relation in rng.sample(some, k=8):
            row = rng.choice(relation.rows)
            question = fill(rng.choice(asked.templates[relation.name]), row)
            expected = styled(relation, row, style)
            typed = request.format(sentence(question) + "?")
            prompt = typed if rng.random() < 0.5 else [say("user", typed)]
            right = _against(check, expected)
            yield Case(f"style: {style}", question, prompt, expected, right)


def _against(check: Callable[[str, str], bool], expected: str) -> Callable[[str], bool]:
    return lambda answer: check(answer.strip(), expected)


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _chats(asked: Phrasings, rng: random.Random) -> Iterator[Case]:
    for name in asked.names:
        for question in asked.who_am_i:
            relation = rng.choice([r for r in RELATIONS if r.category in ("units", "capitals")])
            row = rng.choice(relation.rows)
            between = question_about(relation, row, rng)
            prompt = [
                say("user", sentence(fill(rng.choice(MY_NAME), {"name": name})) + "."),
                say("assistant", f"Hello {name}! How can I help you?"),
                say("user", sentence(between) + "?"),
                say("assistant", relation.reply(row)),
                say("user", sentence(question) + "?"),
            ]
            expected = f"Your name is {name}."
            right = _against(same_words, expected)
            yield Case("chats: names", question, prompt, expected, right)
    for names in (DAYS, MONTHS):
        for step, word in ((1, "after"), (-1, "before")):
            for question in asked.follow_ups[step] * 2:
                at = rng.randrange(len(names))
                one, two, three = (names[(at + i * step) % len(names)] for i in range(3))
                prompt = [
                    say("user", f"Which one comes {word} {one}?"),
                    say("assistant", f"{two} comes {word} {one}."),
                    say("user", sentence(question) + "?"),
                ]
                expected = f"{three} comes {word} {two}."
                right = _against(same_words, expected)
                yield Case("chats: follow-ups", question, prompt, expected, right)


@cache
def cases(asked: str = "held-out") -> tuple[Case, ...]:
    """Every case of the `held-out` or `development` set, or of `beyond`: sums of numbers larger than any trained on."""
    if asked == "beyond":
        rng, relation = random.Random(SEED), next(one for one in RELATIONS if one.name == "sum")
        return tuple(_case(relation, row, fill("what is {x} + {y}", row), rng) for row in BEYOND)
    phrasings = {"held-out": HELD_OUT, "development": DEVELOPMENT}[asked]
    rng = random.Random(phrasings.seed)
    return (*_facts(phrasings, rng), *_styles(phrasings, rng), *_chats(phrasings, rng))


@cache
def heldout_questions() -> frozenset[str]:
    """All questions of both sets, normalised; none is in the training text."""
    both = (HELD_OUT, DEVELOPMENT)
    every = (
        fill(one, row)
        for asked in both
        for relation in RELATIONS
        for template in asked.templates[relation.name]
        for one in expand(template)
        for row in relation.rows
    )
    others = chain.from_iterable(chain(asked.who_am_i, *asked.follow_ups.values()) for asked in both)
    beyond = (case.question for case in cases("beyond"))
    return frozenset(map(normalise, chain(every, others, beyond)))


@cache
def trained_on() -> frozenset[str]:
    """Every phrasing of the training templates, normalised like `KEPT_OUT`, without its noise."""
    facts = (one for relation in RELATIONS for one in relation.phrasings() if not kept_out(one))
    others = chain.from_iterable(map(expand, chain(WHO_AM_I, *FOLLOW_UPS.values())))
    return frozenset(map(normalise, chain(facts, (one for one in others if not kept_out(one)))))
