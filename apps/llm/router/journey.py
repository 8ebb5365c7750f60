"""A request on its way through a fleet, and the engine that has it: each knows the other."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import msgspec

from apps.llm.api import Capabilities, EngineStats, FinishReason, Sink, TokenOutput, TokenRequest
from apps.llm.engine.interface import TokenEngine
from apps.llm.page_names import PageName, page_names, page_root
from apps.llm.placement.choice import EngineLoad

PREFILL_IN_FLIGHT = 16_384
"""Tokens of moved requests that an engine may have to compute at a time; one request of any length always may."""

Taken = Callable[["Member", list[TokenOutput]], None]


@dataclass(frozen=True, slots=True)
class Pause:
    """What a reader waited for because its engine was gone, in seconds, from its last token before to the next one.

    A reader who had no token yet counts from when its engine last sent anything for it, or got it.
    """

    noticed: float  # until the engine was known to be gone; a step's own time is in it
    placed: float  # until another one had the request
    computed: float  # until the next token: prompt and answer so far are computed again, behind what runs there
    tokens: int  # that had to be computed

    @property
    def whole(self) -> float:
        """All of it."""
        return self.noticed + self.placed + self.computed


@dataclass(eq=False, slots=True)
class RequestGroup:
    """Requests that were submitted together: they share a prompt and a grammar, and are queued all or none."""

    journeys: "list[Journey]"
    queued: "Future[None]" = field(default_factory=Future)
    compiling: "Future[None] | None" = None  # an engine's word that it has queued them


@dataclass(eq=False, slots=True)
class Journey:
    """One request."""

    request: TokenRequest
    sink: Sink
    ends: float | None  # when its deadline passes, by the fleet's clock; None: never
    number: int  # in the order of arrival
    group: RequestGroup | None = None  # until it is queued for the first time
    member: "Member | None" = None  # whose engine has it; None: it waits for one
    id: int = 0  # by which that engine knows it
    tokens: list[int] = field(default_factory=list)  # the answer so far
    cached_tokens: int = 0  # of its prompt, where it first ran
    entered: bool = False  # has left a queue, anywhere
    runs: bool = False  # has left the queue where it is
    moved: bool = False
    aborted: bool = False
    missing: int = 0  # tokens that its engine has to compute before its next one comes
    fatal: int = 0  # engines that died with it, one after another, since its last token
    heard: float = 0.0  # when its engine last sent something of it, or got it first
    gone: float | None = None  # when that engine was known to be gone; None: it was not
    placed: float = 0.0  # when another one got it
    again: int = 0  # tokens that had to be computed there

    @property
    def length(self) -> int:
        """Tokens to compute before its next one, if nothing of it is cached."""
        request = self.request
        return len(request.prompt_ids) + len(request.suffix or request.answer_ids) + len(self.tokens)

    @property
    def bound(self) -> str | None:
        """Why it can't go on in another engine than its own, if it can't."""
        if self.member is None or not self.tokens:
            return None
        return self.member.capabilities.cannot_continue(self.request)

    @property
    def urgency(self) -> tuple[float, int]:
        """The order in which those that wait for an engine go."""
        return (float("inf") if self.ends is None else self.ends), self.number

    def _left(self, now: float) -> float | None:
        return None if self.ends is None else max(0.0, self.ends - now)

    def beginning(self, now: float) -> TokenRequest:
        """The request as the first engine gets it, perhaps after a wait."""
        return self.request if self.ends is None else msgspec.structs.replace(self.request, deadline_s=self._left(now))

    def continuation(self, id: int, now: float) -> TokenRequest:
        """The rest of it, as a request for another engine."""
        return msgspec.structs.replace(
            self.request,
            id=id,
            answer_ids=(*self.request.answer_ids, *self.tokens),
            deadline_s=self._left(now),
            moved=True,
        )

    def names(self, model: PageName, page_size: int) -> list[PageName]:
        """Of its full pages so far, without that of its last token, which is computed in any case."""
        request = self.request
        root = page_root(model, request.adapter or b"", request.cache_salts)
        tokens = [*request.prompt_ids, *request.answer_ids, *self.tokens][:-1]
        return page_names(root, tokens, page_size, request.images)

    def seen(self, output: TokenOutput) -> TokenOutput:
        """Note an output of its engine; returns it as its reader sees it."""
        if output.token_ids:
            self.tokens += output.token_ids
            self.missing = self.fatal = 0
        if output.entered_ns:
            self.runs = True
            if not self.entered:
                self.entered, self.cached_tokens = True, output.cached_tokens
        if not self.moved:
            return output
        return msgspec.structs.replace(output, request=self.request.id, cached_tokens=self.cached_tokens)

    def outlives(self, output: TokenOutput) -> bool:
        """Whether the engine, and not the request, is the reason of this failure."""
        if output.finish_reason == "abort":
            return not self.aborted
        return not output.of_answer and output.at_fault is None

    def resumed(self, now: float) -> Pause | None:
        """How long its reader waited, if this is the first token since its engine was gone."""
        if self.gone is None:
            return None
        pause = Pause(self.gone - self.heard, self.placed - self.gone, now - self.placed, self.again)
        self.gone = None
        return pause

    def last(
        self,
        reason: FinishReason,
        error: str | None = None,
        of_answer: bool = True,
        at_fault: str | None = None,
    ) -> TokenOutput:
        """An output that ends it without another token; see `TokenOutput`."""
        return TokenOutput(
            request=self.request.id,
            finish_reason=reason,
            error=error,
            of_answer=of_answer and error is not None,
            at_fault=at_fault,
            cached_tokens=self.cached_tokens,
        )


class Member:
    """One engine, and the requests that it has of this fleet.

    Args:
        taken: gets its outputs, from its thread.
    """

    def __init__(self, name: str, engine: TokenEngine, taken: Taken):
        self.name, self.engine, self._taken = name, engine, taken
        self.capabilities: Capabilities = engine.capabilities
        self.journeys: dict[int, Journey] = {}  # by the ids that the engine knows
        self.caches: list[int] = []  # numbers of its DP ranks' caches

    def sink(self, outputs: list[TokenOutput]) -> None:
        """See `Sink`: of all requests that the engine has of this fleet, so that a step's outputs stay together."""
        self._taken(self, outputs)

    def submit(self, requests: Sequence[TokenRequest]) -> "Future[None]":
        """As `TokenEngine.submit`; what that raises, the future fails with."""
        try:
            return self.engine.submit(requests, self.sink)
        except BaseException as error:
            failed = Future[None]()
            failed.set_exception(error)
            return failed

    def has_room_for(self, journey: Journey) -> bool:
        """Whether it takes a request that has moved, beside others of those."""
        held = sum(each.missing for each in self.journeys.values() if each.moved)
        return not held or held + journey.length <= PREFILL_IN_FLIGHT

    def load(self) -> EngineLoad:
        """What each of its ranks has to do: what this fleet has sent, or what the engine says if others sent more."""
        stats: EngineStats = self.engine.stats()
        ranks = len(self.caches)
        waiting = sum(each.missing for each in self.journeys.values())
        sequences = max(len(self.journeys), stats.running + stats.waiting)
        return EngineLoad(waiting // ranks, sequences // ranks, sequences >= self.capabilities.max_batch_size)
