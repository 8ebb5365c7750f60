"""A model's answer format, detected from its chat template: how it writes calls and how it marks reasoning."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from apps.llm.api import Grammar, RequestError
from apps.llm.chat.call_format import CallFormat
from apps.llm.chat.conversation import ChatRequest, with_system_first
from apps.llm.chat.formats.atem import OPENS as ATEM_OPENS
from apps.llm.chat.formats.atem import Atem
from apps.llm.chat.formats.deepseek import FENCE, DeepSeek
from apps.llm.chat.formats.gemma import FUNCTION_GEMMA, GEMMA4, Gemma
from apps.llm.chat.formats.harmony import CHANNEL, Harmony
from apps.llm.chat.formats.hermes import OPENS as HERMES_OPENS
from apps.llm.chat.formats.hermes import Hermes
from apps.llm.chat.formats.llama import TAG as LLAMA_TAG
from apps.llm.chat.formats.llama import Llama
from apps.llm.chat.formats.mistral import ARGS, MARK, Mistral
from apps.llm.chat.formats.plain import FUNCTOOLS, PHI_CALL, PHI_END, PHI_TOOL, Plain
from apps.llm.chat.formats.pythonic import TAG as PYTHON_TAG
from apps.llm.chat.formats.pythonic import Pythonic
from apps.llm.chat.formats.qwen_coder import TAGS as QWEN_CODER
from apps.llm.chat.formats.qwen_coder import QwenCoder
from apps.llm.chat.grammar import Constraint, lark, schema_rule
from apps.llm.chat.reader import AnswerReader, ReasoningMarks
from apps.llm.chat.shape import OFFERED, Message, Shape
from apps.llm.chat.tools import NO_ARGUMENTS, ToolUse
from apps.llm.schemas.written import check_schemas, loaded_schema
from apps.llm.text_api import SamplingParams
from ray_configs.applications.formats import ReasoningFormat, ToolCallFormat

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None, Mapping[str, Any]], str]
REASONING = {
    "think": ReasoningMarks("<think>", "</think>"),
    "mistral": ReasoningMarks("[THINK]", "[/THINK]"),
    "gemma": ReasoningMarks("<|channel>", "<channel|>", "thought\n"),
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
        late_system: whether its chat template shows system messages wherever they are.
        shape: what conversations its chat template takes.
    """

    calls: CallFormat | None = None
    reasoning: ReasoningMarks | None = None
    takes_tools: bool = False
    tokens: Mapping[str, int] = field(default_factory=dict)
    late_system: bool = True
    shape: Shape = field(default_factory=Shape)

    @classmethod
    def of(cls, template: str, calls: ToolCallFormat = "auto", reasoning: ReasoningFormat = "auto") -> "ModelFormat":
        """The format of a chat template ("" if there is none), or the one that the config names."""
        takes_tools = re.search(r"\btools\b", template) is not None
        for name, sign, framed in (("harmony", CHANNEL, Harmony), ("atem", ATEM_OPENS, Atem)):
            if calls == name or (calls in ("auto", "none") and sign in template):
                return cls(framed(apart=reasoning != "none"), None, takes_tools and calls != "none")
        found = next((marks for marks in REASONING.values() if marks.opens in template), None)
        return cls(
            _calls(template, calls) if takes_tools else None,
            found if reasoning == "auto" else REASONING.get(reasoning),
            takes_tools,
        )

    def on(self, special_tokens: Mapping[str, int], render: Render) -> "ModelFormat":
        """With what a tokenizer knows of it: its special tokens, by their text, and its chat template's `render`."""
        probe = ChatRequest([], ToolUse([OFFERED]))

        def tried(shape: Shape, messages: Sequence[Message]) -> str:
            return replace(self, shape=shape).rendered(replace(probe, messages=messages), render)

        shape = Shape.of(tried, self.calls.result_mark if self.calls else "")
        found = replace(self, late_system=shows_late_system(render), shape=shape)
        if shape.tools == "nowhere":
            found = replace(found, takes_tools=False, calls=self.calls if self.framed else None)
        return found.with_tokens(special_tokens)

    def with_tokens(self, special_tokens: Mapping[str, int]) -> "ModelFormat":
        """With the marks that are one of these tokens."""
        return replace(self, tokens={mark: special_tokens[mark] for mark in self.marks if mark in special_tokens})

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

    @property
    def framed(self) -> bool:
        """Whether even an answer without reasoning and calls is within marks."""
        return self.calls is not None and self.calls.framed

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

    def rendered(self, request: ChatRequest, render: Render) -> str:
        """The prompt of a chat, by the chat template, which gets everything in the form that it accepts."""
        messages, fields = request.messages, request.template_fields
        cards: Sequence[Mapping[str, Any]] = [tool.card() for tool in request.tools.tools]
        if not request.tools.offered:
            cards = []
        if not self.late_system:
            messages = with_system_first(messages)
        messages = self.shape.fit(messages, cards, self.calls.written if self.calls else lambda calls: "")
        if self.calls is not None:
            messages, fields = self.calls.messages(messages), self.calls.template_fields(fields)
            cards = [self.calls.card(card) for card in cards]
        return render(messages, cards or None if self.shape.tools == "variable" else None, fields)

    def turn(self, request: ChatRequest, prompt: str) -> "Turn":
        """The model's turn after a rendered prompt."""
        marks, end = self.reasoning, prompt.rstrip()
        if not self.shape.parallel and not self.framed:  # the template would refuse the conversation with its answer
            request = replace(request, tools=replace(request.tools, parallel=False))
        if marks is not None and request.ending == "message":  # what it has written tells whether it still reasons
            written = str(request.messages[-1].get("content") or "")
            opened = written.rfind(marks.opens) > written.rfind(marks.closes)
            return Turn(self, request, marks if opened else None, opened)
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
        return self.reasoning is None and self.calls is None

    @cached_property
    def calls(self) -> CallFormat | None:
        """The format of calls, if any can come, or of the whole answer."""
        calls, offered = self.model.calls, self.request.tools.offered
        if calls is None or not (offered or self.model.framed):
            return None
        return calls.offering({tool.name: tool.parameters or NO_ARGUMENTS for tool in offered})

    def reader(self, stop: Sequence[str] = (), keep_stop: bool = False) -> AnswerReader | None:
        """A reader for one answer; None if it is only text. See `AnswerReader` for its stop strings."""
        if self.is_plain:
            return None
        tools = self.request.tools
        names = [tool.name for tool in tools.offered]
        return AnswerReader(self.calls, names, self.reasoning, self.opened, tools.one_call, stop, keep_stop)

    def constrained(self, params: SamplingParams) -> SamplingParams:
        """`params` with a reader of its answers, and a grammar that enforces tools and schema.

        Raises:
            RequestError: a schema is not supported.
        """
        if self.is_plain:
            return params
        params = replace(params, reader=partial(self.reader, params.stop, params.include_stop_text))
        tools, model, calls = self.request.tools, self.model, self.calls
        content = None if params.json_schema is None else loaded_schema(params.json_schema)
        params = replace(params, shown_tokens=model.shown(calls is not None))
        if calls is not None and not params.ignore_eos:
            ends = [model.tokens[end] for end in calls.ends if end in model.tokens]
            params = replace(params, stop_token_ids=[*params.stop_token_ids, *ends])
        pattern = None if tools.mode == "required" else params.pattern
        schema = None if tools.mode == "required" or pattern is not None else content
        if not tools.is_constrained and schema is None and pattern is None:
            return params
        allowed = tools.constrained_calls()
        enforced = [(each.field, each.schema) for each in allowed]
        if schema is not None:
            enforced.append(("response_format", schema))
        if pattern is not None and pattern.like is not None:
            enforced.append((pattern.field, pattern.like))
        written = (pattern.field,) if pattern is not None and pattern.like is None else ()
        check_schemas(enforced)
        rule = pattern.rule if pattern is not None else None if schema is None else schema_rule(schema)
        wanted = Constraint(allowed, tools.mode == "required", tools.one_call, rule)
        text = lark(wanted, calls, model.tokens, self.reasoning, self.opened)
        return replace(params, json_schema=None, pattern=None, grammar=Grammar(text, tuple(enforced), written))


