"""Scores answers to questions phrased as no training text phrases them.

`python -m apps.llm.demo.evaluate` scores the shipped model. What answers is one function from
prompts to texts, so that any engine and any number format can be scored the same way.

An answer is right if it names the right fact and no other. The facts that it names are the
values of the relation asked about (and, where values are numbers, every number), matched as
whole words, the longest first, with case, punctuation and the spelling of small numbers set
aside. Values that the question itself names are allowed once for each time that they stand
there, so `5 plus 0 is 0` is wrong. Facts of which there is one (what the project is, a
greeting) must be answered word for word; so must JSON, one-word answers and chats.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain
from pathlib import Path

import typer

from apps.llm.demo.dates import DAYS, MONTHS
from apps.llm.demo.documents import (
    FOLLOW_UPS,
    FOLLOW_UPS_HELDOUT,
    MY_NAME,
    NAMES,
    NAMES_HELDOUT,
    RELATIONS,
    WHO_AM_I,
    WHO_AM_I_HELDOUT,
    Message,
    say,
    styled,
)
from apps.llm.demo.phrasing import PREFIXES, SUFFIXES, expand, fill, normalise, sentence
from apps.llm.demo.relations import SMALL, Relation, Row

Prompt = str | Sequence[Message]
Answer = Callable[[list[Prompt]], list[str]]
"""Answers to prompts: a str is a raw prompt, a list of messages a chat."""

PROMISED = {
    "How many days are in a week?": "There are seven days in a week.",
    "What are the top 5 programming languages": (
        "Five popular programming languages are Python, JavaScript, Java, C++ and Go."
    ),
}
"""The prompts of the tutorials, which users type first: their phrasing is trained on."""

PER_TEMPLATE = 3  # rows asked about for each held-out phrasing
SEED = 20


@dataclass(frozen=True)
class Case:
    """One question of the evaluation: `question` is what must not be in the training text."""

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
    """True if both are the same words and numbers; case and punctuation are set aside."""
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

    category = relation.category
    if relation.unseen(row):
        category += ", unseen pairs"
    return Case(category, question, prompt, expected, right)


def _facts(rng: random.Random) -> Iterator[Case]:
    for relation in RELATIONS:
        unseen = tuple(row for row in relation.rows if relation.unseen(row))
        for rows in (relation.seen_rows, unseen):
            for template in relation.heldout:
                for row in rng.sample(rows, k=min(PER_TEMPLATE, len(rows))):
                    phrasing = rng.choice(expand(template))
                    yield _case(relation, row, fill(phrasing, row), rng)


def _styles(rng: random.Random) -> Iterator[Case]:
    ways = {
        "json": (lambda one, wanted: _json(one) == _json(wanted), "Answer in JSON: {}"),
        "short": (same_words, "Answer in one word: {}"),
    }
    some = [r for r in RELATIONS if r.category in ("calendar", "units", "words", "capitals")]
    for style, (check, request) in ways.items():
        for relation in rng.sample(some, k=8):
            row = rng.choice(relation.seen_rows)
            question = fill(rng.choice(relation.heldout), row)
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


def _chats(rng: random.Random) -> Iterator[Case]:
    for name in NAMES_HELDOUT[:4] + NAMES[:4]:
        for question in WHO_AM_I_HELDOUT:
            relation = rng.choice([r for r in RELATIONS if r.category in ("units", "capitals")])
            row = rng.choice(relation.seen_rows)
            between = relation.question(row, rng)
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
            for question in FOLLOW_UPS_HELDOUT[step] * 2:
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
def cases() -> tuple[Case, ...]:
    """Every case of the evaluation, the same each time."""
    rng = random.Random(SEED)
    return (*_facts(rng), *_styles(rng), *_chats(rng))


@cache
def heldout_questions() -> frozenset[str]:
    """What the evaluation asks, normalised: no training text may contain one of these."""
    every = (
        question for relation in RELATIONS for row in relation.rows for question in relation.heldout_questions(row)
    )
    others = chain(WHO_AM_I_HELDOUT, *FOLLOW_UPS_HELDOUT.values())
    return frozenset(map(normalise, chain(every, others)))


@cache
def trained_on() -> frozenset[str]:
    """Every question that the training templates can make, normalised, without its noise."""
    every = (
        question for relation in RELATIONS for row in relation.seen_rows for question in relation.train_questions(row)
    )
    others = chain.from_iterable(map(expand, chain(WHO_AM_I, *FOLLOW_UPS.values())))
    return frozenset(map(normalise, chain(every, others)))


def without_noise(question: str) -> Iterator[str]:
    """`question`, normalised, as it is and without each opening and closing it may carry."""
    text = normalise(question)
    for prefix in ("", *map(normalise, PREFIXES)):
        for suffix in ("", *map(normalise, SUFFIXES)):
            if text.startswith(prefix) and text.endswith(suffix):
                yield text[len(prefix) : len(text) - len(suffix)].strip()


@dataclass(frozen=True)
class Report:
    """Every case with its answer, and the answers to the promised prompts, raw and as a chat."""

    answers: tuple[tuple[Case, str], ...]
    promised: tuple[tuple[str, str, str], ...]  # (prompt, raw answer, chat answer)

    @property
    def score(self) -> float:
        """The fraction of all cases answered rightly."""
        return sum(case.right(text) for case, text in self.answers) / len(self.answers)

    def summary(self) -> dict:
        """The report as plain data, for JSON: scores, each category's, and every wrong answer."""
        categories: dict[str, list[int]] = {}
        wrong = []
        for case, text in self.answers:
            counts = categories.setdefault(case.category, [0, 0])
            counts[0] += case.right(text)
            counts[1] += 1
            if not case.right(text):
                asked = case.prompt if isinstance(case.prompt, str) else case.prompt[-1]["content"]
                wrong.append({"asked": asked, "expected": case.expected, "answer": text})
        exact = sum(same_words(text, case.expected) for case, text in self.answers)
        return {
            "score": round(self.score, 4),
            "cases": len(self.answers),
            "word_for_word": round(exact / len(self.answers), 4),
            "categories": {
                name: {"right": right, "cases": total} for name, (right, total) in sorted(categories.items())
            },
            "promised": [{"prompt": prompt, "raw": raw, "chat": chat} for prompt, raw, chat in self.promised],
            "wrong": wrong,
        }

    def __str__(self) -> str:
        summary = self.summary()
        lines = [f"{name:28} {one['right']:4} of {one['cases']:4}" for name, one in summary["categories"].items()]
        lines += [f"{'all':28} {self.score:.1%} of {summary['cases']}"]
        lines += [f"wrong: {w['asked']!r} -> {w['answer']!r}" for w in summary["wrong"]]
        lines += [f"{prompt!r}: {raw!r} | {chat!r}" for prompt, raw, chat in self.promised]
        return "\n".join(lines)


def evaluate(answer: Answer) -> Report:
    """Asks `answer` every case in one call, and the promised prompts, and scores the texts."""
    prompts: list[Prompt] = [case.prompt for case in cases()]
    for prompt in PROMISED:
        prompts += [prompt, [say("user", prompt)]]
    texts = [re.sub(r"^\s+", "", text) for text in answer(prompts)]
    promised = texts[len(cases()) :]
    return Report(
        tuple(zip(cases(), texts, strict=False)),
        tuple(zip(PROMISED, promised[::2], promised[1::2], strict=True)),
    )


def main(folder: Path = Path(__file__).parent / "model") -> None:
    """Scores the model in FOLDER and prints each category, and every wrong answer."""
    # The evaluation itself needs no JAX; only this way of answering does.
    from tokenizers import Tokenizer

    from apps.llm.demo.generate import greedy
    from apps.llm.demo.model import load_model

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    print(evaluate(greedy(*load_model(folder), tokenizer)))


if __name__ == "__main__":
    typer.run(main)
