"""Makes a model's input of images: its processor's pixels, and the tokens that stand for them."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from apps.llm.api import Capabilities, PromptImage, RequestError
from apps.llm.chat.images import SentImage
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.text.images.fetching import fetched
from apps.llm.text.images.opening import decoded, opened

if TYPE_CHECKING:
    from PIL.Image import Image

TYPES = "image_processor_type", "processor_class"
"""Fields that are no settings of a processor."""
LOW_DETAIL = 256
"""Tokens of an image with `detail: low`."""


class ReadImage(NamedTuple):
    """An image before it has a place in a prompt: see `PromptImage`."""

    grid: tuple[int, int]
    pixels: bytes
    digest: bytes

    @property
    def tokens(self) -> int:
        return self.grid[0] * self.grid[1]


class SeenTokens(list[int]):
    """Token ids of a prompt, of which some stand for images."""

    def __init__(self, ids: Sequence[int], images: Sequence[PromptImage]):
        super().__init__(ids)
        self.images = tuple(images)


class ImageReader:
    """Reads images for a model of Qwen's.

    Args:
        settings: of preprocessor_config.json.
        token: what stands for an image in a prompt, as its chat template writes it, and its id.
        sizes: of the engine.
        hosts: from which images are fetched.
    """

    def __init__(
        self, settings: Mapping[str, Any], token: tuple[str, int], sizes: Capabilities, hosts: Sequence[str] = ()
    ):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self._token, self._id = token
        self._sizes, self._hosts = sizes, frozenset(hosts)
        self._processor = Qwen2VLImageProcessorPil(**settings)
        self._merge: int = self._processor.merge_size
        self._frames: int = self._processor.temporal_patch_size
        self._pixels_a_token: int = (self._processor.patch_size * self._merge) ** 2

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
        token = checkpoint.json("config.json").get("image_token_id")
        written = spelling(token) if isinstance(token, int) else None
        if written is None:
            raise ValueError(f"image_tokens: config.json's image_token_id {token!r} is no token of the tokenizer")
        settings = checkpoint.image_processor()
        return cls({name: settings[name] for name in settings if name not in TYPES}, (written, token), sizes, hosts)

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
            total = sum({each.digest: each.tokens for each in found}.values())
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
        return fetched(sent.data, self._hosts, sent.field)

    def _read(self, image: "Image", sent: SentImage) -> ReadImage:
        most = min(self._sizes.max_image_tokens, LOW_DETAIL if sent.detail == "low" else self._sizes.max_image_tokens)
        size = dict(self._processor.size)
        size["longest_edge"] = min(size["longest_edge"], most * self._pixels_a_token)
        size["shortest_edge"] = min(size["shortest_edge"], size["longest_edge"])
        try:
            given = self._processor(images=image, size=size, do_rescale=False, do_normalize=False)
        except ValueError as error:  # far longer than wide
            raise RequestError(sent.field, f"{sent.field}: the model's processor refuses the image: {error}") from error
        patches, (_, rows, columns) = np.asarray(given["pixel_values"]), np.asarray(given["image_grid_thw"])[0].tolist()
        grid = rows // self._merge, columns // self._merge
        # A patch is [channels, frames, patch, patch], and all frames are the same.
        pixels = patches.reshape(len(patches), 3, self._frames, -1)[:, :, 0].astype(np.uint8).tobytes()
        return ReadImage(grid, pixels, hashlib.blake2b(repr(grid).encode() + pixels, digest_size=16).digest())

    def expanded(self, prompt: str, images: Sequence[ReadImage]) -> str:
        """A rendered chat, with a token for each of an image's.

        Raises:
            RequestError: the chat template shows other images, or a text has what stands for one.
        """
        texts = prompt.split(self._token)
        if len(texts) != len(images) + 1:
            raise RequestError(
                "messages",
                f"messages: the prompt has {len(texts) - 1} places for {len(images)} images: the model's chat "
                f"template does not show them all, or a text has {self._token}, which stands for one",
            )
        return texts[0] + "".join(self._token * image.tokens + text for image, text in zip(images, texts[1:]))

    def placed(self, ids: Sequence[int], images: Sequence[ReadImage]) -> SeenTokens:
        """The prompt's tokens with the images in their places. Raises RequestError if they do not fit them."""
        places, at = list[tuple[int, int]](), 0
        for token, run in groupby(ids):
            count = len(list(run))
            if token == self._id:
                places.append((at, count))
            at += count
        if [count for _, count in places] != [image.tokens for image in images]:
            raise RequestError("messages", "messages: the model's tokenizer does not keep its images apart")
        return SeenTokens(ids, [PromptImage(start, *image) for (start, _), image in zip(places, images)])