def shows_late_system(render: Render) -> bool:
    """Whether a chat template shows a system message in the middle. Most do; some raise an error, some leave it out."""
    late = "A late system message."
    turns = (("system", "S"), ("user", "U"), ("assistant", "A"), ("system", late), ("user", "U"))
    try:
        return late in render([{"role": role, "content": text} for role, text in turns], None, {})
    except RequestError:
        return False


def _calls(template: str, chosen: ToolCallFormat) -> CallFormat | None:
    """The chosen format, or the one whose marks the template has, of those within an answer's text."""
    gemma = Gemma(GEMMA4 if GEMMA4.opens in template else FUNCTION_GEMMA)
    mistral = Mistral(named=ARGS in template)
    deepseek = DeepSeek(fenced=FENCE in template)
    phi = PHI_TOOL in template or PHI_CALL in template
    plain = Plain(FUNCTOOLS) if FUNCTOOLS in template else Plain(PHI_CALL, PHI_END) if phi else Plain()
    formats: dict[str, CallFormat | None] = {
        "hermes": Hermes(),
        "qwen3_coder": QwenCoder(),
        "llama": Llama(),
        "pythonic": Pythonic(),
        "mistral": mistral,
        "gemma": gemma,
        "deepseek": deepseek,
        "json": plain,
        "none": None,
    }
    if chosen != "auto":
        return formats[chosen]
    if QWEN_CODER.opens in template:
        return formats["qwen3_coder"]
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
