"""Which encoded images the devices keep, and where: rows of one array, a row for each of an image's tokens."""

from collections import OrderedDict
from collections.abc import Iterable

import numpy as np

from apps.llm.api import PromptImage
from apps.llm.engine.images.placed import PlacedImages


class ImageRows:
    """Holds rows for the images of running sequences. Others stay until their rows are needed, oldest first."""

    def __init__(self, total: int):
        self.encodings = 0
        self._free = list(range(total - 1, -1, -1))
        self._rows: dict[bytes, np.ndarray] = {}
        self._users: dict[bytes, int] = {}
        self._unused: OrderedDict[bytes, None] = OrderedDict()  # oldest first
        self._encoded: set[bytes] = set()

    def hold(self, images: PlacedImages, computed: int) -> bool:
        """Get rows for the images of which some tokens are to be computed; False, and none, if there is no room."""
        wanted = {images.key(image): image for image in images.images if image.end > computed}
        self._use(wanted)  # first, so that none of them makes room for another
        missing = {key: image for key, image in wanted.items() if key not in self._rows}
        if not self._make_room(sum(image.parts for image in missing.values())):
            self._leave(wanted)
            return False
        for key, image in missing.items():
            self._rows[key] = np.array([self._free.pop() for _ in range(image.parts)], np.int32)
        images.rows = {key: self._rows[key] for key in wanted}
        return True

    def release(self, images: PlacedImages) -> None:
        """The sequence needs its rows no more. Idempotent."""
        self._leave(images.rows)
        images.rows = {}

    def to_encode(self, images: Iterable[tuple[bytes, PromptImage]]) -> list[tuple[PromptImage, np.ndarray]]:
        """Those that have no values yet, of these by their keys, with the rows for them. The caller encodes them."""
        found = {key: image for key, image in images if key not in self._encoded}
        self._encoded |= found.keys()
        self.encodings += len(found)
        return [(image, self._rows[key]) for key, image in found.items()]

    def _use(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._unused.pop(key, None)
            self._users[key] = self._users.get(key, 0) + 1

    def _leave(self, keys: Iterable[bytes]) -> None:
        for key in keys:
            self._users[key] -= 1
            if not self._users[key]:
                del self._users[key]
                if key in self._rows:
                    self._unused[key] = None

    def _make_room(self, rows: int) -> bool:
        if rows > len(self._free) + sum(len(self._rows[key]) for key in self._unused):
            return False
        while rows > len(self._free):
            key, _ = self._unused.popitem(last=False)
            self._free += self._rows.pop(key).tolist()
            self._encoded.discard(key)
        return True
