"""What a page pool has stored and forgotten, told to those who want the pages' tokens too."""

from apps.llm.engine.kv_events.feed import PageFeed
from apps.llm.page_names import PageName
from apps.llm.placement.cache_log import CacheLog


class PoolLog(CacheLog):
    """A page pool's log. The pool's thread writes it, any thread reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.feed: PageFeed | None = None  # hears of the same, with the pages' tokens

    def forgot(self, name: PageName) -> None:
        super().forgot(name)
        if self.feed is not None:
            self.feed.forgot(name)
