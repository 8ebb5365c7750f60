"""The body of /v1/responses. Types are strict; null means absent; unknown fields are ignored."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from apps.llm.api import MAX_MESSAGES, MAX_TOOLS, RequestError
from apps.llm.chat.conversation import ChatRequest, effort_fields
from apps.llm.chat.tools import CallMode, Tool, ToolUse
from apps.llm.http.responses.items import Item, MessageItem, Placed, conversation, placed, shown_name
from apps.llm.http.responses.tools import (
    LONGEST_NAME,
    AllowedTools,
    FunctionTool,
    NamedFunction,
    NamespaceTool,
    OfferedTool,
    Schema,
    WebSearchTool,
    repeated,
)
from apps.llm.schemas.enforced import loosened
from apps.llm.text.tokenizer.limits import NO_DEFAULTS
from apps.llm.text_api import SamplingParams
from apps.serving.ingress.bodies import Body, CacheSalt, Metadata

UNIONS = {
    "tool_choice": 'tool_choice must be none, auto, required, {"type": "function", "name": ...} or allowed_tools',
}
"""Error for a field of several types, in place of one error per type."""
NAMES = {
    "prompt": "input",
    "messages": "input",
    "json_schema": "text.format.schema",
    "response_format": "text.format.schema",
    "max_tokens": "max_output_tokens",
}
"""The engine's name of a field -> the client's, where they differ."""
LOGPROBS = "message.output_text.logprobs"


class Reasoning(Body):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    """Ignored: the answer has the reasoning itself, not a summary."""


class Format(Body):
    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    """false: what of the schema cannot be enforced is ignored, instead of refused."""
    schema_: Schema | None = Field(None, alias="schema")

    @model_validator(mode="after")
    def _has_schema(self) -> "Format":
        if self.type == "json_schema" and self.schema_ is None:
            raise ValueError("schema is required with type json_schema")
        return self

    def constraint(self) -> dict[str, Any] | None:
        """The JSON schema to follow; {} for any JSON object, None for free text."""
        if self.type != "json_schema":
            return None if self.type == "text" else {}
        return loosened(self.schema_) if self.strict is False and self.schema_ else self.schema_


class Text(Body):
    format: Format | None = None


class ResponseBody(Body):
    """The engine checks the ranges."""

    model: str | None = None
    """The served model's name. Optional, except in a cell with several published models."""
    input: str | Annotated[list[Item], Field(max_length=MAX_MESSAGES)] | None = None
    """A text, or items: messages, `function_call`, `function_call_output`, `reasoning`. Files and audio are not
    supported. Consecutive items of one role are one turn."""
    instructions: str | None = None
    """The first system message. Not carried over to a response that continues this one."""
    previous_response_id: str | None = None
    """Id of the stored response that the input continues."""
    store: bool | None = None
    """Stores the response, for `previous_response_id` and GET. Default: true if the server stores any; see
    `stored_responses`."""
    tools: Annotated[list[OfferedTool], Field(max_length=MAX_TOOLS)] | None = None
    """Functions that the model may call, alone or in a `namespace`. `strict: true` enforces the schema of the
    arguments. `web_search` is accepted but not offered to the model."""
    tool_choice: Literal["none", "auto", "required"] | NamedFunction | AllowedTools | None = None
    """none, auto (the default), required, the function that must be called, or the functions that may be. Required
    calls must follow their schemas."""
    parallel_tool_calls: bool | None = None
    """false: at most one call in an answer."""
    reasoning: Reasoning | None = None
    """`effort` is passed to the chat template, with `enable_thinking`: false for `none`, else true."""
    text: Text | None = None
    """`format`: the answer is a text, a JSON object, or JSON that follows the schema."""
    max_output_tokens: int | None = None
    """Maximum length of the answer, reasoning included; the context may end it earlier. Default: what the context
    allows."""
    temperature: float | None = None
    """0: greedy. Default: 1."""
    top_p: float | None = None
    metadata: Metadata | None = None
    """Up to 16 named strings, which the response repeats."""
    stream: bool | None = None
    cache_salt: CacheSalt | None = None
    """vLLM's: the prefix cache is shared only with requests of the same salt."""
    truncation: Literal["auto", "disabled"] | None = None
    """Only `disabled`: a conversation longer than the context is refused."""
    background: bool | None = None
    """Not supported."""
    conversation: Any = None
    """Not supported: continue with `previous_response_id`."""
    prompt: Any = None
    """Not supported."""
    include: list[str] | None = None
    """Ignored, except that log probabilities are refused: chat completions have them."""
    top_logprobs: int | None = None
    """Must be 0, if given."""
    max_tool_calls: int | None = None
    """Not supported: the server calls no tools."""

    @field_validator("input", mode="before")
    @classmethod
    def _text_or_items(cls, value: Any) -> Any:
        if value is not None and not isinstance(value, str | list):
            raise ValueError("must be a string or a list of items")
        return value

    @field_validator("truncation", "background", "conversation", "prompt", "include", "top_logprobs", "max_tool_calls")
    @classmethod
    def _offered(cls, value: Any, info: ValidationInfo) -> Any:
        if info.field_name == "truncation" and value == "auto":
            raise ValueError("auto is not supported: shorten the conversation instead")
        if info.field_name == "background" and value:
            raise ValueError("is not supported: use stream: true")
        if info.field_name in ("conversation", "prompt") and value is not None:
            raise ValueError("is not supported: send input, with previous_response_id or with the whole conversation")
        if info.field_name == "max_tool_calls" and value is not None:
            raise ValueError("is not supported: parallel_tool_calls: false allows one call")
        if (info.field_name == "include" and LOGPROBS in (value or ())) or (
            info.field_name == "top_logprobs" and value
        ):
            raise ValueError("log probabilities are not supported here: /v1/chat/completions has them")
        return value

    def items(self) -> list[Item]:
        """The input as items."""
        if isinstance(self.input, str):
            return [MessageItem(role="user", content=self.input)]
        return self.input or []

    def request(self, earlier: Sequence[Item] = ()) -> ChatRequest:
        """The chat. Raises RequestError if items and tools are inconsistent.

        Args:
            earlier: the conversation that `previous_response_id` names.
        """
        items: list[Placed] = [*placed("previous_response_id.items", earlier), *placed("input", self.items())]
        if not items:
            raise RequestError("input", "input is required: a text, or a non-empty list of items")
        if self.instructions:
            items.insert(0, ("instructions", MessageItem(role="system", content=self.instructions)))
        fields = effort_fields(self.reasoning.effort if self.reasoning else None)
        talk = conversation(items)
        return ChatRequest(talk.messages, self._tool_use(), fields, images=talk.images)

    def functions(self) -> dict[str, tuple[str | None, str]]:
        """Name for the model -> namespace, if any, and name of each function."""
        return {shown_name(namespace, tool.name): (namespace, tool.name) for _, namespace, tool in self._functions()}

    def _functions(self) -> Iterator[tuple[str, str | None, FunctionTool]]:
        """(path in the request, namespace, function)"""
        for i, tool in enumerate(self.tools or ()):
            if isinstance(tool, FunctionTool):
                yield f"tools[{i}]", None, tool
            elif isinstance(tool, NamespaceTool):
                for j, function in enumerate(tool.tools):
                    yield f"tools[{i}].tools[{j}]", tool.name, function

    def _tool_use(self) -> ToolUse:
        """The tools and how to choose among them. Raises RequestError if the choice names no offered tool."""
        choice = self.tool_choice
        offered = [
            Tool(shown_name(namespace, tool.name), field, tool.description, tool.parameters, bool(tool.strict))
            for field, namespace, tool in self._functions()
        ]
        if len(offered) > MAX_TOOLS:
            raise RequestError("tools", f"tools: there are {len(offered)} functions; the most are {MAX_TOOLS}")
        if not offered and choice not in (None, "none", "auto"):
            raise RequestError("tool_choice", "tool_choice may only be given with functions in tools")
        only: str | None = None
        mode: CallMode = "auto"
        if isinstance(choice, NamedFunction):
            only, mode = choice.shown_name(), "required"
        elif isinstance(choice, AllowedTools):
            mode, allowed = choice.mode, {tool.shown_name() for tool in choice.tools}
            if unknown := sorted(allowed - {tool.name for tool in offered}):
                raise RequestError("tool_choice", f"tool_choice.tools: no tool is named {unknown[0]!r}")
            offered = [tool for tool in offered if tool.name in allowed]
        elif choice is not None:
            mode = choice
        return ToolUse(offered, mode, only, self.parallel_tool_calls is not False, LONGEST_NAME)

    def params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """The engine's parameters; `defaults` are the model's, for what the request does not name."""
        own = {name: value for name in ("temperature", "top_p") if (value := getattr(self, name)) is not None}
        values: dict[str, Any] = {"within_context": True, **defaults, **own}
        if self.max_output_tokens is not None:
            values["max_tokens"] = self.max_output_tokens
        if self.text is not None and self.text.format is not None:
            values["json_schema"] = self.text.format.constraint()
        salt = self.cache_salt or ""
        return SamplingParams(cache_salt=salt, **values)

    def repeated(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> dict[str, Any]:
        """The request's fields that a response repeats, with the model's `defaults`."""
        format_ = self.text.format if self.text is not None and self.text.format is not None else Format(type="text")
        choice = self.tool_choice or "auto"
        effort = self.reasoning.effort if self.reasoning else None
        return {
            "background": False,
            "instructions": self.instructions,
            "max_output_tokens": self.max_output_tokens,
            "metadata": self.metadata or {},
            "parallel_tool_calls": self.parallel_tool_calls is not False,
            "previous_response_id": self.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "temperature": defaults.get("temperature", 1.0) if self.temperature is None else self.temperature,
            "text": {"format": format_.model_dump(by_alias=True, exclude_none=True)},
            "tool_choice": choice if isinstance(choice, str) else choice.model_dump(exclude_none=True),
            "tools": [repeated(tool) for tool in self.tools or () if not isinstance(tool, WebSearchTool)],
            "top_p": defaults.get("top_p", 1.0) if self.top_p is None else self.top_p,
            "truncation": "disabled",
        }
