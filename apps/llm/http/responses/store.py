"""Responses that a replica stores in memory, each for the principal that created it."""

from dataclasses import dataclass

MAX_BYTES = 256 * 2**20
"""Maximum total size on one replica."""


@dataclass(frozen=True)
class KeptResponse:
    """One response.

    Args:
        owner: principal of the key that created it; None if there are no keys.
        response: the complete response, JSON.
        items: the model's input, earlier turns included: a JSON list of items.
    """

    owner: str | None
    response: bytes
    items: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items)


class ResponseStore:
    """Stores the newest responses.

    Args:
        most: maximum number of responses; 0 stores none.
        most_bytes: maximum total size. A single larger response is not stored.
    """

    def __init__(self, most: int, most_bytes: int = MAX_BYTES):
        self.most, self._most_bytes = most, most_bytes
        self.bytes = 0
        self._kept: dict[str, KeptResponse] = {}  # by id, oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, response_id: str, kept: KeptResponse) -> None:
        """Stores a response, evicting the oldest ones as needed."""
        if kept.size > self._most_bytes:
            return
        self._kept[response_id] = kept
        self.bytes += kept.size
        while len(self._kept) > self.most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, response_id: str, owner: str | None) -> KeptResponse | None:
        """The response; None if there is none with this id, or it belongs to another owner."""
        kept = self._kept.get(response_id)
        return kept if kept is not None and kept.owner == owner else None

    def delete(self, response_id: str, owner: str | None) -> bool:
        """Deletes a response; returns whether there was one. Responses that continue it hold a copy of its items."""
        if self.get(response_id, owner) is None:
            return False
        self._drop(response_id)
        return True

    def _drop(self, response_id: str) -> None:
        self.bytes -= self._kept.pop(response_id).size
