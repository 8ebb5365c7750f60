"""What crosses between who decides on pages in host memory and the executor that copies them."""

from typing import NamedTuple


class Transfer(NamedTuple):
    """Pages to copy, and the rows of host memory, one for each."""

    pages: list[int]
    rows: list[int]
