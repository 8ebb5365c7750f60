"""A conversation in the form of chat templates; a dialect builds it message by message."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from apps.llm.api import RequestError
from apps.llm.chat.images import SentImage, mark
from apps.llm.chat.reader import PARAGRAPH
from apps.llm.chat.sendable_json import mended
from apps.llm.chat.tools import NO_TOOLS, ToolUse

PromptEnding = Literal["turn", "message", "nothing"]


def thinking_fields(thinks: bool) -> dict[str, bool]:
    """Chat template variables that turn a model's reasoning on or off; a template uses at most one of them."""
    return {"enable_thinking": thinks, "thinking": thinks}


def effort_fields(effort: str | None) -> dict[str, Any]:
    """Chat template variables for OpenAI's reasoning effort; `none` turns reasoning off."""
    return {} if effort is None else {"reasoning_effort": effort, **thinking_fields(effort != "none")}


@dataclass(frozen=True)
class PastCall:
    """A call in an earlier answer.

    Args:
        arguments: as the model wrote them, which is not always JSON.
    """

    id: str
    name: str
    arguments: str

    def shown(self) -> dict[str, Any]:
        """The arguments for the chat template, which needs an object.

        An agent sends back whatever the model wrote, beside the error that came of it: refusing that here would end
        the agent's session, while the model can do better when it sees both.
        """
        try:
            arguments = mended(json.loads(self.arguments or "{}"))
        except (ValueError, RecursionError):
            arguments = None
        return arguments if isinstance(arguments, dict) else {"invalid_arguments": self.arguments}


class Conversation:
    """Builds `messages` for the chat template, oldest first."""

    def __init__(self) -> None:
        self._parts: list[list[dict[str, Any]]] = []
        """Each message, with the results of its calls."""
        self._called: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        """id -> tool and part, of its last call."""
        self.images: list[SentImage] = []
        """By the numbers of their marks."""

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages; results come directly after the message with their calls."""
        return [message for part in self._parts for message in part]

    def shown(self, image: SentImage) -> str:
        """What stands for an image in the text of a message."""
        self.images.append(image)
        return mark(len(self.images) - 1)

    def say(self, role: str, text: str) -> None:
        """Adds a message of any role but the assistant's."""
        self._parts.append([{"role": role, "content": text}])

    def answer(self, text: str, reasoning: str | None = None, calls: Sequence[PastCall] = ()) -> None:
        """Adds an assistant message."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.shown()}}
                for call in calls
            ]
        self._parts.append([message])
        self._called |= {call.id: (call.name, self._parts[-1]) for call in calls}

    def result(self, call_id: str, text: str, field: str) -> None:
        """Adds a tool's result. Agents send messages between it and its call, for which chat templates have no place.

        Raises:
            RequestError: names `field`; no message before has this call.
        """
        if call_id not in self._called:
            known = f"the last are {', '.join(list(self._called)[-5:])}" if self._called else "it has none"
            raise RequestError(field, f"{field}: the conversation has no call {call_id!r} before this result: {known}")
        name, part = self._called[call_id]
        part.append({"role": "tool", "content": text, "tool_call_id": call_id, "name": name})


def with_system_first(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The same conversation with system messages only at its beginning, as one.

    Later ones become a paragraph of the user's message or the tool's result before them, or else of the user's next
    message. Agents send them in the middle of a conversation, which not every chat template shows or allows.
    """
    if all(message["role"] != "system" for message in messages[1:]):
        return messages
    moved: list[dict[str, Any]] = []
    texts: list[list[str]] = []  # of each, its paragraphs
    for message in messages:
        role, before = message["role"], moved[-1]["role"] if moved else None
        if role == "system" and before == "assistant":
            role = "user"
        if (role == "system" and before is not None) or (role == before == "user"):
            texts[-1].append(message["content"])
        else:
            moved.append({**message, "role": role})
            texts.append([message["content"]])
    return [message | {"content": PARAGRAPH.join(text)} for message, text in zip(moved, texts)]


@dataclass(frozen=True)
class ChatRequest:
    """A chat, independent of its dialect: the prompt's messages and the tools.

    Args:
        messages: those of a `Conversation`.
        template_fields: additional variables for the chat template.
        ending: of the prompt: the beginning of the assistant's turn, the last message without its end, or nothing.
        images: by the numbers of their marks in the messages.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: ToolUse = NO_TOOLS
    template_fields: Mapping[str, Any] = field(default_factory=dict)
    ending: PromptEnding = "turn"
    images: Sequence[SentImage] = ()
