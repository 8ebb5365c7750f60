"""A conversation as chat templates have it, made by a dialect message by message."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from apps.llm.api import RequestError
from apps.llm.chat.tools import NO_TOOLS, ToolUse

PARAGRAPH = "\n\n"
"""Between texts that are joined to one turn."""


def thinking_fields(thinks: bool) -> dict[str, bool]:
    """Variables of chat templates that let a model think before it answers, or not; a template knows one or none."""
    return {"enable_thinking": thinks, "thinking": thinks}


def effort_fields(effort: str | None) -> dict[str, Any]:
    """Variables of chat templates for OpenAI's effort of reasoning; `none` is no thinking."""
    return {} if effort is None else {"reasoning_effort": effort, **thinking_fields(effort != "none")}


@dataclass(frozen=True)
class PastCall:
    """A call in an earlier answer of the model's.

    Args:
        arguments: JSON, as the model wrote it.
        field: where the client has the arguments.
    """

    id: str
    name: str
    arguments: str
    field: str

    def parsed(self) -> dict[str, Any]:
        """Raises RequestError: they are no JSON object."""
        try:
            arguments = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise RequestError(self.field, f"{self.field} must be JSON: {error}") from None
        if not isinstance(arguments, dict):
            raise RequestError(self.field, f"{self.field} must be the JSON of an object, not of {self.arguments[:40]}")
        return arguments


class Conversation:
    """Messages, oldest first; `messages` is what a chat template is given."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._called: dict[str, str] = {}  # id -> tool, of the calls that may be answered now

    def say(self, role: str, text: str) -> None:
        """What anyone but the model says."""
        self._called = {}
        self.messages.append({"role": role, "content": text})

    def answer(self, text: str, reasoning: str | None = None, calls: Sequence[PastCall] = ()) -> None:
        """What the model said. Raises RequestError where a call's arguments cannot be read."""
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.parsed()}}
                for call in calls
            ]
        self._called = {call.id: call.name for call in calls}
        self.messages.append(message)

    def result(self, call_id: str, text: str, field: str) -> None:
        """What a tool answered. Raises RequestError, naming `field`, if it was not called just before."""
        if call_id not in self._called:
            known = f"its calls are {', '.join(self._called)}" if self._called else "that message calls none"
            raise RequestError(
                field, f"{field}: no call {call_id!r} is in the assistant's message before this result: {known}"
            )
        name = self._called[call_id]
        self.messages.append({"role": "tool", "content": text, "tool_call_id": call_id, "name": name})


@dataclass(frozen=True)
class ChatRequest:
    """A chat as a dialect hands it on: what makes its prompt, and what its answer may be.

    Args:
        messages: as a `Conversation` has them.
        template_fields: further variables of the chat template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: ToolUse = NO_TOOLS
    template_fields: Mapping[str, Any] = field(default_factory=dict)
