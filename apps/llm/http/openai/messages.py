"""Messages and tools in bodies of OpenAI's chat completions."""

from typing import Annotated, Any, Literal

from pydantic import Field

from apps.llm.api import MAX_MESSAGES, MAX_TOOLS, RequestError
from apps.llm.chat.conversation import Conversation, PastCall
from apps.llm.chat.tools import Tool, ToolUse
from apps.serving.ingress.bodies import Body


class TextPart(Body):
    type: Literal["text"]
    text: str


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
    content: str | Annotated[list[TextPart], Field(max_length=MAX_MESSAGES)] | None = None
    reasoning: str | None = None
    """The assistant's reasoning; the chat template decides how much of it the model sees again."""
    reasoning_content: str | None = None
    """An older name of `reasoning`."""
    tool_calls: Annotated[list[MessageCall], Field(max_length=MAX_TOOLS)] | None = None
    tool_call_id: str | None = None
    """Of a tool message: the id of the call that it answers."""

    def text(self) -> str:
        content = self.content or ""
        return content if isinstance(content, str) else "".join(part.text for part in content)

    def join(self, conversation: Conversation, field: str) -> None:
        """Adds the message, which is at `field` of the request. Raises RequestError, which names the bad field."""
        if self.role == "assistant":
            reasoning = self.reasoning or self.reasoning_content
            conversation.answer(self.text(), reasoning, [call.past() for call in self.tool_calls or ()])
        elif self.role == "tool":
            place = f"{field}.tool_call_id"
            if self.tool_call_id is None:
                raise RequestError(place, f"{place} is required: the id of the call that this message answers")
            conversation.result(self.tool_call_id, self.text(), place)
        else:  # OpenAI's newer name for the system role; chat templates know the old one
            conversation.say("system" if self.role == "developer" else self.role, self.text())


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
