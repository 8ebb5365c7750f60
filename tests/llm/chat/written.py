"""Answers as each model family writes them, for the tests that parse them."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from apps.llm.chat.call_format import CallFormat
from apps.llm.chat.events import ArgumentsPiece, CallEnd, CallStart, ChatEvent, ReasoningPiece, TextPiece
from apps.llm.chat.formats.atem import Atem
from apps.llm.chat.formats.deepseek import CALL, CALL_END, CLOSES, OPENS, SEPARATOR, DeepSeek
from apps.llm.chat.formats.gemma import FUNCTION_GEMMA, GEMMA4, Gemma, GemmaMarks
from apps.llm.chat.formats.harmony import Harmony
from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.formats.llama import Llama
from apps.llm.chat.formats.mistral import Mistral
from apps.llm.chat.formats.plain import Plain
from apps.llm.chat.formats.pythonic import Pythonic
from apps.llm.chat.formats.qwen_coder import QwenCoder
from apps.llm.chat.formats.tagged_arguments import as_json
from apps.llm.chat.reader import AnswerReader, ReasoningMarks

Call = tuple[str, dict[str, Any]]
"""A call: the tool's name and arguments."""


def gemma_value(value: Any, quote: str) -> str:
    if isinstance(value, str):
        return quote + value + quote
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{gemma_value(one, quote)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(gemma_value(one, quote) for one in value) + "]"
    return json.dumps(value)


def gemma(marks: GemmaMarks) -> Callable[[Sequence[Call]], str]:
    return lambda calls: "".join(
        f"{marks.opens}call:{name}{gemma_value(arguments, marks.quote)}{marks.closes}" for name, arguments in calls
    )


def as_object(call: Call, key: str) -> str:
    return json.dumps({"name": call[0], key: call[1]}, ensure_ascii=False)


def python_call(call: Call) -> str:
    return f"{call[0]}({', '.join(f'{key}={value!r}' for key, value in call[1].items())})"


def atem_call(call: Call) -> str:
    parameters = "".join(
        f'<atem:parameter name="{key}">{tagged(value)}</atem:parameter>\n' for key, value in call[1].items()
    )
    return f'<atem:invoke name="{call[0]}">\n{parameters}</atem:invoke>'


def tagged(value: Any) -> str:
    """A value between tags. Without a schema, a text that could be read as JSON is written as JSON."""
    plain = isinstance(value, str) and json.loads(as_json(value)) == value and "</" not in value
    return value if plain else json.dumps(value, ensure_ascii=False).replace("</", "\\u003c/")


def atem(calls: Sequence[Call]) -> str:
    """Each call in a message of its own."""
    return "<|eom|><|start|>assistant".join(
        f" to={call[0]}<|message|><atem:function_calls>\n{atem_call(call)}\n</atem:function_calls>" for call in calls
    )


def coder_call(call: Call) -> str:
    parameters = "".join(f"<parameter={key}>\n{tagged(value)}\n</parameter>\n" for key, value in call[1].items())
    return f"<tool_call>\n<function={call[0]}>\n{parameters}</function>\n</tool_call>"


def to_recipients(thought: str, text: str, calls: str) -> str:
    """An answer of Muse Glimmer, after the `<|start|>assistant` in its prompt."""
    parts = [f" to={name}<|message|>{part}" for name, part in (("self", thought), ("user", text))]
    return "<|eom|><|start|>assistant".join([*parts, calls]) + "<|eot|>"


THINK = ReasoningMarks("<think>", "</think>")


def thinking(thought: str, text: str, calls: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n{text}\n{calls}"


def in_channels(thought: str, text: str, calls: str) -> str:
    """An answer of gpt-oss, after the `<|start|>assistant` in its prompt."""
    kinds = {"analysis": thought, "commentary": text}
    parts = [f"<|channel|>{channel}<|message|>{part}<|end|>" for channel, part in kinds.items()]
    return "<|start|>assistant".join([*parts, calls])


@dataclass(frozen=True)
class Family:
    """A call format, and how a model writes it."""

    calls: CallFormat
    write: Callable[[Sequence[Call]], str]
    after_text: bool = True  # whether calls may follow text
    reasoning: ReasoningMarks | None = THINK
    whole: Callable[[str, str, str], str] = thinking  # an answer with reasoning, text and calls


FAMILIES: dict[str, Family] = {
    "hermes": Family(
        Hermes(),
        lambda calls: "\n".join(f"<tool_call>\n{as_object(call, 'arguments')}\n</tool_call>" for call in calls),
    ),
    "hermes, arguments first": Family(
        Hermes(),
        lambda calls: "".join(
            "<tool_call>" + json.dumps({"arguments": arguments, "name": name}) + "</tool_call>"
            for name, arguments in calls
        ),
    ),
    "llama": Family(Llama(), lambda calls: "; ".join(as_object(call, "parameters") for call in calls), False),
    "llama after its tag": Family(
        Llama(), lambda calls: "<|python_tag|>" + "\n".join(as_object(call, "parameters") for call in calls)
    ),
    "pythonic": Family(Pythonic(), lambda calls: "[" + ", ".join(map(python_call, calls)) + "]", False),
    "pythonic, as one mapping": Family(
        Pythonic(), lambda calls: "[" + ",".join(f"{name}(**{json.dumps(a)})" for name, a in calls) + "]", False
    ),
    "mistral": Family(
        Mistral(), lambda calls: "[TOOL_CALLS] [" + ", ".join(as_object(call, "arguments") for call in calls) + "]"
    ),
    "mistral, named": Family(
        Mistral(named=True), lambda calls: "".join(f"[TOOL_CALLS]{name}[ARGS]{json.dumps(a)}" for name, a in calls)
    ),
    "mistral, with ids": Family(
        Mistral(named=True),
        lambda calls: "".join(f"[TOOL_CALLS]{name}[CALL_ID]a1[ARGS] {json.dumps(a)}" for name, a in calls),
    ),
    "gemma": Family(Gemma(), gemma(FUNCTION_GEMMA)),
    "gemma 4": Family(Gemma(GEMMA4), gemma(GEMMA4)),
    "gemma, JSON inside": Family(
        Gemma(),
        lambda calls: "".join(f"<start_function_call>call:{n}{json.dumps(a)}<end_function_call>" for n, a in calls),
    ),
    "deepseek": Family(
        DeepSeek(),
        lambda calls: OPENS + "".join(f"{CALL}{n}{SEPARATOR}{json.dumps(a)}{CALL_END}" for n, a in calls) + CLOSES,
    ),
    "deepseek, in code blocks": Family(
        DeepSeek(fenced=True),
        lambda calls: (
            OPENS
            + "\n".join(f"{CALL}function{SEPARATOR}{n}\n```json\n{json.dumps(a)}\n```{CALL_END}" for n, a in calls)
            + CLOSES
        ),
    ),
    "harmony": Family(
        Harmony(),
        lambda calls: "<|start|>assistant".join(
            f"<|channel|>commentary to=functions.{n} <|constrain|>json<|message|>{json.dumps(a)}<|call|>"
            for n, a in calls
        ),
        reasoning=None,
        whole=in_channels,
    ),
    "harmony, the tool before the channel": Family(
        Harmony(),
        lambda calls: "<|start|>assistant".join(
            f" to=functions.{n}<|channel|>commentary json<|message|>{json.dumps(a)}<|end|>" for n, a in calls
        ),
        reasoning=None,
        whole=in_channels,
    ),
    "atem": Family(Atem(), atem, reasoning=None, whole=to_recipients),
    "atem, one block, names doubled": Family(
        Atem(),
        lambda calls: (
            " to=tools<|message|>\n<atem:function_calls>"
            + "".join(atem_call((f"{name}.{name}" if "." not in name else name, a)) for name, a in calls)
            + "</atem:function_calls>"
        ),
        reasoning=None,
        whole=to_recipients,
    ),
    "qwen coder": Family(QwenCoder(), lambda calls: "\n".join(map(coder_call, calls))),
    "json": Family(
        Plain(), lambda calls: "[\n" + ",\n".join(as_object(call, "arguments") for call in calls) + "]", False
    ),
}


def pieces_of(reader: AnswerReader, pieces: Sequence[str]) -> list[ChatEvent]:
    """All events, with consecutive pieces of one kind joined."""
    events = [event for piece in pieces for event in reader.feed(piece)] + reader.finish()
    whole: list[ChatEvent] = []
    for event in events:
        if whole and type(whole[-1]) is type(event) and isinstance(event, TextPiece | ReasoningPiece | ArgumentsPiece):
            whole[-1] = replace(event, text=whole[-1].text + event.text)
        else:
            whole.append(event)
    return whole


@dataclass
class Understood:
    """The answer that a client would build from the events."""

    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] | None = None

    def loaded(self) -> list[Call]:
        return [(name, json.loads(arguments)) for name, arguments in self.calls or ()]


def understood(events: Sequence[ChatEvent], framed: bool = False) -> Understood:
    """Asserts that a dialect can write the events in this order. `framed`: reasoning may come between texts."""
    found = Understood(calls=[])
    within = False
    for event in events:
        match event:
            case TextPiece(text):
                assert not within and text
                found.text += text
            case ReasoningPiece(text):
                assert not within and text and (framed or not (found.text or found.calls))
                found.reasoning += text
            case CallStart(index, name):
                assert not within and index == len(found.calls)
                found.calls.append((name, ""))
                within = True
            case ArgumentsPiece(index, text):
                assert within and text and index == len(found.calls) - 1
                found.calls[-1] = (found.calls[-1][0], found.calls[-1][1] + text)
            case CallEnd(index):
                assert within and index == len(found.calls) - 1
                within = False
    assert not within
    return found
