"""What a prefix cache has stored and forgotten, for those who send requests to where their prefix is."""

import threading
from collections import deque
from itertools import islice

from apps.llm.api import CacheNews
from apps.llm.page_names import PageName

KEPT = 4096
"""Events that are kept; who has missed one of them gets all names."""


class CacheLog:
    """The names of a cache's pages, and what changed last. One thread writes it, any thread reads it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: dict[PageName, None] = {}
        self._events: deque[tuple[PageName, bool]] = deque(maxlen=KEPT)  # the name, and whether it was stored
        self._number = 0  # of events so far

    def __contains__(self, name: PageName) -> bool:
        return name in self._names

    def stored(self, name: PageName) -> None:
        with self._lock:
            self._names[name] = None
            self._note(name, True)

    def forgot(self, name: PageName) -> None:
        with self._lock:
            del self._names[name]
            self._note(name, False)

    def follow(self, news: CacheNews) -> None:
        """Take in what another log, of the same cache, says. The numbers here are this log's own."""
        with self._lock:
            if news.whole:
                self._names.clear()
                self._events.clear()  # so all who ask next get all names
                self._number += 1
            for name in news.stored:
                self._names[name] = None
                self._note(name, True)
            for name in news.forgotten:
                self._names.pop(name, None)
                self._note(name, False)

    def _note(self, name: PageName, stored: bool) -> None:
        self._events.append((name, stored))
        self._number += 1

    def since(self, number: int) -> CacheNews:
        """What changed since the news of this number; all names, if that is too long ago or never was."""
        with self._lock:
            missed = self._number - number
            if number <= 0 or not 0 <= missed <= len(self._events):
                return CacheNews(number=self._number, whole=True, stored=tuple(self._names))
            # Of each name, the last event counts.
            last: dict[PageName, bool] = {}
            for name, stored in islice(reversed(self._events), missed):
                last.setdefault(name, stored)
            return CacheNews(
                number=self._number,
                stored=tuple(name for name, stored in last.items() if stored),
                forgotten=tuple(name for name, stored in last.items() if not stored),
            )
