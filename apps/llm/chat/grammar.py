"""Grammars that constrain an answer's tool calls, in llguidance's dialect of Lark.

Reasoning and text stay free. Constrained is what follows a mark, or, in formats without a mark, an answer that begins
like a call. So a format's reader finds every call that its grammar allows.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from apps.llm.api import RequestError
from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.reader import ReasoningMarks
from apps.llm.schemas.gbnf import is_gbnf, lark_of
from apps.llm.schemas.written import Schema, schema_text

ANY = r"/(?s:.*)/"
GAP = r"/[ \n]{0,4}/"  # between reasoning and a constrained answer


@dataclass(frozen=True)
class ConstrainedCall:
    """A tool, and the schema that its arguments must follow, which the client has given in `field`."""

    name: str
    schema: Schema
    field: str


@dataclass(frozen=True)
class Constraint:
    """Constraints on an answer.

    Args:
        calls: the tools that may be called.
        needed: whether the answer must be a call rather than text.
        one: whether at most one call is allowed.
        content: what a text answer must be: the right side of a rule in Lark; None for free text.
    """

    calls: Sequence[ConstrainedCall] = ()
    needed: bool = False
    one: bool = False
    content: str | None = None


def schema_rule(schema: Schema) -> str:
    """A text that follows a JSON schema, in Lark."""
    return f"%json {schema_text(schema)}"


def choice_rule(texts: Sequence[str]) -> str:
    """One of some texts, in Lark."""
    return " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)


def regex_rule(regex: str) -> str:
    """A text that a regular expression matches from its beginning to its end, in Lark."""
    written = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
    return "/" + re.sub(r"\\.|[/\n\r]", lambda found: written.get(found[0], found[0]), regex, flags=re.DOTALL) + "/"


def grammar_rule(grammar: str) -> str:
    """A text that follows a grammar, in Lark. Its first rule is `start`, or in GBNF `root`. Raises ValueError."""
    return f"%lark {{\n{lark_of(grammar) if is_gbnf(grammar) else grammar}\n}}"


def arguments_schema(parameters: Schema | None) -> Schema:
    """The schema of a tool's arguments, restricted to objects.

    Raises:
        ValueError: the schema does not allow an object.
    """
    parameters = {"properties": {}, "additionalProperties": False} if parameters is None else parameters
    kinds = parameters.get("type", "object")
    if kinds != "object" and not (isinstance(kinds, list) and "object" in kinds):
        raise ValueError(f"a tool's arguments must be an object, but the schema's type is {kinds!r}")
    return {**parameters, "type": "object"}


def lark(
    spec: Constraint,
    format_: CallFormat | None,
    tokens: Mapping[str, int],
    reasoning: ReasoningMarks | None = None,
    opened: bool = False,
) -> str:
    """The grammar.

    Args:
        format_: format of calls; None if there are none.
        tokens: ids of the marks that are a single token.
        opened: whether the prompt already has the opening mark of the reasoning.

    Raises:
        RequestError: a call's schema cannot be enforced in this format; names its field.
    """
    rules = ["%llguidance {}", f"start: {_start(spec, format_, tokens, reasoning, opened)}"]
    if reasoning is not None:
        rules.append(f"thought: {mark(reasoning.opens, tokens)} thought_rest")
        rules += _until("thought_rest", reasoning.closes, tokens)
    if spec.content is not None:
        rules.append(f"content: {spec.content}")
    else:
        framing = format_.other_marks if format_ is not None and format_.framed else ()
        barred = [m for m in (reasoning.opens if reasoning else "", *_call_marks(format_), *framing) if m]
        text = "".join(rf" & ~/(?s:.*){_escaped(m)}(?s:.*)/" for m in barred)
        if format_ is not None and not format_.mark:
            text += rf" & ~/\s*[{re.escape(format_.first_chars)}](?s:.*)/"
        rules.append(f"TEXT: {ANY}{text}")
    if format_ is not None and format_.framed:
        opens, between, answer = format_.frame(tokens, text=spec.content is None)
        rules += [f"aside: {opens} aside_rest {between}", f"answer: {answer}"]
        rules += _until("aside_rest", format_.part_end, tokens)
    if format_ is not None and spec.calls:
        rules.append("call: " + " | ".join(f"call_{i}" for i in range(len(spec.calls))))
        for i, call in enumerate(spec.calls):
            before, after = format_.call(call.name, tokens)
            rules.append(f"call_{i}: {before} arguments_{i} {after}")
            try:
                rules += format_.arguments(f"arguments_{i}", call.schema)
            except ValueError as error:
                raise RequestError(call.field, f"{call.field}: {error}") from None
    if format_ is not None and not format_.framed:
        rules.append(f"calls: {format_.calls(tokens, spec.one)}")
        rules += [f"marked: {mark(m, tokens)} calls" for m in _call_marks(format_)]
        if format_.mark:
            rules += _until("head", format_.mark, tokens, text="TEXT")
    return "\n".join(rules) + "\n"


def _start(
    spec: Constraint,
    format_: CallFormat | None,
    tokens: Mapping[str, int],
    reasoning: ReasoningMarks | None,
    opened: bool,
) -> str:
    free_text = spec.content is None and not spec.needed
    if format_ is not None and format_.framed:
        text = [f"answer {'TEXT' if free_text else 'content'}"] if not spec.needed else []
        between = format_.between_calls(tokens)
        called = f"call ({between} call)*" if between and not spec.one else "call"
        return f"aside* ({' | '.join([*text, *([called] if spec.calls else [])])})"
    thought = "" if reasoning is None else "thought_rest" if opened else "thought?"
    if thought and not free_text:
        thought = f"(thought_rest {GAP})" if opened else f"(thought {GAP})?"
    return f"{thought} ({_answer(spec, format_, free_text)})"


def _answer(spec: Constraint, format_: CallFormat | None, free_text: bool) -> str:
    if format_ is None:
        return "content" if spec.content is not None else "TEXT"
    several = f"({literal(format_.separator)} marked)*" if format_.separator is not None and not spec.one else ""
    forced = f"marked {several}" if format_.mark else "calls | marked" if format_.tag else "calls"
    if spec.needed:
        return forced
    if not free_text:
        return f"content | {forced}"
    if not format_.mark:
        return f"TEXT | {forced}"
    return "TEXT | head calls" if spec.one else "(head calls)* TEXT"


def _call_marks(format_: CallFormat | None) -> list[str]:
    """The mark before calls, if any."""
    return [] if format_ is None else [m for m in (format_.mark or format_.tag,) if m]


def _until(rule: str, m: str, tokens: Mapping[str, int], text: str = "ANYTHING") -> list[str]:
    """Rules for any text up to and including the first mark."""
    if m in tokens:
        return [f"{rule}: {text} {mark(m, tokens)}", *([f"ANYTHING: {ANY}"] if text == "ANYTHING" else [])]
    return [f"{rule}[lazy]: /(?s:.*){_escaped(m)}/"]


def _escaped(text: str) -> str:
    return re.escape(text).replace("/", r"\/")
