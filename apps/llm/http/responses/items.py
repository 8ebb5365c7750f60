"""The items of a response's input and output: messages, reasoning, calls and their results."""

import uuid
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, field_validator

from apps.llm.api import MAX_MESSAGES
from apps.llm.chat.conversation import PARAGRAPH, Conversation, PastCall
from apps.serving.ingress.bodies import Body

TEXT_ONLY = "this server's models read only text, not images, files or audio"


TextKind = Literal["input_text", "output_text"]


class ItemTextPart(Body):
    type: TextKind
    text: str

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        if value not in ("input_text", "output_text"):
            raise ValueError(f"must be input_text or output_text; {TEXT_ONLY}")
        return value


class ReasoningPart(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: str


Texts = str | Annotated[list[ItemTextPart], Field(max_length=MAX_MESSAGES)]


def joined(texts: Texts) -> str:
    return texts if isinstance(texts, str) else "".join(part.text for part in texts)


class MessageItem(Body):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts

    def stored(self) -> dict[str, Any]:
        """The item as stored, with its content as a list."""
        kind: TextKind = "output_text" if self.role == "assistant" else "input_text"
        parts = [ItemTextPart(type=kind, text=self.content)] if isinstance(self.content, str) else self.content
        about = {"id": self.id or new_id("msg"), "type": "message", "status": "completed", "role": self.role}
        return about | {"content": [_part(part) for part in parts]}


class CallItem(Body):
    type: Literal["function_call"]
    id: str | None = None
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str

    def stored(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True) | {"id": self.id or new_id("fc"), "status": "completed"}


class ResultItem(Body):
    type: Literal["function_call_output"]
    id: str | None = None
    call_id: str
    output: Texts

    def stored(self) -> dict[str, Any]:
        return self.model_dump() | {"id": self.id or new_id("fco"), "status": "completed"}


Thoughts = Annotated[list[ReasoningPart], Field(max_length=MAX_MESSAGES)]


class ReasoningItem(Body):
    type: Literal["reasoning"]
    id: str | None = None
    content: Thoughts | None = None
    summary: Thoughts | None = None

    def stored(self) -> dict[str, Any]:
        return self.model_dump() | {"id": self.id or new_id("rs"), "summary": self.model_dump()["summary"] or []}

    def thought(self) -> str:
        """The reasoning, or else its summary."""
        return PARAGRAPH.join(part.text for part in self.content or self.summary or ())


def _tag(item: Any) -> str:
    kind = item.get("type", "message" if "role" in item else None) if isinstance(item, dict) else None
    return f"a {kind} item"


Item = Annotated[
    Annotated[MessageItem, Tag("a message item")]
    | Annotated[CallItem, Tag("a function_call item")]
    | Annotated[ResultItem, Tag("a function_call_output item")]
    | Annotated[ReasoningItem, Tag("a reasoning item")],
    Discriminator(
        _tag,
        custom_error_type="item",
        custom_error_message="must be an item of type message, function_call, function_call_output or reasoning",
    ),
]
ITEMS: TypeAdapter[list[Item]] = TypeAdapter(list[Item])
Placed = tuple[str, Item]
"""An item, and its path in the client's request."""


def shown_name(namespace: str | None, name: str) -> str:
    """A function's name for the model, whose chat template knows no namespaces."""
    return name if namespace is None else f"{namespace}__{name}"


def new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def placed(field: str, items: Sequence[Item]) -> list[Placed]:
    return [(f"{field}[{i}]", item) for i, item in enumerate(items)]


def conversation(items: Sequence[Placed]) -> Conversation:
    """The conversation for the chat template. Consecutive items of one role are one turn, with a paragraph for each.

    Raises:
        RequestError: a result has no call.
    """
    talk = Conversation()
    for role, turn in groupby(items, key=lambda each: _role(each[1])):
        if role == "tool":
            for field, item in turn:
                assert isinstance(item, ResultItem)
                talk.result(item.call_id, joined(item.output), f"{field}.call_id")
            continue
        texts, thoughts, calls = [], [], []
        for _, item in turn:
            match item:
                case MessageItem():
                    texts.append(joined(item.content))
                case ReasoningItem():
                    thoughts.append(item.thought())
                case CallItem():
                    calls.append(PastCall(item.call_id, shown_name(item.namespace, item.name), item.arguments))
        text = PARAGRAPH.join(filter(None, texts))
        if role == "assistant":
            talk.answer(text, PARAGRAPH.join(thoughts), calls)
        else:
            talk.say(role, text)
    return talk


def _role(item: Item) -> str:
    """The role of the turn that an item belongs to, as chat templates name it."""
    if isinstance(item, ResultItem):
        return "tool"
    if isinstance(item, MessageItem) and item.role != "assistant":
        return "system" if item.role == "developer" else item.role
    return "assistant"


def _part(part: ItemTextPart) -> dict[str, Any]:
    return {"type": part.type, "text": part.text} | ({"annotations": []} if part.type == "output_text" else {})
