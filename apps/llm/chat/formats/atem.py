"""Muse Glimmer's format, ATEM: an answer is messages, each with a header that names whom it is to.

` to=self<|message|>` begins reasoning, ` to=user<|message|>` the answer, and a call is to its tool:

    to=f<|message|><atem:function_calls>
    <atem:invoke name="f">
    <atem:parameter name="city">Paris</atem:parameter>
    </atem:invoke>
    </atem:function_calls><|eom|>

`<|eom|><|start|>assistant` is between messages, `<|eot|>` at the end. Sources: vLLM's muse_glimmer tool parser,
and what other servers' renderers and tests quote of the model's chat template.
"""

from collections.abc import Mapping
from typing import Any

from apps.llm.chat.call_format import literal, mark
from apps.llm.chat.events import ReasoningPiece, TextPiece
from apps.llm.chat.formats.messages import ASSISTANT, MESSAGE, RECIPIENT, START, TO, MessageFormat
from apps.llm.chat.formats.tagged_arguments import (
    ANYTHING,
    Parameters,
    Tags,
    name_before,
    one_of,
    read_arguments,
    rules,
)
from apps.llm.chat.machines.values import blank, exactly
from apps.llm.chat.reader import AnswerReader, Kind, Machine, NotACall
from apps.llm.schemas.written import Schema

EOM, EOT = "<|eom|>", "<|eot|>"
OPENS, CLOSES = "<atem:function_calls>", "</atem:function_calls>"
INVOKE, NAMED, INVOKED = '<atem:invoke name="', '">', "</atem:invoke>"
TAGS = Tags('<atem:parameter name="', NAMED, "</atem:parameter>")
SELF, USER = "self", "user"
EFFORTS = {"none": "low", "minimal": "low", "max": "xhigh"}
"""Reasoning efforts that Muse Glimmer does not know -> the nearest one that it does. It cannot leave reasoning out."""


class Atem(MessageFormat):
    """
    Args:
        apart: whether reasoning is told apart from text.
        schemas: of the arguments of each tool.
    """

    mark, other_marks = MESSAGE, (START, EOM, EOT)
    finishes, part_end, ends = (EOM, EOT), EOM, (EOT,)

    def __init__(self, apart: bool = True, schemas: Mapping[str, Schema] | None = None):
        self.apart = apart
        self._parameters = {name: Parameters(schema) for name, schema in (schemas or {}).items()}

    def offering(self, schemas: Mapping[str, Schema]) -> "Atem":
        return Atem(self.apart, schemas)

    # -- answers ------------------------------------------------------------------------------------------------

    def parsed(self, header: str) -> tuple[Kind, str, str]:
        found = RECIPIENT.search(header)
        recipient = found[1] if found else ""
        rest = RECIPIENT.sub(" ", header.replace(START, " ")).strip().removeprefix(ASSISTANT).strip()
        rest = "" if any(head.startswith(rest) for head in (ASSISTANT, TO)) else rest  # cut short
        kind: Kind = ReasoningPiece if recipient == SELF and self.apart else TextPiece
        return kind, "" if recipient in (SELF, USER) else recipient, rest

    def called(self, reader: AnswerReader, name: str, kind: Kind, char: str) -> Machine:
        reader.part(kind)
        return (yield from reader.attempt("", char, self._block))

    def _block(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        char = yield from exactly(char, OPENS)
        while True:
            char = yield from blank(char)
            found, char = yield from one_of(char, (INVOKE, CLOSES))
            if found != INVOKE:
                if found and reader.called:
                    return char
                raise NotACall(char)
            written, char = yield from name_before(char, NAMED)
            name = self._tool(written, reader)
            if name not in reader.names:
                raise NotACall(char)
            reader.begin(name)
            parameters = self._parameters.get(name, ANYTHING)
            whole, char = yield from read_arguments(char, reader.piece, TAGS, parameters, INVOKED, (EOM, EOT))
            reader.end()
            if not whole:
                return char

    def _tool(self, written: str, reader: AnswerReader) -> str:
        """The tool of that name. The prompt offers a tool `f` as `f.*`, so that models write `f.f`, too."""
        first, _, second = written.partition(".")
        return first if written not in reader.names and first == second else written

    # -- grammars -----------------------------------------------------------------------------------------------

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        header, message = literal(f" {TO}{name}"), mark(MESSAGE, tokens)
        before = literal(f"{OPENS}\n{INVOKE}{name}{NAMED}\n")
        return f"{header} {message} {before}", literal(f"{INVOKED}\n{CLOSES}")

    def arguments(self, rule: str, schema: Schema) -> list[str]:
        return rules(rule, schema, TAGS)

    def between_calls(self, tokens: Mapping[str, int]) -> str:
        return f"{mark(EOM, tokens)} {mark(START, tokens)} {literal(ASSISTANT)}"

    def frame(self, tokens: Mapping[str, int], text: bool) -> tuple[str, str, str]:
        start, message = mark(START, tokens), mark(MESSAGE, tokens)
        to_self, to_user = literal(f" {TO}{SELF}"), literal(f" {TO}{USER}")
        other = f"({to_self} | {to_user})" if text else to_self
        return f"{other} {message}", f"{start} {literal(ASSISTANT)}", f"{to_user} {message}"

    # -- what the chat template takes -----------------------------------------------------------------------------

    def template_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        effort = fields.get("reasoning_effort")
        return {"reasoning_strength": EFFORTS.get(effort, effort), **fields} if effort else fields
