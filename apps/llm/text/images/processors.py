"""Transformers' image processors: a model's patches of an image, and what stands for it in a text."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

if TYPE_CHECKING:
    from PIL.Image import Image

TYPES = "image_processor_type", "processor_class"
"""Fields that are no settings of a processor."""


Spelling = Callable[[int], str | None]
"""A token's text by its id; None: there is no such token."""


class CutImage(NamedTuple):
    """An image's patches, those of a token together, row by row."""

    grid: tuple[int, int]  # rows and columns of tokens
    pixels: bytes  # [patches, channels, patch, patch] uint8


class ImageProcessor(Protocol):
    """Of one model."""

    breaks: int
    """Tokens after each row, which show nothing of an image."""

    @property
    def mark(self) -> str | None:
        """What stands for an image in a rendered chat; None: its token."""

    def patches(self, image: "Image", most: int) -> CutImage:
        """The patches of an image that is scaled to at most so many tokens, or as far as the model's files say.

        Raises:
            ValueError: the processor refuses it.
        """

    def written(self, token: str, grid: tuple[int, int]) -> str:
        """What stands for an image in a prompt.

        Args:
            token: what stands for one of its tokens.
        """


class QwenProcessor:
    """Source: Qwen2VLImageProcessorPil and Qwen3VLProcessor."""

    breaks, mark = 0, None

    def __init__(self, settings: Mapping[str, Any]):
        from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

        self._processor = Qwen2VLImageProcessorPil(**settings)
        self._merge: int = self._processor.merge_size
        self._frames: int = self._processor.temporal_patch_size
        self._pixels_a_token: int = (self._processor.patch_size * self._merge) ** 2

    def patches(self, image: "Image", most: int) -> CutImage:
        size = dict(self._processor.size)
        size["longest_edge"] = min(size["longest_edge"], most * self._pixels_a_token)
        size["shortest_edge"] = min(size["shortest_edge"], size["longest_edge"])
        given = self._processor(images=image, size=size, do_rescale=False, do_normalize=False)
        patches, (_, rows, columns) = np.asarray(given["pixel_values"]), np.asarray(given["image_grid_thw"])[0].tolist()
        # A patch is [channels, frames, patch, patch], and all frames are the same.
        pixels = patches.reshape(len(patches), 3, self._frames, -1)[:, :, 0].astype(np.uint8)
        return CutImage((rows // self._merge, columns // self._merge), pixels.tobytes())

    def written(self, token: str, grid: tuple[int, int]) -> str:
        return token * (grid[0] * grid[1])


class PixtralProcessor:
    """Source: PixtralImageProcessorPil and PixtralProcessor.

    Args:
        config: of config.json.
        processor: of processor_config.json.
    """

    breaks, mark = 1, None

    def __init__(self, settings: Mapping[str, Any], config: Mapping[str, Any], processor: Mapping[str, Any]):
        from transformers.models.pixtral.image_processing_pil_pixtral import PixtralImageProcessorPil

        self._processor = PixtralImageProcessorPil(**settings)
        self._patch: int = (config.get("vision_config") or {}).get("patch_size", 14)
        self._merge: int = config.get("spatial_merge_size", 2)
        self._break = processor.get("image_break_token", "[IMG_BREAK]")
        self._end = processor.get("image_end_token", "[IMG_END]")

    def patches(self, image: "Image", most: int) -> CutImage:
        side, edge = self._patch * self._merge, self._longest_edge(image, most)
        size, patch = {"longest_edge": edge}, {"height": side, "width": side}
        given = self._processor(images=image, size=size, patch_size=patch, do_rescale=False, do_normalize=False)
        return _cut(np.asarray(given["pixel_values"])[0], self._patch, self._merge)

    def _longest_edge(self, image: "Image", most: int) -> int:
        """The longest that leaves the image with at most so many tokens."""
        from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

        side, edge = self._patch * self._merge, self._processor.size["longest_edge"]
        shape = np.broadcast_to(np.uint8(0), (3, image.height, image.width))
        while edge > side:
            height, width = get_resize_output_image_size(shape, (edge, edge), (side, side), "channels_first")
            if height * width <= most * side * side:
                break
            edge -= side
        return int(edge)

    def written(self, token: str, grid: tuple[int, int]) -> str:
        row = token * grid[1]
        return (row + self._break) * (grid[0] - 1) + row + self._end


class Gemma3Processor:
    """Source: Gemma3ImageProcessorPil and Gemma3Processor.

    Args:
        config: of config.json.
        spelling: of a token by its id.

    Raises:
        ValueError: the tokenizer has no marks of images, or images have another size than the tower's.
    """

    breaks = 0

    def __init__(self, settings: Mapping[str, Any], config: Mapping[str, Any], spelling: Spelling):
        from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil

        self._processor = Gemma3ImageProcessorPil(**settings)
        vision, size = config.get("vision_config") or {}, self._processor.size
        self._patch, side = vision.get("patch_size", 16), vision.get("image_size", 224)
        if (size["height"], size["width"]) != (side, side):
            raise ValueError(f"preprocessor_config.json: size must be the vision_config's image_size, {side} by {side}")
        self._merge = side // self._patch // round(config.get("mm_tokens_per_image", 256) ** 0.5)
        self.mark, self._end = (
            _spelled(config, ("boi_token_index", "boi_token_id"), 255_999, spelling),
            _spelled(config, ("eoi_token_index", "eoi_token_id"), 256_000, spelling),
        )

    def patches(self, image: "Image", most: int) -> CutImage:
        given = self._processor(images=image, do_rescale=False, do_normalize=False)
        return _cut(np.asarray(given["pixel_values"])[0], self._patch, self._merge)

    def written(self, token: str, grid: tuple[int, int]) -> str:
        return f"\n\n{self.mark}{token * (grid[0] * grid[1])}{self._end}\n\n"


class Gemma4Processor:
    """Source: Gemma4ImageProcessorPil and Gemma4Processor.

    Args:
        config: of config.json.
        spelling: of a token by its id.

    Raises:
        ValueError: the tokenizer has no marks of images.
    """

    breaks, mark = 0, None

    def __init__(self, settings: Mapping[str, Any], config: Mapping[str, Any], spelling: Spelling):
        from transformers.models.gemma4 import image_processing_pil_gemma4 as gemma4

        self._processor = gemma4.Gemma4ImageProcessorPil(**settings)
        self._sizes: Sequence[int] = gemma4._SUPPORTED_SOFT_TOKENS
        self._begin = _spelled(config, ("boi_token_id",), 255_999, spelling)
        self._end = _spelled(config, ("eoi_token_id", "eoi_token_index"), 258_882, spelling)

    def patches(self, image: "Image", most: int) -> CutImage:
        of, most = self._processor, min(self._processor.max_soft_tokens, most)
        size = max((size for size in self._sizes if size <= most), default=self._sizes[0])
        given = of(images=image, max_soft_tokens=size, do_rescale=False, do_normalize=False)
        # Of each patch: its pixels, with their channels, and its column and row; padding has -1.
        places = np.asarray(given["image_position_ids"])[0]
        columns, rows = places.max(axis=0) + 1
        pixels = np.asarray(given["pixel_values"])[0, : rows * columns]
        whole = pixels.reshape(rows, columns, of.patch_size, of.patch_size, 3).transpose(4, 0, 2, 1, 3)
        whole = whole.reshape(3, rows * of.patch_size, columns * of.patch_size)
        return _cut(whole, of.patch_size, of.pooling_kernel_size)

    def written(self, token: str, grid: tuple[int, int]) -> str:
        return f"{self._begin}{token * (grid[0] * grid[1])}{self._end}"


def _spelled(config: Mapping[str, Any], names: Sequence[str], default: int, spelling: Spelling) -> str:
    """A mark that config.json names by its id."""
    token = next((config[name] for name in names if config.get(name) is not None), default)
    if (written := spelling(token)) is None:
        raise ValueError(f"config.json's {names[0]} {token} is no token of the tokenizer")
    return written


def _cut(pixels: np.ndarray, patch: int, merge: int) -> CutImage:
    """An image's pixels `[channels, height, width]` in patches."""
    pixels, side = pixels.astype(np.uint8), patch * merge
    rows, columns = pixels.shape[1] // side, pixels.shape[2] // side
    squares = pixels.reshape(3, rows, merge, patch, columns, merge, patch)
    return CutImage((rows, columns), squares.transpose(1, 4, 2, 5, 0, 3, 6).tobytes())


def processor_for(
    config: Mapping[str, Any], settings: Mapping[str, Any], processor: Mapping[str, Any], spelling: Spelling
) -> ImageProcessor:
    """The processor of a model whose tower is known.

    Args:
        config, processor: of config.json and processor_config.json.
        settings: how images become pixels, from the file that has it.
        spelling: of the tokenizer's tokens by their ids.

    Raises:
        ValueError: the files do not fit together.
    """
    own = {name: value for name, value in settings.items() if name not in TYPES}
    match config["model_type"]:
        case "mistral3":
            return PixtralProcessor(own, config, processor)
        case "gemma3":
            return Gemma3Processor(own, config, spelling)
        case "gemma4":
            return Gemma4Processor(own, config, spelling)
    return QwenProcessor(own)
