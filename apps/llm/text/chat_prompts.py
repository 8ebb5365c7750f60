"""Prompts of chats: a model's template, its tokens, and the images between them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from apps.llm.api import RequestError
from apps.llm.chat.conversation import ChatRequest
from apps.llm.chat.images import in_parts
from apps.llm.chat.model_format import ModelFormat, Turn
from apps.llm.text.images.reader import ImageReader
from apps.llm.text.tokenizer.limits import TokenLimit
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer


@dataclass(frozen=True)
class ChatPrompts:
    """Makes prompts of chats with one model.

    Args:
        images: reads images; None: the engine takes none.
    """

    tokenizer: ModelTokenizer
    images: ImageReader | None = None

    def made(
        self, format_: ModelFormat, request: ChatRequest, limit: TokenLimit | None, going: Callable[[], None]
    ) -> tuple[list[int], Turn]:
        """A prompt, and the turn that reads its answers: see `Engine.chat`."""
        format_.check(request)
        if request.images:
            return self._with_images(format_, request, limit, going)
        prompt = format_.rendered(request, partial(self.tokenizer.render, ending=request.ending))
        return self.tokenizer.encode_suffix(prompt, limit, going), format_.turn(request, prompt)

    def _with_images(
        self, format_: ModelFormat, request: ChatRequest, limit: TokenLimit | None, going: Callable[[], None]
    ) -> tuple[list[int], Turn]:
        if self.images is None:
            field = request.images[0].field
            raise RequestError(field, f"{field}: this server's model reads only text, not images")
        order: list[int] = []

        def render(messages: Sequence[Mapping[str, Any]], tools: Any, fields: Any) -> str:
            parts, order[:] = in_parts(messages)
            return self.tokenizer.render(parts, tools, fields, request.ending)

        prompt = format_.rendered(request, render)
        read = self.images.read([request.images[number] for number in order], going)
        ids = self.tokenizer.encode_suffix(self.images.expanded(prompt, read), limit, going)
        return self.images.placed(ids, read), format_.turn(request, prompt)
