"""What happens to the pages of a DP rank's prefix cache, in order, with the tokens in them."""

from queue import SimpleQueue
from typing import NamedTuple

from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.page_names import PageName


class StoredPage(NamedTuple):
    """A full page that later prompts can use."""

    name: PageName
    parent: PageName | None  # of the page before it; None: it is a prompt's first
    token_ids: tuple[int, ...]
    adapter: bytes | None  # key of the LoRA adapter that computed it
    salts: tuple[str, ...]  # with which alone it is found


class MovedPage(NamedTuple):
    """A page that host memory has got or lost, or that the devices have lost."""

    name: PageName
    stored: bool
    on_host: bool


class PageFeed:
    """Takes the events from the engine's thread; another one reads them from `events`."""

    def __init__(self, page_size: int):
        self.events: SimpleQueue[StoredPage | MovedPage | None] = SimpleQueue()  # None: the end
        self._page_size = page_size

    def stored(self, seq: Sequence, number: int) -> None:
        """The sequence's page of this number is in the cache under its name."""
        first = number * self._page_size
        self.events.put(
            StoredPage(
                seq.hashes[number],
                seq.hashes[number - 1] if number else None,
                tuple(seq.tokens[first : first + self._page_size]),
                seq.request.adapter,
                seq.request.cache_salts,
            )
        )

    def kept(self, name: PageName) -> None:
        """Host memory has a copy of the page."""
        self.events.put(MovedPage(name, stored=True, on_host=True))

    def forgot(self, name: PageName, on_host: bool = False) -> None:
        self.events.put(MovedPage(name, stored=False, on_host=on_host))
