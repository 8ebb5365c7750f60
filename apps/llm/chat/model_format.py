"""A model's answer format, detected from its chat template: how it writes calls and how it marks reasoning."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from apps.llm.api import Grammar, RequestError, SamplingParams
from apps.llm.chat.call_format import CallFormat
from apps.llm.chat.conversation import ChatRequest
from apps.llm.chat.formats.deepseek import FENCE, DeepSeek
from apps.llm.chat.formats.gemma import FUNCTION_GEMMA, GEMMA4, Gemma
from apps.llm.chat.formats.hermes import OPENS as HERMES_OPENS
from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.formats.llama import TAG as LLAMA_TAG
from apps.llm.chat.formats.llama import Llama
from apps.llm.chat.formats.mistral import ARGS, MARK, Mistral
from apps.llm.chat.formats.plain import Plain
from apps.llm.chat.formats.pythonic import TAG as PYTHON_TAG
from apps.llm.chat.formats.pythonic import Pythonic
from apps.llm.chat.grammar import Constraint, lark, loaded_schema
from apps.llm.chat.reader import AnswerReader, ReasoningMarks
from ray_configs.llm import ReasoningFormat, ToolCallFormat

REASONING = {
    "think": ReasoningMarks("<think>", "</think>"),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
}
UNREAD = ("<function=", "<arg_key>", "<|tool_calls_section_begin|>")
"""Marks in the templates of model families whose call formats are not supported."""


@dataclass(frozen=True)
class ModelFormat:
    """A model's answer format.

    Args:
        calls: format of its calls; None if it has none, or an unsupported one.
        takes_tools: whether its chat template shows tools to the model.
        tokens: ids of the marks that are a single token.
    """

    calls: CallFormat | None = None
    reasoning: ReasoningMarks | None = None
    takes_tools: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, template: str, calls: ToolCallFormat = "auto", reasoning: ReasoningFormat = "auto") -> "ModelFormat":
        """The format of a chat template ("" if there is none), or the one that the config names."""
        takes_tools = re.search(r"\btools\b", template) is not None
        found = next((marks for marks in REASONING.values() if marks.opens in template), None)
        return cls(
            _calls(template, calls) if takes_tools else None,
            found if reasoning == "auto" else REASONING.get(reasoning),
            takes_tools,
        )

    @property
    def marks(self) -> tuple[str, ...]:
        """The marks that may be a single token."""
        return (*self._reasoning_marks, *self._call_marks)

    @property
    def _reasoning_marks(self) -> tuple[str, ...]:
        return () if self.reasoning is None else (self.reasoning.opens, self.reasoning.closes)

    @property
    def _call_marks(self) -> tuple[str, ...]:
        return () if self.calls is None else (self.calls.mark or self.calls.tag, *self.calls.other_marks)

    def shown(self, with_calls: bool) -> frozenset[int]:
        """The special tokens to keep in an answer's text, because its reader needs them."""
        marks = self.marks if with_calls else self._reasoning_marks
        return frozenset(self.tokens[mark] for mark in marks if mark in self.tokens)

    def check(self, request: ChatRequest) -> None:
        """Raises RequestError if the model cannot be offered these tools."""
        request.tools.check()
        if not request.tools.offered:
            return
        if not self.takes_tools:
            raise RequestError("tools", "tools: this model's chat template does not support tools")
        if self.calls is None:
            raise RequestError(
                "tools",
                "tools: the format of this model's calls is unknown; set tool_call_format in the server's config",
            )

    def messages(self, request: ChatRequest) -> Sequence[Mapping[str, Any]]:
        """The messages, with call ids in the form that the template accepts."""
        if self.calls is None:
            return request.messages
        return [self._with_ids(message, self.calls) for message in request.messages]

    @staticmethod
    def _with_ids(message: Mapping[str, Any], format_: CallFormat) -> Mapping[str, Any]:
        if "tool_call_id" in message:
            return {**message, "tool_call_id": format_.call_id(message["tool_call_id"])}
        if "tool_calls" in message:
            return {**message, "tool_calls": [c | {"id": format_.call_id(c["id"])} for c in message["tool_calls"]]}
        return message

    def turn(self, request: ChatRequest, prompt: str) -> "Turn":
        """The model's turn after a rendered prompt."""
        marks, end = self.reasoning, prompt.rstrip()
        if marks is None or end.endswith(marks.closes):  # the prompt ends with (usually empty) reasoning
            return Turn(self, request, None)
        return Turn(self, request, marks, opened=end.endswith(marks.opens))


@dataclass(frozen=True)
class Turn:
    """One turn of the model: constrains its answers and makes their readers.

    Args:
        reasoning: marks of the reasoning that may precede the answer.
        opened: whether the prompt already has the opening mark.
    """

    model: ModelFormat
    request: ChatRequest
    reasoning: ReasoningMarks | None
    opened: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether answers are only text."""
        return self.reasoning is None and not self.request.tools.offered

    def reader(self) -> AnswerReader | None:
        """A reader for one answer; None if it is only text."""
        if self.is_plain:
            return None
        tools = self.request.tools
        calls = self.model.calls if tools.offered else None
        names = [tool.name for tool in tools.offered]
        return AnswerReader(calls, names, self.reasoning, self.opened, tools.one_call)

    def constrained(self, params: SamplingParams) -> SamplingParams:
        """`params` with a grammar that enforces tools and schema. Raises RequestError for an unsupported schema."""
        if self.is_plain:
            return params
        tools, model = self.request.tools, self.model
        content = None if params.json_schema is None else loaded_schema(params.json_schema)
        shown = model.shown(bool(tools.offered))
        if not tools.is_constrained and (content is None or (self.reasoning is None and not tools.offered)):
            return replace(params, shown_tokens=shown)
        schema = None if content is None or tools.mode == "required" else content
        wanted = Constraint(tools.constrained_calls(), tools.mode == "required", tools.one_call, schema)
        calls = model.calls if tools.offered else None
        enforced = [(f"{tool.field}.{tool.schema_field}", c.schema) for tool, c in zip(tools.offered, wanted.calls)]
        if schema is not None:
            enforced.append(("response_format", schema))
        text = lark(wanted, calls, model.tokens, self.reasoning, self.opened)
        return replace(params, json_schema=None, grammar=Grammar(text, tuple(enforced)), shown_tokens=shown)


def _calls(template: str, chosen: ToolCallFormat) -> CallFormat | None:
    """The chosen format, or the one whose marks the template has."""
    gemma = Gemma(GEMMA4 if GEMMA4.opens in template else FUNCTION_GEMMA)
    mistral = Mistral(named=ARGS in template)
    deepseek = DeepSeek(fenced=FENCE in template)
    formats: dict[str, CallFormat | None] = {
        "hermes": Hermes(),
        "llama": Llama(),
        "pythonic": Pythonic(),
        "mistral": mistral,
        "gemma": gemma,
        "deepseek": deepseek,
        "json": Plain(),
        "none": None,
    }
    if chosen != "auto":
        return formats[chosen]
    if any(mark in template for mark in UNREAD):
        return None
    signs = {
        MARK: mistral,
        gemma.mark: gemma,
        deepseek.mark: deepseek,
        HERMES_OPENS: formats["hermes"],
        PYTHON_TAG: formats["pythonic"],
        "[func_name": formats["pythonic"],
        LLAMA_TAG: formats["llama"],
        "<|start_header_id|>": formats["llama"],
    }
    return next((format_ for sign, format_ in signs.items() if sign in template), formats["json"])
