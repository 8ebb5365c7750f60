"""Qwen3-Coder's and Qwen3.5's format, without JSON around the arguments:

    <tool_call>
    <function=f>
    <parameter=city>
    Paris
    </parameter>
    </function>
    </tool_call>

Sources: vLLM's qwen3_coder parser, and a public fork of Qwen3.5's chat template.
"""

from collections.abc import Mapping

from apps.llm.chat.call_format import CallFormat, literal, mark
from apps.llm.chat.formats.tagged_arguments import ANYTHING, Parameters, Tags, name_before, read_arguments, rules
from apps.llm.chat.machines.values import blank, closing, exactly
from apps.llm.chat.reader import AnswerReader, Machine, NotACall
from apps.llm.schemas.written import Schema

OPENS, CLOSES = "<tool_call>", "</tool_call>"
FUNCTION, NAMED, CALLED = "<function=", ">", "</function>"
TAGS = Tags("<parameter=", NAMED, "</parameter>", on_lines=True)


class QwenCoder(CallFormat):
    """
    Args:
        schemas: of the arguments of each tool.
    """

    mark, other_marks = OPENS, (CLOSES,)
    separator = "\n"

    def __init__(self, schemas: Mapping[str, Schema] | None = None):
        self._parameters = {name: Parameters(schema) for name, schema in (schemas or {}).items()}

    def offering(self, schemas: Mapping[str, Schema]) -> "QwenCoder":
        return QwenCoder(schemas)

    def read_calls(self, reader: AnswerReader, char: str) -> Machine:
        char = yield from blank(char)
        char = yield from exactly(char, FUNCTION)
        name, char = yield from name_before(char, NAMED)
        if name not in reader.names:
            raise NotACall(char)
        reader.begin(name)
        parameters = self._parameters.get(name, ANYTHING)
        whole, char = yield from read_arguments(char, reader.piece, TAGS, parameters, CALLED, (CLOSES,))
        reader.end()
        return (yield from closing(char, CLOSES)) if whole else char

    def call(self, name: str, tokens: Mapping[str, int]) -> tuple[str, str]:
        return literal(f"\n{FUNCTION}{name}{NAMED}\n"), f"{literal(CALLED + chr(10))} {mark(CLOSES, tokens)}"

    def arguments(self, rule: str, schema: Schema) -> list[str]:
        return rules(rule, schema, TAGS)
