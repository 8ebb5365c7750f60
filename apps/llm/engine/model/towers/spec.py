"""What a vision tower is, apart from its weights."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Pixels:
    """How an image's bytes become numbers: `(byte * factor - mean) / std` of each channel."""

    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Tower:
    """A transformer over an image's patches, of which a square of `merge` times `merge` becomes a token."""

    layers: int
    width: int
    mlp_width: int
    heads: int
    out: int  # numbers of a token: the decoder's hidden size
    patch: int  # pixels of a patch's side
    frames: int  # that a patch has in a video; an image's are all the same
    merge: int
    grid: int  # side of the grid of learned positions, which is stretched to an image's
    channels: int = 3
    theta: float = 10000.0  # of the rotary embedding of rows and columns
    eps: float = 1e-6
    pixels: Pixels = Pixels()

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
        merged = self.width * self.patches_a_token
        block = 4 * self.width * self.width + 2 * self.width * self.mlp_width
        return self.layers * block + merged * (merged + self.out) + self.width * self.bytes_a_patch * self.frames
