"""A grammar that holds an answer to its tools, in llguidance's dialect of Lark.

Reasoning and text stay free. What is held is what a mark begins, or, of calls without a mark, an answer that begins as
a call does. So a format's reader finds every call that its grammar lets through.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from apps.llm.api import RequestError
from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.reader import ReasoningMarks

Schema = Mapping[str, Any]
ANY = r"/(?s:.*)/"
GAP = r"/[ \n]{0,4}/"  # between reasoning and what must follow it
JSON_OPTIONS = {"whitespace_pattern": r"\n?[ ]{0,16}"}
"""White space between JSON's parts: a small model may otherwise write line breaks for ever."""


@dataclass(frozen=True)
class HeldCall:
    """A tool, and what its arguments are held to."""

    name: str
    schema: Schema


@dataclass(frozen=True)
class Held:
    """What an answer is held to.

    Args:
        calls: the tools that may be called.
        needed: the answer is a call; else it may be a text.
        one: no second call.
        content: the JSON schema of a text, if it is not free.
    """

    calls: Sequence[HeldCall] = ()
    needed: bool = False
    one: bool = False
    content: Schema | None = None


def json_rule(schema: Schema) -> str:
    """A JSON schema inside Lark. What the client says of llguidance's own options does not count."""
    return "%json " + json.dumps({**schema, "x-guidance": JSON_OPTIONS})


def loaded_schema(schema: str | Schema) -> Schema:
    """A JSON schema, given as JSON or as an object; an empty one means any JSON object.

    Raises:
        RequestError: it is not JSON.
    """
    if isinstance(schema, str):
        try:
            loaded: Schema = json.loads(schema)
        except ValueError as error:
            raise RequestError("response_format", f"the JSON schema is not valid JSON: {error}") from error
    else:
        loaded = schema
    return loaded or {"type": "object"}


def arguments_schema(parameters: Schema | None) -> Schema:
    """The schema of a tool's arguments, which are an object whatever else it says.

    Raises:
        ValueError: it does not allow an object.
    """
    parameters = {"properties": {}, "additionalProperties": False} if parameters is None else parameters
    kinds = parameters.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ValueError(f"a tool's arguments are an object, but the schema's type is {kinds!r}")
    return {**parameters, "type": "object"}


def lark(
    held: Held,
    format_: CallFormat | None,
    tokens: Mapping[str, int],
    reasoning: ReasoningMarks | None = None,
    opened: bool = False,
) -> str:
    """The grammar.

    Args:
        format_: how calls are written; None: there are none.
        tokens: the marks that are one token of the model's, with their ids.
        opened: the prompt has opened the reasoning.
    """
    rules = ["%llguidance {}", f"start: {_start(held, format_, tokens, reasoning, opened)}"]
    if reasoning is not None:
        rules.append(f"thought: {mark(reasoning.opens, tokens)} thought_rest")
        rules += _until("thought_rest", reasoning.closes, tokens)
    if held.content is not None:
        rules.append(f"content: {json_rule(held.content)}")
    else:
        barred = [m for m in (reasoning.opens if reasoning else "", *_call_marks(format_)) if m]
        text = "".join(rf" & ~/(?s:.*){_escaped(m)}(?s:.*)/" for m in barred)
        if format_ is not None and not format_.mark:
            text += rf" & ~/\s*[{re.escape(format_.leads)}](?s:.*)/"
        rules.append(f"TEXT: {ANY}{text}")
    if format_ is not None:
        rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(held.calls))))
        for i, call in enumerate(held.calls):
            before, after = format_.call(call.name, tokens)
            rules += [f"call_{i}: {before} arguments_{i} {after}", f"arguments_{i}: {json_rule(call.schema)}"]
        rules.append(f"calls: {format_.calls(tokens, held.one)}")
        rules += [f"marked: {mark(m, tokens)} calls" for m in _call_marks(format_)]
        if format_.mark:
            rules += _until("head", format_.mark, tokens, text="TEXT")
    return "\n".join(rules) + "\n"


def _start(
    held: Held, format_: CallFormat | None, tokens: Mapping[str, int], reasoning: ReasoningMarks | None, opened: bool
) -> str:
    free_text = held.content is None and not held.needed
    thought = "" if reasoning is None else "thought_rest" if opened else "thought?"
    if thought and not free_text:
        thought = f"(thought_rest {GAP})" if opened else f"(thought {GAP})?"
    return f"{thought} ({_answer(held, format_, free_text)})"


def _answer(held: Held, format_: CallFormat | None, free_text: bool) -> str:
    if format_ is None:
        return "content" if held.content is not None else "TEXT"
    several = f"({literal(format_.joint)} marked)*" if format_.joint is not None and not held.one else ""
    forced = f"marked {several}" if format_.mark else "calls | marked" if format_.tag else "calls"
    if held.needed:
        return forced
    if not free_text:
        return f"content | {forced}"
    if not format_.mark:
        return f"TEXT | {forced}"
    return "TEXT | head calls" if held.one else "(head calls)* TEXT"


def _call_marks(format_: CallFormat | None) -> list[str]:
    """What stands before calls; at most one."""
    return [] if format_ is None else [m for m in (format_.mark or format_.tag,) if m]


def _until(rule: str, m: str, tokens: Mapping[str, int], text: str = "ANYTHING") -> list[str]:
    """Rules for any text up to the first mark, and the mark."""
    if m in tokens:
        return [f"{rule}: {text} {mark(m, tokens)}", *([f"ANYTHING: {ANY}"] if text == "ANYTHING" else [])]
    return [f"{rule}[lazy]: /(?s:.*){_escaped(m)}/"]


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
