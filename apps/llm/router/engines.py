"""The engines of a fleet, and which of them a request goes to."""

from collections.abc import Callable, Iterator

from apps.llm.api import Capabilities
from apps.llm.engine.interface import TokenEngine
from apps.llm.placement.choice import CacheChoice, EngineLoad, home_of
from apps.llm.router.journey import Journey, Member


class FleetEngines:
    """Those that get requests, by their caches and loads. Not thread-safe."""

    def __init__(self, capabilities: Capabilities, max_load_share: float, clock: Callable[[], float]):
        self._page_root, self._page_size, self._clock = capabilities.page_root, capabilities.page_size, clock
        self._members: dict[TokenEngine, Member] = {}
        self._dismissed: list[Member] = []
        self.none_since = clock()  # while there is none
        self._choice = CacheChoice(0, self._page_size, max_load_share)

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members.values()))

    def __contains__(self, engine: TokenEngine) -> bool:
        return engine in self._members

    def add(self, member: Member) -> None:
        member.caches = [self._choice.add() for _ in member.engine.cache_news()]
        self._members[member.engine] = member

    def dismiss(self, engine: TokenEngine) -> None:
        """Give an engine no more requests. What it has it keeps until `relieved` names it."""
        self._dismissed = [each for each in self._dismissed if each.journeys]
        if (member := self._take_out(engine)) is not None:
            self._dismissed.append(member)

    def relieved(self) -> list[Member]:
        """The dismissed, once there is another engine that can go on with what they have. They keep what can't."""
        if not self._members:
            return []
        relieved = self._dismissed
        self._dismissed = [each for each in relieved if any(journey.bound for journey in each.journeys.values())]
        return relieved

    def remove(self, engine: TokenEngine) -> Member | None:
        """Take an engine out that is gone; None if it is not here any more."""
        member = next((each for each in self._dismissed if each.engine is engine), None)
        if member is None:
            return self._take_out(engine)
        self._dismissed.remove(member)
        return member

    def _take_out(self, engine: TokenEngine) -> Member | None:
        """Forget a member, and what it has cached."""
        member = self._members.pop(engine, None)
        for cache in () if member is None else member.caches:
            self._choice.remove(cache)
        if member is not None and not self._members:
            self.none_since = self._clock()
        return member

    def choose(self, journey: Journey) -> Member | None:
        """The engine for a request, reserved for it; None if none takes it now."""
        journey.missing = journey.length
        members = [each for each in self if not journey.moved or each.has_room_for(journey)]
        if len(members) < 2:
            return members[0] if members else None
        by_cache = dict[int, Member]()
        called = dict[int, str]()  # alike in all routers, where the numbers are not
        loads = dict[int, EngineLoad]()
        for member in members:
            self._hear(member)
            by_cache |= dict.fromkeys(member.caches, member)
            called |= {cache: f"{member.name} {rank}" for rank, cache in enumerate(member.caches)}
            loads |= dict.fromkeys(member.caches, member.load())
        names, now = journey.names(self._page_root, self._page_size), self._clock()
        found = self._choice.index.found(names, now)
        home = home_of(journey.request.session, called)
        cache = self._choice.choose(names, journey.length, loads, now, home)
        journey.missing -= found[cache] * self._page_size
        return by_cache[cache]

    def _hear(self, member: Member) -> None:
        """Take in what its caches have stored and forgotten."""
        index = self._choice.index
        since = [index.numbers[cache] for cache in member.caches]
        for cache, news in zip(member.caches, member.engine.cache_news(since), strict=True):
            index.apply(cache, news)
