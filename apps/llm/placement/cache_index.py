"""Which pages several prefix caches have, by what they announce."""

from collections import deque
from collections.abc import Sequence

from apps.llm.api import CacheNews
from apps.llm.page_names import PageName

EXPECTED_S = 30.0
"""Pages of a prompt that was sent to a cache count as its own for so long before it announces them. Requests that share
a new prefix would otherwise spread over all caches until the first of them is computed."""


class CacheIndex:
    """The names of the pages of `caches` prefix caches. Bounded by what they hold, which they announce, and by the
    prompts of the last EXPECTED_S. Not thread-safe."""

    def __init__(self, caches: int):
        self.caches = caches
        self.numbers = [0] * caches  # of the last news of each: ask for what comes after
        self._having: dict[PageName, int] = {}  # a bit for each cache that has it
        self._expecting: dict[PageName, int] = {}
        self._until: dict[tuple[PageName, int], float] = {}
        self._expiring: deque[tuple[float, int, PageName]] = deque()  # soonest first

    def add(self) -> int:
        """The number of one cache more."""
        self.caches += 1
        self.numbers.append(0)
        return self.caches - 1

    def clear(self, cache: int) -> None:
        """Forget what a cache has and what is expected of it, and the number of its news."""
        bit = 1 << cache
        for bits in (self._having, self._expecting):
            for name in [name for name, caches in bits.items() if caches & bit]:
                _clear(bits, name, bit)
        for name, of in [key for key in self._until if key[1] == cache]:
            del self._until[name, of]
        self.numbers[cache] = 0

    def apply(self, cache: int, news: CacheNews) -> None:
        """Take in what a cache has stored and forgotten."""
        self.numbers[cache] = news.number
        bit = 1 << cache
        if news.whole:
            for name in [name for name, having in self._having.items() if having & bit]:
                _clear(self._having, name, bit)
        for name in news.stored:
            self._having[name] = self._having.get(name, 0) | bit
            _clear(self._expecting, name, bit)  # from now on, its news say whether it has it
        for name in news.forgotten:
            _clear(self._having, name, bit)

    def expect(self, cache: int, names: Sequence[PageName], now: float) -> None:
        """A prompt with these pages was sent to a cache.

        Args:
            now: seconds, by a clock that does not go back.
        """
        for name in names:
            self._expecting[name] = self._expecting.get(name, 0) | 1 << cache
            self._until[name, cache] = now + EXPECTED_S
            self._expiring.append((now + EXPECTED_S, cache, name))

    def found(self, names: Sequence[PageName], now: float) -> list[int]:
        """How many of these pages, from the first one on, each cache has or will have soon."""
        self._expire(now)
        left, counts = (1 << self.caches) - 1, [len(names)] * self.caches
        for number, name in enumerate(names):
            having = self._having.get(name, 0) | self._expecting.get(name, 0)
            for cache in range(self.caches):
                if left & ~having & 1 << cache:
                    counts[cache] = number
            left &= having
            if not left:
                break
        return counts

    def __len__(self) -> int:
        return len(self._having.keys() | self._expecting.keys())

    def _expire(self, now: float) -> None:
        while self._expiring and self._expiring[0][0] <= now:
            until, cache, name = self._expiring.popleft()
            if self._until.get((name, cache)) == until:  # not expected again since
                del self._until[name, cache]
                _clear(self._expecting, name, 1 << cache)


def _clear(bits: dict[PageName, int], name: PageName, bit: int) -> None:
    left = bits.get(name, 0) & ~bit
    if left:
        bits[name] = left
    else:
        bits.pop(name, None)
