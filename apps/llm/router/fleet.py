"""Several engines as one: each request goes where its prefix is, and goes on elsewhere when its engine is gone.

1. `submit` chooses an engine by what its cache lacks and what waits there, and reserves it in the same step.
2. Outputs pass through, and the fleet keeps each answer's tokens.
3. Once an engine has died, hangs, fails or is drained, what it had goes on in others from its last token: the same
   prompt, tokens, seed, grammar and penalties, so the same answer. Its reader sees a pause.
4. With no engine left, requests wait for the next one, until their deadlines.

A dead slice leaves a lot to compute: each survivor takes so much of it at a time, those with the nearest deadline
first, and its scheduler lets new requests in between.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace

from apps.llm.api import AdapterInfo, CacheNews, Capabilities, EngineStats, EngineStopped, Sink, TokenRequest
from apps.llm.engine.interface import TokenEngine
from apps.llm.router.adapters import FleetAdapters
from apps.llm.router.engines import FleetEngines
from apps.llm.router.journey import Pause
from apps.llm.router.traffic import FleetTraffic

log = logging.getLogger("podslice")

LOOK_S = 0.1


class Fleet:
    """A `TokenEngine` over others, its members, which join and leave at any time.

    Args:
        capabilities: of its members.
        max_load_share: see `EngineConfig`.
        kind: what a member is, in words for readers who wait for one.
        clock: seconds, never back.
        resumed: told of each request that goes on after its engine was gone. It neither waits nor raises.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        max_load_share: float = 1.05,
        kind: str = "a replica",
        clock: Callable[[], float] = time.monotonic,
        resumed: Callable[[Pause], None] = lambda _: None,
    ):
        self.capabilities = capabilities
        self._engines = FleetEngines(capabilities, max_load_share, clock)
        self._traffic = FleetTraffic(self._engines, clock, resumed)
        self._adapters = FleetAdapters(lambda: [member.engine for member in self._engines])
        self._kind, self._clock = kind, clock
        self._closing, self._failed = threading.Event(), ""
        self._looker = threading.Thread(target=self._look_on, name="podslice-fleet", daemon=True)
        self._looker.start()

    # -- members ------------------------------------------------------------------------------------------------

    def join(self, engine: TokenEngine, name: str) -> None:
        """Give requests to this engine too, from now on. It gets the fleet's adapters first. Blocks for those.

        Raises:
            ValueError: it computes other pages than the fleet's: another model, or other types.
        """
        if engine.capabilities.page_root != self.capabilities.page_root:
            raise ValueError(f"{name} serves another model, or with other types, than the other engines")
        self._adapters.join(engine, lambda: self._traffic.enter(engine, name))

    def leave(self, engine: TokenEngine) -> None:
        """Give this engine no more requests: it is drained. Those that it has move, once there is another engine."""
        self._traffic.leave(engine)

    def lost(self, engine: TokenEngine, reason: str) -> None:
        """This engine is gone: move what it had."""
        self._traffic.lost(engine, reason)

    def give_up(self, reason: str) -> None:
        """End what waits for an engine: there will be none for it."""
        self._traffic.give_up(reason)

    def fail(self, reason: str) -> None:
        """There will never be an engine for this fleet: end what waits, and fail every check from now on."""
        self._failed = reason
        self.give_up(reason)

    def has(self, engine: TokenEngine) -> bool:
        """Whether this engine is a member."""
        return engine in self._engines

    @property
    def members(self) -> list[str]:
        """The names of the engines that get requests."""
        return [member.name for member in self._engines]

    @property
    def moves(self) -> int:
        """Requests that went on in another engine, in all."""
        return self._traffic.moves

    # -- a token engine -----------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[TokenRequest], sink: Sink) -> "Future[None]":
        """See `TokenEngine.submit`. Without an engine, requests wait for one; a grammar is then looked at later."""
        return self._traffic.submit(requests, sink)

    def abort(self, ids: Sequence[int]) -> None:
        """See `TokenEngine.abort`."""
        self._traffic.abort(ids)

    def adapters(self) -> Sequence[AdapterInfo]:
        """Those that every member has."""
        return self._adapters.all()

    def load_adapter(self, name: str, location: str) -> AdapterInfo:
        """See `TokenEngine.load_adapter`: into every member, or none."""
        return self._adapters.load(name, location)

    def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        self._adapters.unload(name)

    def stats(self) -> EngineStats:
        """Of all members together, and of what waits here."""
        total = EngineStats.together([member.engine.stats() for member in self._engines])
        return replace(total, waiting=total.waiting + self._traffic.homeless)

    def cache_news(self, since: Sequence[int] = ()) -> Sequence[CacheNews]:
        """None: a fleet has no pages of its own."""
        return []

    @property
    def busy(self) -> bool:
        return self._traffic.open > 0

    def awaits(self) -> str | None:
        """A member, if there is none: see `TokenEngine.awaits`."""
        if len(self._engines):
            return None
        return f"{self._kind}, {self._clock() - self._engines.none_since:.0f} s so far"

    def check(self, step_deadline_s: float = 60.0) -> None:
        """Raises nothing while it can take requests: without an engine they wait. What is stuck is moved."""
        if self._failed:
            raise EngineStopped(self._failed)
        if self._closing.is_set() or not self._looker.is_alive():
            raise EngineStopped("the fleet has ended")

    def lose_stuck(self, step_deadline_s: float) -> None:
        """Move the requests of each member that is stuck."""
        for member in self._engines:
            try:
                member.engine.check(step_deadline_s)
            except EngineStopped as stopped:
                self.lost(member.engine, str(stopped))

    def shutdown(self) -> None:
        """Stop. Open requests fail with an error that says so; the members go on."""
        self._closing.set()
        self._looker.join(timeout=10)
        self._traffic.close()

    def _look_on(self) -> None:
        while not self._closing.wait(LOOK_S):
            try:
                self._traffic.look()
            except Exception:
                log.exception("the fleet's turn failed")
