"""Chooses a prefix cache for each request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b

from apps.llm.page_names import PageName
from apps.llm.placement.cache_index import CacheIndex

HALF_LIFE_S = 600.0
"""Work that was given out so long ago counts half in a cache's share."""
SLACK_TOKENS = 8192
"""By which shares may differ anyway: after a few short prompts a share says nothing."""
WAITING_WEIGHT = 0.25
"""Of a token that others wait for, against one that the request itself has to compute. On a trace of conversations
(`python -m tools.route_trace`), 1 finds an eighth fewer cached pages, and half of the requests wait longer."""
OPEN_TOKENS = 64
"""A sequence that decodes weighs as much as so many tokens that wait: it takes a part of every step."""
SESSION_TOKENS = 256
"""What it is worth to stay where a session's other requests go, in tokens to compute. Pages that a cache is known to
have count as such; this is for what only the client knows."""


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What a cache's engine has to do."""

    waiting: int = 0  # tokens of prompts still to be computed
    open: int = 0  # sequences that wait or run
    full: bool = False  # a request would wait for one of those to end


class CacheChoice:
    """Gives requests to caches: to the one with the fewest tokens to compute, its queue included at a discount. It
    chooses and reserves in one step, so a burst of requests does not run after one another to one cache.

    No cache gets more than `max_share` times the mean of the tokens computed (of late, see HALF_LIFE_S), with
    SLACK_TOKENS and one request's tokens on top: beyond that, a cached prefix draws nobody there. Not thread-safe.
    """

    def __init__(self, caches: int, page_size: int, max_share: float):
        self.index, self.page_size, self.max_share = CacheIndex(caches), page_size, max_share
        self._work = [0.0] * caches  # tokens that each was given to compute
        self._removed = set[int]()
        self._decayed = 0.0  # when that was last discounted

    def add(self) -> int:
        """The number of one cache more, perhaps that of one that was removed.

        It has nothing yet, and as much work behind it as the others at the mean: it is not to be given all that comes
        until it has caught up.
        """
        others = [work for cache, work in enumerate(self._work) if cache not in self._removed]
        mean = sum(others) / len(others) if others else 0.0
        if self._removed:
            cache = self._removed.pop()
            self._work[cache] = mean
            return cache
        self._work.append(mean)
        return self.index.add()

    def remove(self, cache: int) -> None:
        """A cache is gone, with all that it had."""
        self.index.clear(cache)
        self._removed.add(cache)

    def choose(
        self,
        names: Sequence[PageName],
        tokens: int,
        loads: Mapping[int, EngineLoad],
        now: float,
        home: int | None = None,
    ) -> int:
        """The number of the cache that a request goes to.

        Args:
            names: of its prompt's full pages, as many as may be reused.
            tokens: of the prompt.
            loads: of each cache's engine, by the cache's number; one that is absent gets nothing.
            now: seconds, by a clock that does not go back.
            home: the cache of the request's session, if it has one: see `home_of`.
        """
        missing = [max(1, tokens - found * self.page_size) for found in self.index.found(names, now)]
        self._decay(now)
        total = sum(self._work[cache] for cache in loads)
        least = min(loads, key=lambda cache: self._work[cache])
        fair = [
            cache
            for cache in loads
            if cache == least or self._work[cache] <= self.max_share * total / len(loads) + SLACK_TOKENS
        ]

        def cost(cache: int) -> tuple[bool, float, float]:
            load = loads[cache]
            queue = load.waiting + OPEN_TOKENS * load.open
            saved = SESSION_TOKENS if cache == home else 0
            return load.full, missing[cache] + WAITING_WEIGHT * queue - saved, self._work[cache]

        chosen = min(fair, key=cost)
        self._work[chosen] += missing[chosen]
        self.index.expect(chosen, names, now)
        return chosen

    def _decay(self, now: float) -> None:
        kept = 0.5 ** ((now - self._decayed) / HALF_LIFE_S)
        self._work, self._decayed = [work * kept for work in self._work], now


def home_of(session: str, caches: Mapping[int, str]) -> int | None:
    """The cache to which a session's requests go, all else being equal; None without a session.

    All who know the caches by the same names choose the same one, and where one comes or goes, only the sessions move
    that go to it or were there (rendezvous hashing).
    """
    if not session:
        return None
    return max(caches, key=lambda cache: blake2b(f"{session} {caches[cache]}".encode(), digest_size=8).digest())
