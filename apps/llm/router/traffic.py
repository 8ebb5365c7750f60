"""The requests of a fleet: from their first engine to the last."""

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import CancelledError, Future

from apps.llm.api import LATE, EngineStopped, QueueFull, RequestError, Sink, TokenOutput, TokenRequest, UnknownAdapter
from apps.llm.engine.interface import TokenEngine
from apps.llm.router.engines import FleetEngines
from apps.llm.router.journey import Journey, Member, Pause, RequestGroup

log = logging.getLogger("podslice")

MOST_FATAL = 5
"""A request whose engines die one after another before it gets a token ends with an error: it may be the reason."""
FIRST_MOVED_ID = 2**40
"""Ids of moved requests begin here; the others keep theirs."""


class FleetTraffic:
    """Gives requests to engines, hands on what they send, and moves what an engine cannot finish. Thread-safe.

    Args:
        engines: at first none.
        clock: seconds, never back.
        resumed: told of each request that goes on after its engine was gone. It neither waits nor raises.
    """

    def __init__(
        self, engines: FleetEngines, clock: Callable[[], float], resumed: Callable[[Pause], None] = lambda _: None
    ):
        self.engines, self._clock, self._resumed = engines, clock, resumed
        self._lock = threading.RLock()  # held while outputs are handed on, so that none overtakes another
        self._journeys: dict[int, Journey] = {}  # by the ids of whoever submitted them
        self._homeless: list[Journey] = []  # wait for an engine
        self._numbers, self._moved_ids = itertools.count(), itertools.count(FIRST_MOVED_ID)
        self._closed = False
        self.moves = 0
        """Requests that went on in another engine, in all."""

    @property
    def open(self) -> int:
        return len(self._journeys)

    @property
    def homeless(self) -> int:
        """Requests that wait for an engine."""
        return len(self._homeless)

    def enter(self, engine: TokenEngine, name: str) -> None:
        """Give requests to this engine too, from now on."""
        with self._lock:
            self.engines.add(Member(name, engine, self._take))
            self._relieve()
            self._place()

    def leave(self, engine: TokenEngine) -> None:
        """Give this engine no more requests: it is drained. Those that it has move, once there is another engine."""
        with self._lock:
            self.engines.dismiss(engine)
            self._relieve()

    def _relieve(self) -> None:
        for member in self.engines.relieved():
            moving = [journey for journey in member.journeys.values() if not journey.bound]
            member.engine.abort([journey.id for journey in moving])
            self._move(member, "is drained", moving)

    def lost(self, engine: TokenEngine, reason: str) -> None:
        """This engine is gone: move what it had."""
        with self._lock:
            if (member := self.engines.remove(engine)) is not None:
                for journey in member.journeys.values():
                    journey.fatal += journey.runs
                self._move(member, reason, list(member.journeys.values()))

    def submit(self, requests: Sequence[TokenRequest], sink: Sink) -> "Future[None]":
        """See `TokenEngine.submit`. Without an engine, requests wait for one: they are queued here."""
        now = self._clock()
        group = RequestGroup([])
        for request in requests:
            ends = None if request.deadline_s is None else now + request.deadline_s
            group.journeys.append(Journey(request, sink, ends, next(self._numbers), group, id=request.id))
        with self._lock:
            if self._closed:
                raise EngineStopped("the engine is shutting down")
            self._journeys |= {journey.request.id: journey for journey in group.journeys}
            self._begin(group)
        group.queued.add_done_callback(lambda queued: self._cancelled(group) if queued.cancelled() else None)
        return group.queued

    def _begin(self, group: RequestGroup) -> None:
        """Queue requests for the first time, together."""
        first = group.journeys[0]
        member = self.engines.choose(first)
        if member is None:
            self._homeless += group.journeys
            if first.request.grammar is None and not group.queued.done():
                group.queued.set_result(None)
            return
        now = self._clock()
        for journey in group.journeys:
            member.journeys[journey.id], journey.member = journey, member
            if journey.gone is None:
                journey.heard = now
            else:  # its first engine is gone
                journey.placed, journey.again = now, journey.missing or first.missing
        done = group.compiling = member.submit([journey.beginning(now) for journey in group.journeys])
        done.add_done_callback(lambda done: self._begun(group, member, done))

    def _begun(self, group: RequestGroup, member: Member, done: "Future[None]") -> None:
        with self._lock:
            if group.compiling is not done:  # they were given to another engine since
                return
            error = CancelledError() if done.cancelled() else done.exception()
            if isinstance(error, EngineStopped):
                self.lost(member.engine, str(error))
                return
            for journey in group.journeys:
                journey.group = None
            told = group.queued.done()  # that they are queued, while they waited here for an engine
            if told and error is not None:
                self._refused(group.journeys, error)
            elif error is not None:
                self._drop(group)
            group.journeys = []  # the future's callback has the group: their prompts are not to live as long
        if not told and group.queued.set_running_or_notify_cancel():
            if error is None:
                group.queued.set_result(None)
            else:
                group.queued.set_exception(error)

    def _cancelled(self, group: RequestGroup) -> None:
        """Nobody wants to know any more whether these are queued, nor what comes of them."""
        with self._lock:
            if group.compiling is not None:
                group.compiling.cancel()
            for journey in group.journeys:
                if journey.member is not None:
                    journey.member.engine.abort([journey.id])
            self._drop(group)

    def _drop(self, group: RequestGroup) -> None:
        for journey in group.journeys:
            self._end(journey)

    def _refused(self, journeys: Iterable[Journey], error: BaseException) -> None:
        """End requests that an engine does not take, after their readers were told that they are queued."""
        for journey in journeys:
            self._end(journey)
            field = error.field if isinstance(error, RequestError) else None
            journey.sink([journey.last("error", str(error), at_fault=field)])

    def abort(self, ids: Sequence[int]) -> None:
        """See `TokenEngine.abort`."""
        with self._lock:
            for id in ids:
                journey = self._journeys.get(id)
                if journey is None:
                    continue
                journey.aborted = True
                if journey.member is not None:
                    journey.member.engine.abort([journey.id])
                else:
                    self._end(journey)
                    journey.sink([journey.last("abort")])

    def _take(self, member: Member, outputs: list[TokenOutput]) -> None:
        """Hand a member's outputs on. Called by its thread."""
        with self._lock:
            by_sink: dict[Sink, list[TokenOutput]] = {}
            now = self._clock()
            failed: str | None = None
            settled = False
            for output in outputs:
                journey = member.journeys.get(output.request)
                if journey is None:  # moved, or ended
                    continue
                if output.finish_reason in ("error", "abort") and journey.outlives(output):
                    failed = failed or output.error or "ended a request that nobody ended"
                    continue
                settled |= journey.missing > 0 and bool(output.token_ids or output.finish_reason)
                if output.token_ids and (pause := journey.resumed(now)) is not None:
                    self._resumed(pause)
                if journey.gone is None:  # else it has left a queue there, and its pause goes on
                    journey.heard = now
                seen = journey.seen(output)
                if output.finish_reason is not None:
                    self._end(journey)
                by_sink.setdefault(journey.sink, []).append(seen)
            for sink, theirs in by_sink.items():
                sink(theirs)
            if failed is not None:
                self.lost(member.engine, failed)
            elif settled and self._homeless:
                self._place()

    def _end(self, journey: Journey) -> None:
        self._journeys.pop(journey.request.id, None)
        if journey.member is not None:
            journey.member.journeys.pop(journey.id, None)
            journey.member = None
        elif journey in self._homeless:
            self._homeless.remove(journey)

    def _move(self, member: Member, reason: str, journeys: list[Journey]) -> None:
        """Let a member's requests wait for another one."""
        now = self._clock()
        if journeys:
            log.warning("%s %s: %d requests go on elsewhere", member.name, reason, len(journeys))
        for journey in journeys:
            bound = journey.bound
            del member.journeys[journey.id]
            journey.member, journey.runs = None, False
            journey.gone = now if journey.gone is None else journey.gone
            if journey.aborted:
                self._end(journey)
                journey.sink([journey.last("abort")])
            elif journey.fatal >= MOST_FATAL:
                self._end(journey)
                journey.sink([journey.last("error", f"{journey.fatal} engines ended with it, one by one: {reason}")])
            elif bound:
                self._end(journey)
                journey.sink([journey.last("error", f"{bound} (its own: {reason})")])
            else:
                journey.moved = journey.moved or journey.group is None
                self._homeless.append(journey)
        self._place()

    def _place(self) -> None:
        """Give waiting requests to engines, the most urgent first, as long as those take more."""
        self._homeless.sort(key=lambda journey: journey.urgency)
        for journey in list(self._homeless):
            if not len(self.engines):
                return
            if journey not in self._homeless:  # an engine has it, or it has ended, since this loop began
                continue
            if (group := journey.group) is not None:
                self._homeless = [each for each in self._homeless if each.group is not group]
                self._begin(group)
                continue
            member = self.engines.choose(journey)
            if member is None:
                return
            self._homeless.remove(journey)
            self._continue(journey, member)

    def _continue(self, journey: Journey, member: Member) -> None:
        journey.id, journey.member, journey.moved = next(self._moved_ids), member, True
        now = self._clock()
        journey.placed, journey.again = now, journey.missing
        member.journeys[journey.id] = journey
        self.moves += 1
        done = member.submit([journey.continuation(journey.id, now)])
        done.add_done_callback(lambda done: self._continued(journey, member, done))

    def _continued(self, journey: Journey, member: Member, done: "Future[None]") -> None:
        error = None if done.cancelled() else done.exception()
        if error is None:
            return
        with self._lock:
            if journey.member is not member:
                return
            if isinstance(error, EngineStopped):
                self.lost(member.engine, str(error))
            elif isinstance(error, QueueFull | UnknownAdapter):  # tried again at the next tick
                member.journeys.pop(journey.id, None)
                journey.member = None
                self._homeless.append(journey)
            else:
                self._refused([journey], error)

    def look(self) -> None:
        """End what waits here beyond its deadline, and place what can be placed."""
        with self._lock:
            now = self._clock()
            for journey in [each for each in self._homeless if each.ends is not None and each.ends <= now]:
                self._end(journey)
                journey.sink([journey.last("error", LATE)])
            if self._homeless:
                self._place()

    def give_up(self, reason: str) -> None:
        """End what waits here: there will be no engine for it."""
        with self._lock:
            for journey in list(self._homeless):
                self._end(journey)
                journey.sink([journey.last("error", reason, of_answer=False)])

    def close(self) -> None:
        """End all requests with an error that says so."""
        with self._lock:
            self._closed = True
            for journey in list(self._journeys.values()):
                if journey.member is not None:
                    journey.member.engine.abort([journey.id])
                self._end(journey)
                journey.sink([journey.last("error", "the engine was shut down", of_answer=False)])
