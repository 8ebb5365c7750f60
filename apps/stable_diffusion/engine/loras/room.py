"""How much room there is for LoRAs."""

from typing import NamedTuple


class LoraRoom(NamedTuple):
    """What a server keeps room for."""

    slots: int
    """Combinations on the devices."""
    rank: int
    """Sum of the ranks of a combination."""
