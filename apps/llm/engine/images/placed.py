"""The images of one sequence: where its tokens stand, and which of them show what."""

from collections.abc import Sequence

import numpy as np

from apps.llm.api import Capabilities, PromptImage, RequestError, TokenRequest
from apps.llm.engine.attention.spans import PART
from apps.llm.engine.model.architecture import Architecture


def placed(request: TokenRequest, sizes: Capabilities, arch: Architecture, root: bytes) -> "PlacedImages | None":
    """A request's images; None if it has none. See `PlacedImages` for `root`.

    Raises:
        RequestError: the engine takes no images, or not so many tokens of them.
    """
    images, tower = request.images, arch.tower
    if not images:
        return None
    if tower is None:
        raise RequestError("messages", "this model reads only text: images are not supported")
    most = min(sizes.max_image_tokens, tower.most or sizes.max_image_tokens)
    total = sum({image.digest: image.parts for image in images}.values())
    if total > sizes.image_tokens:
        raise RequestError("messages", f"the images have {total} tokens; one request may have {sizes.image_tokens}")
    for image in images:
        wrong = len(image.pixels) != image.parts * tower.patches_a_token * tower.bytes_a_patch
        wrong |= tower.every not in (None, tuple(image.grid))
        if wrong or image.breaks != tower.breaks or not image.parts or image.end > len(request.prompt_ids):
            raise RequestError("messages", "an image is not of the size that its tokens say")
        if image.parts > most:
            raise RequestError("messages", f"an image has {image.parts} tokens; at most {most} are taken")
    spatial = any(each.rope is not None and each.rope.sections for each in arch.attention)
    return PlacedImages(images, spatial, root, arch.sees_both_ways)


class PlacedImages:
    """Images in a sequence's prompt, in its order.

    Args:
        spatial: their tokens have rows and columns as positions, and the text after them goes on where the larger of
            both ends, as Qwen has it (M-RoPE; source: `Qwen3_5Model.get_rope_index` in transformers). If not, all
            tokens have the places that they stand at.
        root: what the names of the sequence's pages begin with. Encoded images are shared as far as pages are: the
            time to a first token tells no caller what others have sent.
        both_ways: an image's tokens attend to those after them, so no step may end between them. One may begin there:
            what has been computed before has seen the whole image, for which the names of pages vouch.
    """

    def __init__(self, images: Sequence[PromptImage], spatial: bool, root: bytes, both_ways: bool = False):
        self.images, self._root, self._both_ways = tuple(images), root, both_ways
        self.end = images[-1].end
        """Tokens up to the last image's end."""
        self._positions = np.tile(np.arange(self.end, dtype=np.int32), (3, 1))  # time, row and column
        self._after = 0  # what is added to the places of later tokens
        if spatial:
            for image in images:
                self._stand(image)
        self.rows: dict[bytes, np.ndarray] = {}
        """Where each image's tokens are kept while the sequence holds them, by its key: see `ImageRows`."""

    def _stand(self, image: PromptImage) -> None:
        height, width = image.grid
        first = image.start + self._after
        row, column = np.divmod(np.arange(height * width, dtype=np.int32), width)
        self._positions[0, image.start : image.end] = first
        self._positions[1, image.start : image.end] = first + row
        self._positions[2, image.start : image.end] = first + column
        self._after += max(height, width) - image.tokens
        self._positions[:, image.end :] = np.arange(image.end, self.end, dtype=np.int32) + self._after

    def key(self, image: PromptImage) -> bytes:
        """What an image is kept by."""
        return self._root + image.digest

    def within(self, start: int, stop: int) -> list[PromptImage]:
        """The images that some of these tokens show."""
        return [image for image in self.images if image.start < stop and image.end > start]

    def stop(self, start: int, stop: int, most: int) -> int:
        """How far a step may compute that would compute tokens from `start` to `stop`, or to `most` if it must.

        That is `start` where an image that comes next would end beyond `most`.
        """
        for image in self.images if self._both_ways else ():
            if image.start < stop < image.end:
                if image.start > start:
                    return image.start
                return image.end if image.end <= most else start
        return stop

    def spans(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Of these tokens, those that attend to later ones of their image, in parts of PART: the first, counted from
        `start`, how many, and the place after their image."""
        found = []
        for image in self.within(start, stop):
            first = max(start, image.start)
            # An image's last token alone sees nothing that comes after it.
            found += [(at - start, min(PART, image.end - at), image.end) for at in range(first, image.end - 1, PART)]
        return found

    def seen(self, start: int, stop: int) -> np.ndarray:
        """Of these tokens: time, row and column, and the row that stands for it, from 1: `[4, stop - start]`."""
        found = np.zeros((4, stop - start), np.int32)
        found[:3] = np.arange(start, stop) + self._after
        known = min(stop, self.end)
        if start < known:
            found[:3, : known - start] = self._positions[:, start:known]
        for image in self.within(start, stop):
            first, last = max(start, image.start), min(stop, image.end)
            row, column = np.divmod(np.arange(first - image.start, last - image.start), image.grid[1] + image.breaks)
            part, shown = row * image.grid[1] + column, column < image.grid[1]
            rows = self.rows[self.key(image)][np.where(shown, part, 0)] + 1
            found[3, first - start : last - start] = np.where(shown, rows, 0)
        return found
