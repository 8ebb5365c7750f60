"""Images in a conversation: marks within its texts, until the chat template gets them as parts of a message.

What is done to a conversation's texts on the way, to fit a template, is done to the marks as well.
"""

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from apps.llm.api import RequestError
from apps.llm.chat.reader import PARAGRAPH

Detail = Literal["low", "high", "auto"]
NONCE = secrets.token_hex(8)
"""No client knows it: what looks like a mark in a text is text."""
BEGINS, ENDS = f"\ufdd0{NONCE}:", "\ufdd1"
MARK = re.compile(f"{BEGINS}([0-9]+){ENDS}")
DATA_URL = re.compile(r"data:image/[a-z0-9.+-]+(?:;[a-z0-9=._-]+)*;base64,", re.IGNORECASE)


@dataclass(frozen=True)
class SentImage:
    """An image as a client sent it.

    Args:
        data: in base64, or its http(s) URL.
        field: where it is in the request.
        detail: low: it is scaled down to 256 tokens at most.
    """

    data: str
    field: str
    detail: Detail = "auto"
    elsewhere: bool = False
    """Whether `data` is a URL."""

    @classmethod
    def at(cls, url: str, field: str, detail: Detail | None = None) -> "SentImage":
        """The image of a URL. Raises RequestError for one of another scheme than data, http and https."""
        if (begins := DATA_URL.match(url)) is not None:
            return cls(url[begins.end() :], field, detail or "auto")
        if not url.lower().startswith(("http://", "https://")):
            raise RequestError(
                field, f"{field}: must be a data URL such as data:image/png;base64,..., or an http(s) URL"
            )
        return cls(url, field, detail or "auto", elsewhere=True)


def paragraphs(texts: Iterable[str]) -> str:
    """Texts as one, a paragraph each, but for images, which stand directly beside their neighbours."""
    joined = ""
    for text in filter(None, texts):
        apart = joined and not joined.endswith(ENDS) and not MARK.match(text)
        joined += PARAGRAPH + text if apart else text
    return joined


def mark(number: int) -> str:
    """What stands for an image in a text."""
    return f"{BEGINS}{number}{ENDS}"


def in_parts(messages: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], list[int]]:
    """The messages, with texts and images as parts where they have any, and the images' numbers in their order."""
    found: list[Mapping[str, Any]] = []
    numbers: list[int] = []
    for message in messages:
        content = message.get("content")
        pieces = MARK.split(content) if isinstance(content, str) else []
        if len(pieces) < 2:
            found.append(message)
            continue
        parts: list[dict[str, Any]] = []
        for at, piece in enumerate(pieces):
            if at % 2:
                numbers.append(int(piece))
                parts.append({"type": "image"})
            elif piece:
                parts.append({"type": "text", "text": piece})
        found.append({**message, "content": parts})
    return found, numbers
