"""What a page pool has stored and forgotten, told to those who want the pages' tokens too."""

from apps.llm.engine.kv_events.feed import PageFeed
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.page_names import PageName
from apps.llm.placement.cache_log import CacheLog


class PoolLog(CacheLog):
    """A page pool's log. The pool's thread writes it, any thread reads it.

    The log itself has a name as long as the page is on the devices or in host memory; the feed hears of either.
    """

    def __init__(self) -> None:
        super().__init__()
        self.feed: PageFeed | None = None  # hears of the same, with the pages' tokens
        self._twice: set[PageName] = set()  # both on the devices and in host memory

    def stored(self, name: PageName, on_host: bool = False) -> None:
        if name in self:
            self._twice.add(name)
        else:
            super().stored(name)
        if on_host and self.feed is not None:
            self.feed.kept(name)

    def tell(self, seq: Sequence, number: int) -> None:
        """Tell the feed, where there is one, of a page stored on the devices: the sequence's page of this number."""
        if self.feed is not None:
            self.feed.stored(seq, number)

    def forgot(self, name: PageName, on_host: bool = False) -> None:
        if name in self._twice:
            self._twice.remove(name)
        else:
            super().forgot(name)
        if self.feed is not None:
            self.feed.forgot(name, on_host)
