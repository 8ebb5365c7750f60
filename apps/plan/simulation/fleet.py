"""Replicas on a virtual clock behind the real router's policy, and the requests that reach them."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from apps.llm.api import CacheNews, EngineStats, TokenRequest
from apps.llm.engine.schedule.rank_choice import RankChoice
from apps.llm.engine.schedule.sequence import Sequence
from apps.llm.page_names import PageName
from apps.llm.router.engines import FleetEngines
from apps.llm.router.journey import Journey, Member
from apps.plan.simulation.rank import Listeners, SimulatedRank, sequence
from apps.plan.simulation.requests import Trace, TraceRequest, page_names
from apps.plan.simulation.timing import HostTimes, StepClock
from ray_configs.llm import EngineConfig

TOLD_EVERY = 10_000
"""Requests."""
NOTHING = EngineStats.together([])


@dataclass(frozen=True)
class SimulatedService:
    """What serves: replicas that are alike.

    Args:
        config: of a DP rank, with its own share of the batch.
        pages: of the KV cache of each DP rank.
        max_len: tokens of the longest sequence.
        max_waiting: requests that may wait, over all replicas; one more is refused.
        fronts: processes that take requests.
    """

    config: EngineConfig
    pages: int
    max_len: int
    times: StepClock
    host: HostTimes
    replicas: int = 1
    dp_ranks: int = 1
    max_waiting: int = 2**62
    fronts: int = 1


@dataclass(slots=True)
class Fate:
    """What became of a request; times in seconds since the first one's arrival."""

    arrived: float
    prompt: int
    answer: int
    cached: int = 0
    entered: float = math.nan  # had a slot for the first time
    began: float = math.nan  # its client has its first token
    ended: float = math.nan  # and its last
    refused: str = ""
    replica: int = 0

    @property
    def ttft(self) -> float:
        return self.began - self.arrived

    @property
    def tpot(self) -> float:
        """Seconds for each token after the first; nan where there is none."""
        return (self.ended - self.began) / (self.answer - 1) if self.answer > 1 else math.nan


class SimulatedReplica:
    """An engine as a router sees it: what `FleetEngines` asks of a `TokenEngine`, and nothing else."""

    def __init__(self, service: SimulatedService, told: Listeners):
        self.ranks = [
            SimulatedRank(service.config, service.pages, service.times, service.host, told, self._busy)
            for _ in range(service.dp_ranks)
        ]
        self.capabilities = SimpleNamespace(
            page_root=b"",
            page_size=service.config.page_size,
            max_batch_size=service.config.max_batch_size * service.dp_ranks,
        )
        self._choice = RankChoice(cast(Any, self.ranks), service.config, self._now)
        self._clock = 0.0

    def _now(self) -> float:
        return self._clock

    def _busy(self) -> int:
        return sum(not rank.idle for rank in self.ranks)

    def stats(self) -> EngineStats:
        return replace(
            NOTHING,
            running=sum(len(rank.scheduler.running) for rank in self.ranks),
            waiting=sum(rank.open - len(rank.scheduler.running) for rank in self.ranks),
        )

    def cache_news(self, since: Ids[int] = ()) -> list[CacheNews]:
        return [rank.cache_news(number) for rank, number in zip(self.ranks, since or [0] * len(self.ranks))]

    def add(self, seq: Sequence, now: float) -> None:
        self._clock = now
        cast(SimulatedRank, self._choice.choose([seq])).add(seq, now)


