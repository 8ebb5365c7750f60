"""The questions of the evaluation that offer tools, with cities and topics that no training text has. Nor has it the
questions about the weather; those that other tools answer are phrased as in training.

A call is right if it names the tool and has exactly the argument asked about; an answer, if it is word for word what
the result says. They have a score of their own (`card`).
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import cache

from tools.demo_models.language.calls import (
    CITIES_HELDOUT,
    README_TOOL,
    TOPICS_HELDOUT,
    WEATHER_HELDOUT,
    Tool,
    lookup_tool,
    offered,
    outcome,
    question,
    some_tools,
)
from tools.demo_models.language.cases import Case, cases, same_words
from tools.demo_models.language.chats import NAMES_HELDOUT, Message, say
from tools.demo_models.language.facts.phrasing import fill, sentence
from tools.demo_models.language.facts.project import UNKNOWN

SEED = 23


def _calls(text: str) -> list[object]:
    """Every call in an answer that is nothing but calls; empty if it is anything else."""
    try:
        return [json.loads(one.removesuffix("</tool_call>")) for one in text.replace("\n", "").split("<tool_call>")[1:]]
    except ValueError:
        return []


def _is_call(tool: Tool, x: str) -> Callable[[str], bool]:
    return lambda answer: answer.startswith("<tool_call>") and _calls(answer) == _calls(tool.call(x))


def _says(expected: str) -> Callable[[str], bool]:
    return lambda answer: same_words(answer, expected)


def _asked(category: str, tool: Tool, x: str, typed: str, tools: list[Tool], rng: random.Random) -> Iterator[Case]:
    """The call for a question, and the answer after its result."""
    prompt: list[Message] = [offered(tools), say("user", sentence(typed) + "?")]
    yield Case(f"{category}: call", typed, prompt, tool.call(x), _is_call(tool, x))
    result, told = outcome(tool, x, rng)
    prompt = [*prompt, say("assistant", tool.call(x)), say("tool", result)]
    yield Case(f"{category}: answer", typed, prompt, told, _says(told))


def _weather(rng: random.Random) -> Iterator[Case]:
    for city in CITIES_HELDOUT:
        for phrasing in rng.sample(WEATHER_HELDOUT, k=2):
            yield from _asked("weather", README_TOOL, city, fill(phrasing, {"x": city}), [README_TOOL], rng)


def _new_tools(rng: random.Random) -> Iterator[Case]:
    for topic, kind in TOPICS_HELDOUT:
        tool = lookup_tool(topic, kind, rng)
        tools = [tool, *some_tools(rng.choice((0, 1, 2)), rng)]
        rng.shuffle(tools)
        x = rng.choice((*CITIES_HELDOUT, *NAMES_HELDOUT))
        yield from _asked("new tool", tool, x, question(tool, x, rng), tools, rng)


def _no_call(rng: random.Random) -> Iterator[Case]:
    chats = [one for one in cases() if not isinstance(one.prompt, str) and len(one.prompt) == 1]
    for case in rng.sample(chats, k=16):
        prompt = [offered([README_TOOL]), *case.prompt]
        yield Case("no call needed", case.question, prompt, case.expected, case.right)
    for topic, kind in TOPICS_HELDOUT[:8]:
        typed = question(lookup_tool(topic, kind, rng), rng.choice(NAMES_HELDOUT), rng)
        prompt = [offered([README_TOOL]), say("user", sentence(typed) + "?")]
        yield Case("no such tool", typed, prompt, UNKNOWN, lambda answer: "<tool_call>" not in answer)


@cache
def tool_cases() -> tuple[Case, ...]:
    """Every case with tools."""
    rng = random.Random(SEED)
    return (*_weather(rng), *_new_tools(rng), *_no_call(rng))
