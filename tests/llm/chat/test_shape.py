"""Conversations as agents send them, in the chat templates of the families: nothing is refused, nothing is lost.

The oracle is each template's own rendering, by transformers, of what it gets.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.llm.chat.conversation import Conversation, PastCall
from apps.llm.chat.shape import Shape
from tests.llm.chat.rendering import WITHOUT_TOOLS, model, prompt
from tests.llm.chat.templates import RELEASED

DROPS_TEXT = ("Mistral Nemo", "Mistral Small", "gpt-oss")
"""Templates that leave out a text beside calls, and refuse it in a message of its own. So does mistral-common.
OpenAI's leaves it out once there is an answer."""


FOUND = {
    "gpt-oss": Shape(),
    "Llama 3": Shape(greets=False, parallel=False, text_beside="apart"),
    "Mistral Nemo": Shape(
        system="when asked", greets=False, after_result="answered", text_beside="left out", quoted=True
    ),
    "Mistral Small": Shape(greets=False, after_result="answered", text_beside="left out", quoted=True),
    "Mistral v7": Shape(repeats=False),
    "Mistral v11": Shape(repeats=False),
    "Mistral v13": Shape(repeats=False),
    "Gemma 2": Shape(tools="nowhere", system="user's", greets=False, repeats=False, calls=False),
    "Gemma 3": Shape(tools="nowhere", greets=False, repeats=False, calls=False),
    "Gemma 4": Shape(inside=True),
    "Gemma 4, tools' messages": Shape(),
    "Phi-4-mini": Shape(tools="system", calls=False),
    "Phi-4-mini, functools": Shape(as_text=True, text_beside="apart"),
    "DeepSeek V3.1": Shape(as_text=True),
    "DeepSeek R1": Shape(as_text=True, text_beside="apart"),
    "Qwen3": Shape(),
    "Qwen3.5": Shape(),
    "Muse Glimmer": Shape(),
}


@pytest.mark.parametrize("name", RELEASED)
def test_the_shape_is_found_by_rendering(name: str) -> None:
    assert model(name).shape == FOUND[name]
    assert model(name).takes_tools == (name not in WITHOUT_TOOLS)


# -- any conversation -------------------------------------------------------------------------------------------------

SAYS = st.sampled_from(["user", "user", "system", "assistant"])
TURNS = st.lists(SAYS | st.tuples(st.integers(1, 3), st.booleans(), st.permutations(range(3)), st.lists(SAYS)))


class Talk:
    """A conversation, with words that are nowhere else."""

    def __init__(self) -> None:
        self.conversation = Conversation()
        self.said: list[tuple[str, str]] = []  # role and words, in the order that a template should have
        self._words = (f"word{i}w" for i in range(1000))

    def says(self, role: str) -> None:
        words = next(self._words)
        self.said.append((role, words))
        if role == "assistant":
            self.conversation.answer(words)
        else:
            self.conversation.say(role, words)

    def calls(self, count: int, with_text: bool, order: Sequence[int], between: Sequence[str]) -> None:
        """Calls, other messages, and then the calls' results in any order."""
        for i in reversed(range(len(self.said))):  # the texts of one turn are one with its calls
            if self.said[i][0] != "assistant":
                break
            self.said[i] = ("beside", self.said[i][1])
        text = next(self._words) if with_text else ""
        self.said += [("beside", text)] if with_text else []
        values = [next(self._words) for _ in range(count)]
        self.said += [("call", value) for value in values]
        place, turn = len(self.said), values[0]
        past = [PastCall(f"{turn}-{i}", "ask", json.dumps({"at": value})) for i, value in enumerate(values)]
        self.conversation.answer(text, None, past)
        for role in between:
            self.says(role)
        for i in (i for i in order if i < count):
            words = next(self._words)
            self.conversation.result(f"{turn}-{i}", words, "f")
            self.said.insert(place, ("result", words))
            place += 1


def talks(turns: Sequence[Any], tools: bool, first: str = "user") -> Talk:
    talk = Talk()
    talk.says(first)
    for turn in turns:
        if isinstance(turn, str):
            talk.says(turn)
        elif tools:
            talk.calls(*turn)
    talk.says("user")
    return talk


def lost(name: str, talk: Talk) -> Iterator[str]:
    """Words that a prompt does not have exactly once, or not in their order.

    Templates may move system messages, texts beside calls, and results where calls come one by one.
    """
    shown = prompt(name, talk.conversation)
    kept = [(role, words) for role, words in talk.said if not (role == "beside" and name in DROPS_TEXT)]
    yield from (words for _, words in kept if shown.count(words) != 1)
    at_once = model(name).shape.parallel and not model(name).framed
    moved = ("system", "beside") if at_once else ("system", "beside", "result")
    ordered = [words for role, words in kept if role not in moved]
    places = [shown.find(words) for words in ordered if words in shown]
    yield from ["order"] * (places != sorted(places))


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(turns=TURNS, name=st.sampled_from(list(RELEASED)), first=st.sampled_from(["user", "system", "assistant"]))
def test_any_conversation_is_shown(turns: list[Any], name: str, first: str) -> None:
    assert not list(lost(name, talks(turns, name not in WITHOUT_TOOLS, first)))


def test_messages_of_one_role_are_joined_as_one_after_the_other() -> None:
    """The oracle joins two at a time, which for many long messages takes the square of the time."""
    import random

    from apps.llm.chat.shape import _merged

    def oracle(messages: list[dict[str, Any]], only_calls: bool) -> list[dict[str, Any]]:
        merged: list[dict[str, Any]] = []
        for message in messages:
            before = merged[-1] if merged else {"role": None}
            same = message["role"] == before["role"] in ("user", "assistant") and "tool_calls" not in before
            if same and ("tool_calls" in message or not only_calls):
                texts = {
                    name: "\n\n".join(filter(None, (before.get(name), message.get(name))))
                    for name in ("content", "reasoning_content")
                    if name in before or name in message
                }
                merged[-1] = {**before, **message, **texts}
            else:
                merged.append(message)
        return merged

    draw = random.Random(3)
    for _ in range(500):
        chat: list[dict[str, Any]] = []
        for number in range(draw.randrange(8)):
            message = {
                "role": draw.choice(("system", "user", "assistant", "tool")),
                "content": draw.choice(("", f"{number}")),
            }
            if message["role"] == "assistant":
                message |= draw.choice(({}, {"reasoning_content": "why"}, {"tool_calls": [number]}))
            chat.append(message)
        for only_calls in (False, True):
            assert _merged(chat, only_calls) == oracle(chat, only_calls)
