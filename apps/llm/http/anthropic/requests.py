"""Bodies of Anthropic's messages API. Types are strict; null means absent; unknown fields are ignored."""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from apps.llm.api import MAX_MESSAGES, MAX_STOPS, MAX_TOOLS, RequestError
from apps.llm.chat.conversation import ChatRequest, Conversation, PastCall, thinking_fields
from apps.llm.chat.images import SentImage, paragraphs
from apps.llm.chat.reader import PARAGRAPH
from apps.llm.chat.tools import CallMode, Tool, ToolUse
from apps.llm.text.tokenizer.limits import NO_DEFAULTS
from apps.llm.text_api import SamplingParams
from apps.serving.ingress.bodies import Body

UNIONS = {
    "system": "system must be a string or a list of text blocks",
    "tool_choice": 'tool_choice must be {"type": "auto"}, any, none, or tool with a name',
}
"""Error for a field of several types, in place of one error per type."""
NAMES = {
    "prompt": "messages",
    "stop": "stop_sequences",
    "json_schema": "output_config.format.schema",
    "response_format": "output_config.format.schema",
}
"""The engine's name of a field -> the client's, where they differ."""
LONGEST_NAME = 128  # of a tool, Anthropic's limit
NO_DOCUMENTS = "this server's models read no documents"


class TextBlock(Body):
    type: Literal["text"]
    text: str

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        if value != "text":
            raise ValueError(f"must be text; {NO_DOCUMENTS}")
        return value


class Base64Source(Body):
    type: Literal["base64"]
    media_type: Literal["image/jpeg", "image/png", "image/gif", "image/webp"]
    data: str


class UrlSource(Body):
    type: Literal["url"]
    url: str
    """A data URL."""


class ImageBlock(Body):
    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]

    def sent(self, field: str) -> SentImage:
        if isinstance(self.source, UrlSource):
            return SentImage.at(self.source.url, f"{field}.source.url")
        return SentImage(self.source.data, f"{field}.source.data")


class ThinkingBlock(Body):
    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(Body):
    type: Literal["redacted_thinking"]


class ToolUseBlock(Body):
    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


def _tag(block: Any) -> str:
    return f"a {block.get('type')} block" if isinstance(block, dict) else "no block"


Shown = Annotated[
    Annotated[TextBlock, Tag("a text block")] | Annotated[ImageBlock, Tag("a image block")],
    Discriminator(
        _tag,
        custom_error_type="block",
        custom_error_message=f"must be a block of type text or image; {NO_DOCUMENTS}",
    ),
]


class ToolResultBlock(Body):
    type: Literal["tool_result"]
    tool_use_id: str
    content: str | Annotated[list[Shown], Field(max_length=MAX_MESSAGES)] | None = None
    is_error: bool | None = None

    def as_text(self, conversation: Conversation, field: str) -> str:
        """The result as the model sees it, with marks for its images."""
        content = self.content or ""
        if not isinstance(content, str):
            content = paragraphs(_shown(part, conversation, f"{field}.content[{i}]") for i, part in enumerate(content))
        return f"Error: {content}" if self.is_error else content


Block = Annotated[
    Annotated[TextBlock, Tag("a text block")]
    | Annotated[ImageBlock, Tag("a image block")]
    | Annotated[ToolUseBlock, Tag("a tool_use block")]
    | Annotated[ToolResultBlock, Tag("a tool_result block")]
    | Annotated[ThinkingBlock, Tag("a thinking block")]
    | Annotated[RedactedThinkingBlock, Tag("a redacted_thinking block")],
    Discriminator(
        _tag,
        custom_error_type="block",
        custom_error_message="must be a block of type text, image, tool_use, tool_result, thinking or "
        f"redacted_thinking; {NO_DOCUMENTS}",
    ),
]
Placed = tuple[str, TextBlock | ImageBlock | ToolUseBlock | ToolResultBlock | ThinkingBlock | RedactedThinkingBlock]
"""A block, and its path in the client's request."""


class TurnBody(Body):
    role: Literal["user", "assistant", "system"]
    content: str | Annotated[list[Block], Field(max_length=MAX_MESSAGES)]

    def blocks(self, field: str) -> Iterator[Placed]:
        if isinstance(self.content, str):
            yield f"{field}.content", TextBlock(type="text", text=self.content)
        else:
            for i, block in enumerate(self.content):
                yield f"{field}.content[{i}]", block


class OfferedTool(Body):
    type: str | None = None
    """Only `custom`: tools that Anthropic runs on its servers are not supported."""
    name: str
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    """JSON schema of the input."""
    strict: bool | None = None
    """Enforces the schema whenever the model calls the tool."""

    @model_validator(mode="after")
    def _is_the_clients(self) -> "OfferedTool":
        if self.type not in (None, "custom"):
            raise ValueError(f"type {self.type} is not supported: this server runs no tools; use type custom")
        if self.input_schema is None:
            raise ValueError("input_schema is required: the JSON schema of the tool's input")
        return self


class ToolChoiceBody(Body):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    @model_validator(mode="after")
    def _names_its_tool(self) -> "ToolChoiceBody":
        if self.type == "tool" and self.name is None:
            raise ValueError("tool_choice.name is required with type tool")
        return self


