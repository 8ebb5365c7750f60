"""Responses that a replica stores in memory, each for the principal that created it."""

from dataclasses import dataclass

MAX_BYTES = 256 * 2**20
"""Maximum total size on one replica."""


@dataclass(frozen=True)
class StoredResponse:
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
        self._stored: dict[str, StoredResponse] = {}  # by id, oldest first

    def __len__(self) -> int:
        return len(self._stored)

    def put(self, response_id: str, stored: StoredResponse) -> None:
        """Stores a response, evicting the oldest ones as needed."""
        if stored.size > self._most_bytes:
            return
        self._stored[response_id] = stored
        self.bytes += stored.size
        while len(self._stored) > self.most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._stored)))

    def get(self, response_id: str, owner: str | None) -> StoredResponse | None:
        """The response; None if there is none with this id, or it belongs to another owner."""
        stored = self._stored.get(response_id)
        return stored if stored is not None and stored.owner == owner else None

    def delete(self, response_id: str, owner: str | None) -> bool:
        """Deletes a response; returns whether there was one. Responses that continue it hold a copy of its items."""
        if self.get(response_id, owner) is None:
            return False
        self._drop(response_id)
        return True

    def _drop(self, response_id: str) -> None:
        self.bytes -= self._stored.pop(response_id).size
