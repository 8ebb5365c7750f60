"""Messages and tools in bodies of OpenAI's chat completions."""

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from apps.llm.api import MAX_MESSAGES, MAX_TOOLS, RequestError
from apps.llm.chat.conversation import Conversation, PastCall
from apps.llm.chat.images import Detail, SentImage
from apps.llm.chat.tools import Tool, ToolUse
from apps.serving.ingress.bodies import Body


class TextPart(Body):
    type: Literal["text"]
    text: str


class ImageUrl(Body):
    url: str
    """A data URL."""
    detail: Detail | None = None


class ImagePart(Body):
    type: Literal["image_url"]
    image_url: ImageUrl


def _tag(part: Any) -> str:
    return f"a {part.get('type')} part" if isinstance(part, dict) else "no part"


Part = Annotated[
    Annotated[TextPart, Tag("a text part")] | Annotated[ImagePart, Tag("a image_url part")],
    Discriminator(
        _tag,
        custom_error_type="part",
        custom_error_message="must be a part of type text or image_url; audio and files are not supported",
    ),
]


class CalledFunction(Body):
    name: str
    arguments: str
    """As the model wrote them."""


class MessageCall(Body):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction

    def past(self) -> PastCall:
        return PastCall(self.id, self.function.name, self.function.arguments)


class Message(Body):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Field(max_length=MAX_MESSAGES)] | None = None
    reasoning: str | None = None
    """The assistant's reasoning; the chat template decides how much of it the model sees again."""
    reasoning_content: str | None = None
    """An older name of `reasoning`."""
    tool_calls: Annotated[list[MessageCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    """Of a tool message: the id of the call that it answers."""

    def text(self, conversation: Conversation, field: str) -> str:
        """All of its text, with marks for its images, which users and tools may send."""
        content, pieces = self.content or "", list[str]()
        if isinstance(content, str):
            return content
        for i, part in enumerate(content):
            if isinstance(part, TextPart):
                pieces.append(part.text)
                continue
            place = f"{field}.content[{i}].image_url"
            if self.role not in ("user", "tool"):
                raise RequestError(place, f"{place}: only a user's message, or a tool's, may have an image")
            pieces.append(conversation.shown(SentImage.at(part.image_url.url, f"{place}.url", part.image_url.detail)))
        return "".join(pieces)

    def join(self, conversation: Conversation, field: str) -> None:
        """Adds the message, which is at `field` of the request. Raises RequestError, which names the bad field."""
        text = self.text(conversation, field)
        if self.role == "assistant":
            reasoning = self.reasoning or self.reasoning_content
            conversation.answer(text, reasoning, [call.past() for call in self.tool_calls or ()])
        elif self.role == "tool":
            place = f"{field}.tool_call_id"
            if self.tool_call_id is None:
                raise RequestError(place, f"{place} is required: the id of the call that this message answers")
            conversation.result(self.tool_call_id, text, place)
        else:  # OpenAI's newer name for the system role; chat templates know the old one
            conversation.say("system" if self.role == "developer" else self.role, text)


class FunctionBody(Body):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of the arguments."""
    strict: bool | None = None
    """Enforces the schema whenever the model calls the tool."""


class ToolBody(Body):
    type: Literal["function"]
    function: FunctionBody


class FunctionName(Body):
    name: str


class NamedTool(Body):
    type: Literal["function"]
    function: FunctionName


ToolChoice = Literal["none", "auto", "required"] | NamedTool


def tool_use(tools: list[ToolBody], choice: ToolChoice | None, parallel: bool | None) -> ToolUse:
    """The tools and how to choose among them. Raises RequestError for a choice without tools."""
    if not tools and choice not in (None, "none"):
        raise RequestError("tool_choice", "tool_choice may only be given with tools")
    offered = [
        Tool(
            tool.function.name,
            f"tools[{i}].function",
            tool.function.description,
            tool.function.parameters,
            bool(tool.function.strict),
        )
        for i, tool in enumerate(tools)
    ]
    only = choice.function.name if isinstance(choice, NamedTool) else None
    mode = "required" if isinstance(choice, NamedTool) else choice or "auto"
    return ToolUse(offered, mode, only, parallel is not False)