class Thinking(Body):
    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: int | None = None
    """Not enforced."""


class OutputFormat(Body):
    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Body):
    format: OutputFormat | None = None


class PromptBody(Body):
    """The fields that make up the prompt."""

    model: str
    messages: Annotated[list[TurnBody], Field(min_length=1, max_length=MAX_MESSAGES)]
    """Consecutive messages of one role are one turn; the last turn must be the user's."""
    system: str | Annotated[list[TextBlock], Field(max_length=MAX_MESSAGES)] | None = None
    tools: Annotated[list[OfferedTool], Field(max_length=MAX_TOOLS)] | None = None
    """Tools that the model may call."""
    tool_choice: ToolChoiceBody | None = None
    """auto (the default), any, none, or the tool that must be called, whose input must follow its schema."""
    thinking: Thinking | None = None
    """Sets the chat template's `enable_thinking`, false by default; templates without it are unaffected."""
    output_config: OutputConfig | None = None
    """`format`: the answer is JSON that follows the schema."""

    def request(self) -> ChatRequest:
        """The chat. Raises RequestError if messages and tools are inconsistent."""
        conversation = Conversation()
        if self.system:
            system = self.system if isinstance(self.system, str) else PARAGRAPH.join(b.text for b in self.system)
            conversation.say("system", system)
        placed = [(message.role, list(message.blocks(f"messages[{i}]"))) for i, message in enumerate(self.messages)]
        for role, turns in groupby(placed, key=lambda turn: turn[0]):
            _join(conversation, role, [block for _, blocks in turns for block in blocks])
        if placed[-1][0] == "assistant":
            raise RequestError("messages", "messages must end with a user message: prefill is not supported")
        thinks = self.thinking is not None and self.thinking.type != "disabled"
        return ChatRequest(conversation.messages, self._tool_use(), thinking_fields(thinks), images=conversation.images)

    def _tool_use(self) -> ToolUse:
        choice = self.tool_choice
        if not self.tools and choice is not None and choice.type != "none":
            raise RequestError("tool_choice", "tool_choice may only be given with tools")
        offered = [
            Tool(t.name, f"tools[{i}]", t.description, t.input_schema, bool(t.strict), "input_schema")
            for i, t in enumerate(self.tools or ())
        ]
        if choice is None:
            return ToolUse(offered, longest_name=LONGEST_NAME)
        modes: dict[str, CallMode] = {"auto": "auto", "any": "required", "tool": "required", "none": "none"}
        only = choice.name if choice.type == "tool" else None
        return ToolUse(offered, modes[choice.type], only, not choice.disable_parallel_tool_use, LONGEST_NAME)


class MessagesBody(PromptBody):
    """The engine checks the ranges."""

    max_tokens: int
    """Maximum length of the answer in tokens; the context may end it earlier."""
    stop_sequences: Annotated[list[str], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    temperature: float | None = None
    """0: greedy. Default: 1."""
    top_k: int | None = None
    """Samples from the k likeliest tokens; 0: from all."""
    top_p: float | None = None

    mcp_servers: Any = None
    """Not supported."""
    container: Any = None
    """Not supported."""

    @field_validator("mcp_servers", "container")
    @classmethod
    def _offered(cls, value: Any) -> Any:
        if value:
            raise ValueError("is not supported")
        return value

    def params(self, defaults: Mapping[str, Any] = NO_DEFAULTS) -> SamplingParams:
        """The engine's parameters; `defaults` are the model's, for what the request does not name."""
        own = {name: value for name in ("temperature", "top_k", "top_p") if (value := getattr(self, name)) is not None}
        values = {name: value for name, value in defaults.items() if name != "max_tokens"} | own
        if self.output_config is not None and self.output_config.format is not None:
            values["json_schema"] = self.output_config.format.schema_
        return SamplingParams(
            max_tokens=self.max_tokens, within_context=True, stop=tuple(self.stop_sequences or ()), **values
        )


def _shown(block: TextBlock | ImageBlock, conversation: Conversation, field: str) -> str:
    return block.text if isinstance(block, TextBlock) else conversation.shown(block.sent(field))


def _join(conversation: Conversation, role: str, blocks: Sequence[Placed]) -> None:
    """Adds a turn. Raises RequestError for a block that the role may not have, or a result without its call."""
    texts, thoughts, calls, results = [], [], [], 0
    for field, block in blocks:
        match block:
            case TextBlock():
                texts.append(block.text)
            case ImageBlock() if role == "user":
                texts.append(conversation.shown(block.sent(field)))
            case ToolUseBlock() if role == "assistant":
                calls.append(PastCall(block.id, block.name, json.dumps(block.input)))
            case ThinkingBlock() if role == "assistant":
                thoughts.append(block.thinking)
            case ToolResultBlock() if role == "user":
                conversation.result(block.tool_use_id, block.as_text(conversation, field), f"{field}.tool_use_id")
                results += 1
            case RedactedThinkingBlock() if role == "assistant":
                pass
            case _:
                raise RequestError(field, f"{field}: a {block.type} block is not allowed in a {role} message")
    text = paragraphs(texts)
    if role == "assistant":
        conversation.answer(text, PARAGRAPH.join(thoughts), calls)
    elif texts or not results:
        conversation.say(role, text)
