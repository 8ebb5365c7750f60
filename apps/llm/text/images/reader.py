"""Makes a model's input of images: its processor's pixels, and the tokens that stand for them."""

import hashlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from apps.llm.api import Capabilities, PromptImage, RequestError
from apps.llm.chat.images import SentImage
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.text.images.opening import decoded, opened
from apps.llm.text.images.processors import ImageProcessor, processor_for

if TYPE_CHECKING:
    from PIL.Image import Image

LOW_DETAIL = 256
"""Tokens of an image with `detail: low`."""


class ReadImage(NamedTuple):
    """An image before it has a place in a prompt: see `PromptImage`."""

    grid: tuple[int, int]
    pixels: bytes
    digest: bytes
    breaks: int

    @property
    def parts(self) -> int:
        return self.grid[0] * self.grid[1]


class SeenTokens(list[int]):
    """Token ids of a prompt, of which some stand for images."""

    def __init__(self, ids: Sequence[int], images: Sequence[PromptImage]):
        super().__init__(ids)
        self.images = tuple(images)


class ImageReader:
    """Reads images for a model.

    Args:
        token: what stands for one of an image's tokens in a prompt, and its id.
        sizes: of the engine.
        hosts: from which images are fetched.
    """

    def __init__(
        self, processor: ImageProcessor, token: tuple[str, int], sizes: Capabilities, hosts: Sequence[str] = ()
    ):
        self._processor, (self._token, self._id) = processor, token
        self._mark = processor.mark or self._token
        self._sizes, self._hosts = sizes, frozenset(hosts)

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint | None,
        spelling: Callable[[int], str | None],
        sizes: Capabilities,
        hosts: Sequence[str] = (),
    ) -> "ImageReader | None":
        """Of the checkpoint's files; None for an engine that takes no images."""
        if checkpoint is None or not sizes.image_tokens:
            return None
        config = checkpoint.json("config.json")
        token = config.get("image_token_id", config.get("image_token_index"))
        written = spelling(token) if isinstance(token, int) else None
        if written is None:
            raise ValueError(f"image_tokens: config.json's image_token_id {token!r} is no token of the tokenizer")
        beside = checkpoint.json("processor_config.json", required=False) or {}
        processor = processor_for(config, checkpoint.image_processor(), beside, spelling)
        return cls(processor, (written, token), sizes, hosts)

    def read(self, sent: Sequence[SentImage], going: Callable[[], None]) -> list[ReadImage]:
        """The images, in their order.

        Args:
            going: called before each; what it raises ends the work.

        Raises:
            RequestError: one cannot be read, or they have more tokens than fit.
        """
        found: list[ReadImage] = []
        for image in sent:
            going()
            with opened(self._file(image), image.field) as content:
                found.append(self._read(content, image))
            total = sum({each.digest: each.parts for each in found}.values())
            if total > self._sizes.image_tokens:
                raise RequestError(
                    image.field,
                    f"{image.field}: the images up to this one have {total} tokens; one request may have "
                    f"{self._sizes.image_tokens} (image_tokens): send fewer or smaller ones",
                )
        return found

    def _file(self, sent: SentImage) -> bytes:
        if not sent.elsewhere:
            return decoded(sent.data, sent.field)
        if not self._hosts:
            raise RequestError(
                sent.field, f"{sent.field}: must be a data URL: this server fetches no images (image_hosts)"
            )
        from apps.llm.text.images.fetching import fetched  # brings httpx

        return fetched(sent.data, self._hosts, sent.field)

    def _read(self, image: "Image", sent: SentImage) -> ReadImage:
        most = self._sizes.max_image_tokens
        if sent.detail == "low":
            most = min(most, LOW_DETAIL)
        try:
            grid, pixels = self._processor.patches(image, most)
        except ValueError as error:  # far longer than wide
            raise RequestError(sent.field, f"{sent.field}: the model's processor refuses the image: {error}") from error
        digest = hashlib.blake2b(repr(grid).encode() + pixels, digest_size=16).digest()
        return ReadImage(grid, pixels, digest, self._processor.breaks)

    def expanded(self, prompt: str, images: Sequence[ReadImage]) -> str:
        """A rendered chat, with a token for each of an image's.

        Raises:
            RequestError: the chat template shows other images, or a text has what stands for one.
        """
        texts = prompt.split(self._mark)
        if len(texts) != len(images) + 1:
            raise RequestError(
                "messages",
                f"messages: the prompt has {len(texts) - 1} places for {len(images)} images: the model's chat "
                f"template does not show them all, or a text has {self._mark}, which stands for one",
            )
        if self._mark != self._token and self._token in prompt:
            raise RequestError("messages", f"messages: a text has {self._token}, which stands for a part of an image")
        written = (self._processor.written(self._token, image.grid) for image in images)
        return texts[0] + "".join(places + text for places, text in zip(written, texts[1:]))

    def placed(self, ids: Sequence[int], images: Sequence[ReadImage]) -> SeenTokens:
        """The prompt's tokens with the images in their places. Raises RequestError if they do not fit them."""
        placed, at, left = list[PromptImage](), 0, list(ids)
        try:
            for image in images:
                placed.append(PromptImage(left.index(self._id, at), *image))
                at = placed[-1].end
                if left[placed[-1].start : at].count(self._id) != image.parts:
                    raise ValueError("its tokens are not together")
        except ValueError as error:
            raise RequestError("messages", "messages: the model's tokenizer does not keep its images apart") from error
        return SeenTokens(ids, placed)
