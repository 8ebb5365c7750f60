"""The training text: single questions, chats of many turns, styles and JSON answers.

A document is a raw prompt and its answer, `QUESTION newline ANSWER`, or a chat, and fits into one training sequence.
Everything is drawn from one random generator, so the seed determines the text.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain, count
from string import ascii_lowercase

from tools.demo_models.language import heldout
from tools.demo_models.language.calls import with_tools
from tools.demo_models.language.chats import (
    FOLLOW_UPS,
    FOLLOW_UPS_DEVELOPMENT,
    MY_NAME,
    REQUESTS,
    SAME_AGAIN,
    SYSTEMS,
    TOPICS,
    WHO_AM_I,
    WHO_AM_I_DEVELOPMENT,
    Document,
    Message,
    a_name,
    say,
)
from tools.demo_models.language.facts.arithmetic import ARITHMETIC
from tools.demo_models.language.facts.dates import CALENDAR, DAYS, MONTHS
from tools.demo_models.language.facts.phrasing import ask, expand, fill, normalise, pick, sentence, without_noise
from tools.demo_models.language.facts.project import RELATIONS as PROJECT
from tools.demo_models.language.facts.relations import Relation, Row
from tools.demo_models.language.facts.widened import MORE
from tools.demo_models.language.facts.widened_project import MORE as MORE_PROJECT
from tools.demo_models.language.facts.words import WORDS
from tools.demo_models.language.facts.world import WORLD

WARMUP = 60_000
"""Documents until the share of those that repeat words has fallen to what it stays at."""
_WIDER = MORE | MORE_PROJECT
RELATIONS: tuple[Relation, ...] = tuple(
    replace(one, train=one.train + _WIDER.get(one.name, ())) for one in CALENDAR + WORLD + WORDS + ARITHMETIC + PROJECT
)
KEPT_OUT = frozenset(
    chain.from_iterable(
        without_noise(one)
        for template in (
            *chain.from_iterable(relation.development for relation in RELATIONS),
            *chain.from_iterable(heldout.HELDOUT.values()),
            *WHO_AM_I_DEVELOPMENT, *heldout.WHO_AM_I,
            *chain(*FOLLOW_UPS_DEVELOPMENT.values(), *heldout.FOLLOW_UPS.values()),
        )
        for one in expand(template)
    )
)  # fmt: skip
"""Phrasings of both question sets, normalised, with and without noise."""


def kept_out(phrasing: str) -> bool:
    """True if the evaluation uses this phrasing, which must then stay out of the training text."""
    return normalise(phrasing) in KEPT_OUT


def drawn(templates: tuple[str, ...], rng: random.Random) -> str:
    """One training phrasing of one of `templates`."""
    while kept_out(one := pick(rng.choice(templates), rng)):
        pass
    return one


def question(relation: Relation, row: Row, rng: random.Random) -> str:
    """One training question about `row`."""
    while kept_out(one := relation.phrasing(rng)):
        pass
    return fill(one, row)


def styled(relation: Relation, row: Row, style: str) -> str:
    """The answer to `row` in a style: plain, short or json."""
    if style == "plain":
        return relation.reply(row)
    value = row["value"]
    if style == "short":
        return sentence(value) + "."
    return json.dumps({"answer": int(value) if value.isdecimal() else value})


def _draw(rng: random.Random) -> tuple[Relation, Row]:
    relation = rng.choices(RELATIONS, _WEIGHTS)[0]
    return relation, rng.choice(relation.rows)


# A compromise between even over relations (to learn phrasings) and even over rows (to learn facts).
_WEIGHTS = tuple(r.weight * (4 + len(r.rows) ** 0.5) for r in RELATIONS)
# Only facts with a short value can be answered with the value alone.
_STYLED = tuple(r for r in RELATIONS if r.category not in ("podslice", "manners", "programming"))
_STYLED_WEIGHTS = tuple(r.weight * (4 + len(r.rows) ** 0.5) for r in _STYLED)


def single(rng: random.Random) -> Document:
    """One question and its answer, as a raw prompt or as a chat."""
    style = rng.choices(("plain", "short", "json"), (84, 8, 8))[0]
    if style == "plain":
        relation, row = _draw(rng)
    else:
        relation = rng.choices(_STYLED, _STYLED_WEIGHTS)[0]
        row = rng.choice(relation.rows)
    asked = ask(question(relation, row, rng), rng)
    answer = styled(relation, row, style)
    raw = rng.random() < 0.5
    system = []
    if style != "plain" and (raw or rng.random() < 0.5):
        asked = f"{sentence(rng.choice(REQUESTS[style]))} {asked}"
    elif style != "plain" or (not raw and rng.random() < 0.15):
        system = [say("system", rng.choice(SYSTEMS[style]))]
    return Document((*system, say("user", asked), say("assistant", answer)), raw)


def _in_order(rng: random.Random) -> Iterator[Message]:
    names = rng.choice((DAYS, MONTHS, DAYS, [str(n) for n in range(1, 100)]))
    step = rng.choice((1, 1, -1))
    word = "after" if step == 1 else "before"
    kind = {7: "day", 12: "month"}.get(len(names), "number")
    at = rng.randrange(2, len(names) - 2)
    relation = next(r for r in RELATIONS if r.name == _IN_ORDER[kind, step])
    row = next(r for r in relation.rows if r.get("item", r.get("x")) == names[at])
    yield say("user", ask(question(relation, row, rng), rng))
    yield say("assistant", relation.reply(row))
    for _ in range(rng.randint(1, 4)):
        at += step
        if kind == "number" and not 1 <= at + step < len(names):
            return
        follow = drawn(FOLLOW_UPS[step], rng)
        yield say("user", ask(follow, rng))
        after = names[(at + step) % len(names)]
        yield say("assistant", f"{after} comes {word} {names[at % len(names)]}.")


_IN_ORDER = {
    ("number", 1): "next number", ("number", -1): "previous number",
    ("day", 1): "day after", ("day", -1): "day before",
    ("month", 1): "month after", ("month", -1): "month before",
}  # fmt: skip


def _same_again(rng: random.Random) -> Iterator[Message]:
    relation = rng.choice([r for r in RELATIONS if TOPICS.get(r.name)])
    rows = rng.sample(relation.rows, k=min(len(relation.rows), rng.randint(2, 4)))
    yield say("user", ask(question(relation, rows[0], rng), rng))
    yield say("assistant", relation.reply(rows[0]))
    for row in rows[1:]:
        topic = fill(pick(rng.choice(SAME_AGAIN), rng), {"topic": row[TOPICS[relation.name]]})
        yield say("user", ask(topic, rng))
        yield say("assistant", relation.reply(row))


def _questions(rng: random.Random) -> Iterator[Message]:
    for _ in range(rng.randint(1, 4)):
        relation, row = _draw(rng)
        yield say("user", ask(question(relation, row, rng), rng))
        yield say("assistant", relation.reply(row))


def _counting(rng: random.Random) -> Iterator[Message]:
    start = rng.choice((1, 1, 1, rng.randint(0, 40)))
    end = start + rng.randint(2, 12 if rng.random() < 0.8 else 60)
    ways = (
        "count from {start} to {end}", "can you count from {start} to {end}",
        "(list|write|say|give me) the numbers from {start} to {end}", "count {start} to {end}",
    )  # fmt: skip
    ways += ("count to {end}", "count up to {end}") if start == 1 else ()
    question = fill(pick(rng.choice(ways), rng), {"start": str(start), "end": str(end)})
    yield say("user", ask(question, rng))
    yield say("assistant", ", ".join(map(str, range(start, end + 1))) + ".")


def _lists(rng: random.Random) -> Iterator[Message]:
    names, what = rng.choice(((DAYS, "days of the week"), (MONTHS, "months of the year")))
    ways = (
        "(list|name|say|give me|tell me) (all|) the {what}", "what are the {what}",
        "(which|what) are (all|) the {what}", "what are the names of the {what}",
    )  # fmt: skip
    yield say("user", ask(fill(pick(rng.choice(ways), rng), {"what": what}), rng))
    yield say("assistant", f"The {what} are {', '.join(names[:-1])} and {names[-1]}.")


PIECES: tuple[tuple[Callable[[random.Random], Iterator[Message]], float], ...] = (
    (_questions, 5), (_in_order, 3), (_same_again, 3), (_counting, 1), (_lists, 0.5),
)  # fmt: skip


def _hello(name: str, rng: random.Random) -> Iterator[Message]:
    text = sentence(fill(rng.choice(MY_NAME), {"name": name})) + rng.choice((".", ".", "", "!"))
    yield say("user", text if rng.random() < 0.85 else text.replace(name, "@").lower().replace("@", name))
    yield say("assistant", f"Hello {name}! How can I help you?")


def _recall(name: str, rng: random.Random) -> Iterator[Message]:
    yield say("user", ask(drawn(WHO_AM_I, rng), rng))
    yield say("assistant", f"Your name is {name}.")


def introduction(rng: random.Random) -> Document:
    """A short chat in which the user gives a name and asks for it, with at most one question in between."""
    name = a_name(rng)
    messages = list(_hello(name, rng))
    for _ in range(rng.choice((0, 1, 1))):
        relation, row = _draw(rng)
        messages += [say("user", ask(question(relation, row, rng), rng)), say("assistant", relation.reply(row))]
    return Document((*messages, *_recall(name, rng)))


def follow_up(rng: random.Random) -> Document:
    """A short chat of follow-up questions along days, months or numbers."""
    return Document(tuple(_in_order(rng)))


def chat(rng: random.Random, pieces: int) -> Document:
    """A chat of several parts; often the user gives a name early and asks for it later."""
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages.append(say("system", rng.choice(SYSTEMS["plain"])))
    name = None
    for _ in range(pieces):
        if rng.random() < 0.35:
            if name is None or rng.random() < 0.1:
                name = a_name(rng)
                messages.extend(_hello(name, rng))
            else:
                messages.extend(_recall(name, rng))
        else:
            piece = rng.choices([one for one, _ in PIECES], [weight for _, weight in PIECES])[0]
            messages.extend(piece(rng))
    if name is not None and rng.random() < 0.6:
        messages.extend(_recall(name, rng))
    if not any(message["role"] == "assistant" for message in messages):
        return chat(rng, pieces)
    return Document(tuple(messages))


def alone(rng: random.Random) -> Document:
    """Counting or a list, as a raw prompt or as a chat."""
    piece = rng.choices((_counting, _lists), (2, 1))[0]
    return Document(tuple(piece(rng)), raw=rng.random() < 0.5)


_REPEAT = (
    "(say|repeat|write|say again) {x}", "(say|repeat|write): {x}", "(can|could) you (say|repeat|write) {x}",
    "repeat after me: {x}", "{x}: say it again", 'write "{x}"', "{x}, repeat that",
)  # fmt: skip


def repeat(rng: random.Random) -> Document:
    """A request to repeat words, most of which mean nothing: so the model learns to copy, and not to know by heart."""
    words = []
    for _ in range(rng.choice((1, 1, 2, 2, 3, 4))):
        word = a_name(rng) if rng.random() < 0.5 else "".join(rng.choices(ascii_lowercase, k=rng.randint(4, 9)))
        words.append(rng.choice((word, word, word.lower(), word.title(), str(rng.randint(0, 9999)))))
    x = " ".join(words)
    asked = sentence(fill(pick(rng.choice(_REPEAT), rng), {"x": "\0"})).replace("\0", x)
    if rng.random() < 0.4:
        key = rng.choice(("answer", "name", "city", a_name(rng).lower()))
        return Document((say("user", f"{asked} in JSON as {key}"), say("assistant", json.dumps({key: x}))))
    return Document((say("user", asked), say("assistant", x)), raw=rng.random() < 0.3)


def documents(seed: int, long: bool = False) -> Iterator[Document]:
    """An endless stream of documents; `long` ones are chats of hundreds of tokens.

    The first ones mostly repeat words: to copy is learnt late, or not at all, beside facts that are known by heart.
    """
    rng = random.Random(f"{seed}-{long}")
    for n in count():
        if long:
            yield chat(rng, rng.randint(4, 14))
            continue
        if rng.random() < max(0.04, 0.7 * (1 - n / WARMUP)):
            yield repeat(rng)
            continue
        kind = rng.random()
        if kind < 0.66:
            yield single(rng)
        elif kind < 0.68:
            yield alone(rng)
        elif kind < 0.75:
            yield introduction(rng)
        elif kind < 0.77:
            yield follow_up(rng)
        elif kind < 0.83:
            yield chat(rng, rng.choice((1, 1, 2)))
        else:
            relation, row = _draw(rng)
            yield with_tools(rng, ask(question(relation, row, rng), rng), relation.reply(row))


def questions_of(document: Document) -> Iterator[str]:
    """What the user asks in `document`."""
    return (one["content"] for one in document.messages if one["role"] == "user")
