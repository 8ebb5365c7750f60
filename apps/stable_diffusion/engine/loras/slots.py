"""Which combinations of LoRAs are on the devices, and which pictures use them."""

from collections import OrderedDict
from collections.abc import Hashable


class SlotsTaken(Exception):
    """All slots are used by pictures of other combinations: try again when one of them has ended."""


class LoraSlots:
    """The slots 1 to `count`, each with a combination. One that no picture uses is kept until its slot is needed.

    Slot 0 is for pictures without LoRA, and is never taken.
    """

    def __init__(self, count: int) -> None:
        self._free = list(range(count, 0, -1))
        self._slots: OrderedDict[Hashable, int] = OrderedDict()  # the least recently used first
        self._users: dict[int, int] = {}

    def take(self, key: Hashable) -> tuple[int, bool]:
        """A slot for one more picture of this combination, and whether it must be written first.

        Raises:
            SlotsTaken: no slot has the combination, and none is free.
        """
        slot, new = self._slots.get(key), False
        if slot is None:
            if not self._free:
                self._evict()
            slot, new = self._free.pop(), True
            self._slots[key] = slot
        self._slots.move_to_end(key)
        self._users[slot] = self._users.get(slot, 0) + 1
        return slot, new

    def release(self, slot: int) -> None:
        """One picture less uses it."""
        if slot:
            self._users[slot] -= 1

    def forget(self, key: Hashable) -> None:
        """Free the slot of a combination that could not be written, taken once."""
        slot = self._slots.pop(key)
        self._users[slot] = 0
        self._free.append(slot)

    def _evict(self) -> None:
        for key, slot in self._slots.items():
            if not self._users[slot]:
                del self._slots[key]
                self._free.append(slot)
                return
        raise SlotsTaken
