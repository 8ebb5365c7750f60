"""What crosses between who decides on copies and the executor that makes them."""

from typing import NamedTuple


class Transfer(NamedTuple):
    """Pages to copy, and the rows of host memory, one for each."""

    pages: list[int]
    rows: list[int]


class StateTransfer(NamedTuple):
    """States of sequences to copy, by slot, and the rows of those that are kept, one for each."""

    slots: list[int]
    rows: list[int]
