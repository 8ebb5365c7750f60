"""The items of a response's input and output: messages, reasoning, calls and their results."""

import uuid
from collections.abc import Sequence
from itertools import groupby
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, TypeAdapter, field_validator, model_validator

from apps.llm.api import MAX_MESSAGES, RequestError
from apps.llm.chat.conversation import Conversation, PastCall
from apps.llm.chat.images import Detail, SentImage, paragraphs
from apps.llm.chat.reader import PARAGRAPH
from apps.serving.ingress.bodies import Body

TEXT_ONLY = "this server's models read text and images, not files or audio"


TextKind = Literal["input_text", "output_text"]


class ItemTextPart(Body):
    type: TextKind
    text: str

    @field_validator("type", mode="before")
    @classmethod
    def _is_text(cls, value: Any) -> Any:
        if value not in ("input_text", "output_text"):
            raise ValueError(f"must be input_text, output_text or input_image; {TEXT_ONLY}")
        return value


class ItemImagePart(Body):
    type: Literal["input_image"]
    image_url: str | None = None
    """A data URL."""
    file_id: str | None = None
    """Not supported."""
    detail: Detail | None = None

    @model_validator(mode="after")
    def _has_a_url(self) -> "ItemImagePart":
        if self.image_url is None:
            raise ValueError("image_url is required: a data URL; files are not supported")
        return self


class ReasoningPart(Body):
    type: Literal["reasoning_text", "summary_text"]
    text: str


def _kind(part: Any) -> str:
    kind = part.get("type") if isinstance(part, dict) else getattr(part, "type", None)
    return "an image" if kind == "input_image" else "a text"


Part = Annotated[
    Annotated[ItemTextPart, Tag("a text")] | Annotated[ItemImagePart, Tag("an image")], Discriminator(_kind)
]
Texts = str | Annotated[list[Part], Field(max_length=MAX_MESSAGES)]


def joined(texts: Texts, talk: Conversation, field: str, sees: bool = True) -> str:
    """All of a text, with marks for its images. Raises RequestError for an image in a message that can't have one."""
    if isinstance(texts, str):
        return texts
    pieces = []
    for i, part in enumerate(texts):
        if isinstance(part, ItemTextPart):
            pieces.append(part.text)
            continue
        place = f"{field}[{i}].image_url"
        if not sees:
            raise RequestError(place, f"{place}: only a user's message, or a call's output, may have an image")
        pieces.append(talk.shown(SentImage.at(part.image_url or "", place, part.detail)))
    return "".join(pieces)


class MessageItem(Body):
    type: Literal["message"] = "message"
    id: str | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Texts

    def stored(self) -> dict[str, Any]:
        """The item as stored, with its content as a list."""
        kind: TextKind = "output_text" if self.role == "assistant" else "input_text"
        text = self.content
        parts: Sequence[ItemTextPart | ItemImagePart]
        parts = [ItemTextPart(type=kind, text=text)] if isinstance(text, str) else text
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
                output = joined(item.output, talk, f"{field}.output")
                talk.result(item.call_id, output, f"{field}.call_id")
            continue
        texts, thoughts, calls = [], [], []
        for field, item in turn:
            match item:
                case MessageItem():
                    texts.append(joined(item.content, talk, f"{field}.content", sees=item.role == "user"))
                case ReasoningItem():
                    thoughts.append(item.thought())
                case CallItem():
                    calls.append(PastCall(item.call_id, shown_name(item.namespace, item.name), item.arguments))
        text = paragraphs(texts)
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


def _part(part: ItemTextPart | ItemImagePart) -> dict[str, Any]:
    if isinstance(part, ItemImagePart):
        return part.model_dump()
    return {"type": part.type, "text": part.text} | ({"annotations": []} if part.type == "output_text" else {})
