"""What a vision tower is, apart from its weights."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Pixels:
    """How an image's bytes become numbers: `(byte * factor - mean) / std` of each channel.

    The defaults are CLIP's, which most image processors of these towers have where their files say nothing.
    """

    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.48145466, 0.4578275, 0.40821073)
    std: tuple[float, ...] = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, kw_only=True)
class Tower:
    """A transformer over an image's patches, of which a square of `merge` times `merge` becomes a token."""

    layers: int
    width: int
    mlp_width: int
    heads: int
    out: int  # numbers of a token: the decoder's hidden size
    patch: int  # pixels of a patch's side
    merge: int
    channels: int = 3
    theta: float = 10000.0  # of the rotary embedding of rows and columns
    pixels: Pixels = Pixels()

    @property
    def breaks(self) -> int:
        """Tokens of a prompt after each row of an image's, which show nothing of it."""
        return 0

    @property
    def every(self) -> tuple[int, int] | None:
        """Rows and columns of tokens that each image has; None: they follow from its size."""
        return None

    @property
    def least(self) -> int:
        """Tokens that there must be room for, or no image is taken."""
        return math.prod(self.every or ())

    @property
    def most(self) -> int | None:
        """Tokens of the largest image, where its files say it."""
        return math.prod(self.every) if self.every else None

    @property
    def features(self) -> int:
        """Numbers that the decoder gets of a token, at all of its layers together."""
        return self.out

    @property
    def bytes_a_patch(self) -> int:
        """Of an image: one for each channel of each pixel."""
        return self.channels * self.patch * self.patch

    @property
    def patches_a_token(self) -> int:
        return self.merge * self.merge

    @property
    def num_params(self) -> int:
        """Without biases, norms and positions."""
        block = (4 * self.width + self._mlp_matrices * self.mlp_width) * self.width
        return self.layers * block + self._around

    @property
    def _mlp_matrices(self) -> int:
        return 2

    @property
    def _around(self) -> int:
        """Parameters before the first block, and after the last."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class _OfFrames(Tower):
    """Qwen's, whose patches have several frames."""

    frames: int  # that a patch has in a video; an image's are all the same

    @property
    def _around(self) -> int:
        merged = self.width * self.patches_a_token
        return merged * (merged + self.out) + self.width * self.bytes_a_patch * self.frames


@dataclass(frozen=True, kw_only=True)
class QwenVision(_OfFrames):
    """Qwen3.5's and Qwen3-VL's."""

    grid: int  # side of the grid of learned positions, which is stretched to an image's
    seen_after: tuple[int, ...] = ()
    """Blocks whose outputs the decoder gets, too: it adds the first one's to its own first layer's, and so on
    (DeepStack, https://arxiv.org/abs/2406.04334)."""

    @property
    def features(self) -> int:
        return self.out * (1 + len(self.seen_after))

    @property
    def _around(self) -> int:
        merged = self.width * self.patches_a_token
        return super()._around + len(self.seen_after) * merged * (merged + self.out)


@dataclass(frozen=True, kw_only=True)
class WindowedVision(_OfFrames):
    """Qwen2.5-VL's."""

    window: int  # patches along a window's side
    whole: tuple[int, ...]  # blocks that attend to a whole image

    @property
    def _mlp_matrices(self) -> int:
        return 3


@dataclass(frozen=True, kw_only=True)
class PixtralVision(Tower):
    """Pixtral's, with Mistral 3's projector."""

    activation: Literal["gelu", "silu"]
    eps: float  # of the projector's norm
    bias: bool  # in the projector

    @property
    def breaks(self) -> int:
        return 1  # [IMG_BREAK], and [IMG_END] after the last row

    @property
    def _mlp_matrices(self) -> int:
        return 3

    @property
    def _around(self) -> int:
        merging = self.width * self.width * self.patches_a_token
        return merging + self.out * (self.width + self.out) + self.width * self.bytes_a_patch


@dataclass(frozen=True, kw_only=True)
class SiglipVision(Tower):
    """SigLIP's, with Gemma 3's pooling and projector."""

    side: int  # patches along each side of every image
    eps: float

    @property
    def every(self) -> tuple[int, int]:
        return self.side // self.merge, self.side // self.merge

    @property
    def _around(self) -> int:
        return self.width * (self.bytes_a_patch + self.side**2 + self.out)


@dataclass(frozen=True, kw_only=True)
class Gemma4Vision(Tower):
    """Gemma 4's, whose images keep their shape and have up to a number of tokens that is one of a few."""

    largest: int  # tokens of the largest image
    positions: int  # rows, and columns, that have embeddings
    eps: float
    standardized: bool  # what is pooled has an offset and a scale of its own
    clipped: bool  # products have bounds

    @property
    def least(self) -> int:
        return 70

    @property
    def most(self) -> int:
        return self.largest

    @property
    def _mlp_matrices(self) -> int:
        return 3

    @property
    def _around(self) -> int:
        return self.width * (self.bytes_a_patch + self.out)