class NamedJourney(Journey):
    """A journey whose pages have the names of a trace's blocks."""

    __slots__ = ("known",)
    known: list[PageName]

    def names(self, model: PageName, page_size: int) -> list[PageName]:
        return self.known[: (len(self.request.prompt_ids) - 1) // page_size]


@dataclass
class Simulation:
    """Runs a workload on a service. Make one for each run.

    Args:
        tell: hears now and then how many requests have ended.
    """

    service: SimulatedService
    workload: Trace
    tell: Callable[[int], None] = lambda _: None
    fates: list[Fate] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not self.workload.shares:  # then the prefix cache finds nothing, and costs only time
            config = self.service.config.model_copy(update={"prefix_cache": False, "prefix_states": None})
            self.service = replace(self.service, config=config)
        told = Listeners(self._entered, self._began, self._ended)
        self.replicas = [SimulatedReplica(self.service, told) for _ in range(self.service.replicas)]
        self.ranks = [rank for replica in self.replicas for rank in replica.ranks]
        capabilities = cast(Any, self.replicas[0].capabilities)
        self._now = 0.0
        self._engines = FleetEngines(capabilities, self.service.config.max_load_share, lambda: self._now)
        self._members = [
            Member(f"replica {number}", cast(Any, replica), lambda *_: None)
            for number, replica in enumerate(self.replicas)
        ]
        for member in self._members:
            self._engines.add(member)
        self._due: list[tuple[float, int, TraceRequest, float]] = []  # a heap: when, in which order, what, sent when
        self._front_free = 0.0
        self._coming = iter(enumerate(self.workload.arrivals))  # not due yet
        self._after: dict[str, deque[tuple[int, TraceRequest]]] = {}  # by session: what waits for an end
        self._names: dict[str, list[PageName]] = {}  # by session: of its last request
        self._done = 0

    def run(self) -> list[Fate]:
        """What became of every request, in the order in which they reached an engine."""
        reacts = self.workload.reacts
        for _ in range(self.workload.concurrency or 1):
            self._expect(0.0)
        while True:
            until = self._due[0][0] if self._due else math.inf
            if reacts:
                # A step at a time, the earliest first, where one rank's end may bring another one a request.
                busy = [rank for rank in self.ranks if not rank.idle]
                first = min(busy, key=lambda rank: rank.clock, default=None)
                if first is not None and first.clock < until:
                    first.take(until if len(self.ranks) == 1 else first.clock)
                    continue
            else:
                for rank in self.ranks:
                    rank.run(until)
            if not self._due:
                return self.fates
            _, _, arrival, came = heapq.heappop(self._due)
            if self.workload.concurrency is None:
                self._expect(0.0)
            self._arrive(arrival, came, until)

    def _expect(self, now: float) -> None:
        """Let the next request come: when it is to come, or now if so many run at a time."""
        for number, arrival in self._coming:
            if arrival.after_s is not None:
                self._after.setdefault(arrival.session, deque()).append((number, arrival))
                continue
            self._come(arrival.at_s if self.workload.concurrency is None else now, number, arrival)
            return

    def _come(self, came: float, number: int, arrival: TraceRequest) -> None:
        """A request reaches a front, which takes one after another."""
        work = self.service.host.request_s
        self._front_free = max(self._front_free, came) + work / self.service.fronts
        heapq.heappush(self._due, (max(came + work, self._front_free), number, arrival, came))

    def _over(self, session: str, now: float) -> None:
        """A request has ended, or was refused."""
        self._done += 1
        if self.workload.concurrency is not None:
            self._expect(now)
        if session and self._after.get(session):
            number, arrival = self._after[session].popleft()
            self._come(now + (arrival.after_s or 0.0), number, arrival)
        if not self._done % TOLD_EVERY:
            self.tell(self._done)

    def _arrive(self, arrival: TraceRequest, came: float, now: float) -> None:
        """A request is queued, or refused.

        Args:
            came: when it was sent.
        """
        service = self.service
        number, self._now = len(self.fates), now
        fate = Fate(came, arrival.prompt, arrival.answer)
        self.fates.append(fate)
        if fate.prompt + fate.answer > service.max_len:
            fate.refused = "longer than max_model_len"
        elif fate.prompt + fate.answer > (service.pages - 1) * service.config.page_size:
            fate.refused = "longer than the KV cache"
        elif self._waiting >= service.max_waiting:
            fate.refused = "max_waiting"
        if fate.refused:
            self._over(arrival.session, now)
            return
        before = self._names.get(arrival.session, ()) if arrival.goes_on else ()
        names = page_names(arrival, number, service.config.page_size, before)
        if arrival.session:
            self._names[arrival.session] = names
        request = TokenRequest(
            id=number,
            prompt_ids=(0,) * arrival.prompt,
            limit=arrival.prompt + arrival.answer,
            session=arrival.session,
        )
        journey = NamedJourney(request, lambda _: None, None, number, id=number)
        journey.known = names
        member = self._engines.choose(journey)
        assert member is not None  # there is a replica
        member.journeys[number] = journey
        fate.replica = self._members.index(member)
        cast(SimulatedReplica, member.engine).add(sequence(request, names), now)

    @property
    def _waiting(self) -> int:
        return sum(rank.open - len(rank.scheduler.running) for rank in self.ranks)

    # -- what the ranks tell --------------------------------------------------------------------------------------

    def _entered(self, seq: Sequence, clock: float) -> None:
        fate = self.fates[seq.request.id]
        if math.isnan(fate.entered):
            fate.entered, fate.cached = clock, seq.cached_tokens

    def _began(self, seq: Sequence, clock: float) -> None:
        fate = self.fates[seq.request.id]
        if math.isnan(fate.began):
            fate.began = clock + self.service.host.token_s
            self._members[fate.replica].journeys[seq.request.id].missing = 0

    def _ended(self, seq: Sequence, clock: float) -> None:
        fate = self.fates[seq.request.id]
        fate.ended = clock + self.service.host.token_s
        del self._members[fate.replica].journeys[seq.request.id]
        self._over(seq.request.session, clock)
