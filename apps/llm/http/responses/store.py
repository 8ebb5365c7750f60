"""Responses that a replica keeps in its memory, each for the principal that made it."""

from dataclasses import dataclass

MAX_BYTES = 256 * 2**20
"""What all of them may take together, of one replica."""


@dataclass(frozen=True)
class KeptResponse:
    """One response.

    Args:
        owner: the principal whose key made it; None: there are no keys.
        response: the whole response, JSON.
        items: what the model read, earlier turns included: a JSON list of items.
    """

    owner: str | None
    response: bytes
    items: bytes

    @property
    def size(self) -> int:
        return len(self.response) + len(self.items)


class ResponseStore:
    """Keeps the newest ones.

    Args:
        most: how many; 0: none.
        most_bytes: of all together. A single response of more is not kept.
    """

    def __init__(self, most: int, most_bytes: int = MAX_BYTES):
        self.most, self._most_bytes = most, most_bytes
        self.bytes = 0
        self._kept: dict[str, KeptResponse] = {}  # by id, oldest first

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, response_id: str, kept: KeptResponse) -> None:
        """The oldest ones make room for it."""
        if kept.size > self._most_bytes:
            return
        self._kept[response_id] = kept
        self.bytes += kept.size
        while len(self._kept) > self.most or self.bytes > self._most_bytes:
            self._drop(next(iter(self._kept)))

    def get(self, response_id: str, owner: str | None) -> KeptResponse | None:
        """None: there is none of this id, or it is another's."""
        kept = self._kept.get(response_id)
        return kept if kept is not None and kept.owner == owner else None

    def delete(self, response_id: str, owner: str | None) -> bool:
        """Whether there was one. What was continued from it has its conversation, and stays."""
        if self.get(response_id, owner) is None:
            return False
        self._drop(response_id)
        return True

    def _drop(self, response_id: str) -> None:
        self.bytes -= self._kept.pop(response_id).size
