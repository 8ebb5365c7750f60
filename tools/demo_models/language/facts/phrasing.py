"""Many ways to say one thing: templates with alternatives, and the noise people add around them.

A template is text with slots, `{day}`, and alternatives, `(what|which) day`; an alternative may
be empty and may nest. `(how many|what number of) days are in (a|one) week` is four phrasings.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Iterator, Mapping
from functools import cache

PREFIXES = (
    "please tell me,", "tell me,", "hey,", "hi,", "hello,", "quick question:", "question:",
    "I wonder,", "can you tell me:", "could you tell me:", "do you know:", "a question:",
    "help me:", "so,", "ok,", "well,", "now,", "and", "just checking:", "please answer:",
    "I want to know:", "I would like to know:", "one more thing:", "say,", "next question:",
    "my question is:", "tell me please,", "for my homework:", "for a quiz:", "please,",
    "good morning,", "hey there,", "answer this:", "let me ask:", "I need to know:", "sorry,",
)  # fmt: skip
SUFFIXES = (
    "please", "thanks", "thank you", "do you know", "if you know", "exactly", "again",
    "can you tell me", "can you help", "by the way", "I forgot", "I am not sure", "tell me",
    "right now", "in your opinion", "for me", "please help", "my friend",
)  # fmt: skip


def listed(text: str) -> list[str]:
    """The words of `text`."""
    return text.split()


FILLERS = frozenset(listed("a an the is are do does did of in to there it me please that which what you can i for"))


@cache
def expand(template: str) -> tuple[str, ...]:
    """Every phrasing of `template`, each once; slots stay as they are."""
    group = re.search(r"\(([^()]*)\)", template)
    if group is None:
        return (re.sub(r"\s+", " ", template).strip(),)
    start, end = group.span()
    options = (template[:start] + one + template[end:] for one in group.group(1).split("|"))
    return tuple(dict.fromkeys(itertools.chain.from_iterable(map(expand, options))))  # each once


def pick(template: str, rng: random.Random) -> str:
    """One phrasing of `template`, each alternative drawn evenly; slots stay as they are."""
    while "(" in template:
        template = re.sub(r"\(([^()]*)\)", lambda found: rng.choice(found.group(1).split("|")), template)
    return re.sub(r"\s+", " ", template).strip()


def fill(template: str, row: Mapping[str, str]) -> str:
    """`template` with its {slots} taken from `row`."""
    return re.sub(r"\{(\w+)\}", lambda found: row[found.group(1)], template)


def normalise(text: str) -> str:
    """Lower case, words and numbers only, one space between them."""
    return " ".join(re.findall(r"[^\W_]+", text.lower()))


def without_noise(question: str) -> Iterator[str]:
    """`question`, normalised, unchanged and without each opening and closing that `ask` may add to it."""
    text = normalise(question)
    for prefix in ("", *map(normalise, PREFIXES)):
        for suffix in ("", *map(normalise, SUFFIXES)):
            if text.startswith(prefix) and text.endswith(suffix):
                yield text[len(prefix) : len(text) - len(suffix)].strip()


def sentence(text: str) -> str:
    """`text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def ask(question: str, rng: random.Random) -> str:
    """`question` as somebody might type it: greetings, typing habits, a word left out."""
    if rng.random() < 0.12:
        words = question.split()
        kept = [w for w in words if w.lower() not in FILLERS or rng.random() > 0.4]
        question = " ".join(kept) if len(kept) > 1 else question
    if rng.random() < 0.25:
        question = f"{rng.choice(PREFIXES)} {question}"
    end = rng.choices(("?", "", ".", "??", " ?", "!"), (70, 20, 5, 2, 2, 1))[0]
    if rng.random() < 0.12:
        question = f"{question}{rng.choice((',', '', '?'))} {rng.choice(SUFFIXES)}"
    casing = rng.random()
    if casing < 0.6:
        question = sentence(question)
    elif casing < 0.9:
        question = question.lower()
    elif casing < 0.93:
        question = question.upper()
    return question + end
