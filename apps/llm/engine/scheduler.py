"""What runs in the next step: decodes first, then chunks of prefill, within a budget of tokens.

Plain Python without JAX. A sequence's `computed` counts the tokens whose keys and values will be in the cache once
everything launched has run; the token that a launched step samples is counted at once and its value filled in when
the step is read.

Who goes first, in the queue and in a step, is a sequence's `rank`; who gives up its pages is the last by rank.
Background sequences get what the others leave of a step, and give up their places to them.
"""

import sys
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field

from apps.llm.api import Generation
from apps.llm.engine.pages import PageHash, PagePool, page_hash

UNREAD = -1  # a token that is sampled on the device but not yet read


@dataclass(eq=False)
class Sequence:
    """One answer in the making. (A request for n answers is n of these.)"""

    generation: Generation
    index: int  # which of the request's answers
    limit: int  # tokens, prompt and answer together, at which it ends
    seed: int
    tokens: list[int]  # the prompt, then the answer; UNREAD where still on the device
    prompt_len: int
    reusable: int = sys.maxsize  # so many first tokens may come from the prefix cache; of the others something is read
    computed: int = 0
    pages: list[int] = field(default_factory=list)
    hashes: list[PageHash] = field(default_factory=list)  # names of its full pages, as far as known
    published: int = 0  # full pages that others may find
    slot: int | None = None  # its place in the batch
    on_device: bool = False  # its last token was sampled in `slot`: the device has it
    lockstep: bool = False  # what it may sample hangs on the token before (structured output)
    done: bool = False
    rank: tuple[bool, int, int, int] = field(init=False)  # lower goes first

    def __post_init__(self) -> None:
        params = self.generation.params
        priority = 0 if params is None else params.priority
        self.rank = self.background, priority, self.generation.id, self.index

    @property
    def background(self) -> bool:
        return self.generation.caller.background

    @property
    def decoding(self) -> bool:
        """Its next step computes just the token that it sampled last."""
        return self.on_device and self.computed == len(self.tokens) - 1

    @property
    def unread(self) -> bool:
        return self.tokens[-1] == UNREAD

    @property
    def ready(self) -> bool:
        """Whether it may decode in the next step, launched before the last one is read."""
        return len(self.tokens) < self.limit and not (self.lockstep and self.unread)


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's part in a step."""

    seq: Sequence
    start: int  # computes tokens [start, stop)
    stop: int
    samples: bool  # the step reaches the sequence's end: its sample is the next token
    decoding: bool  # the token is on the device, not in the plan


@dataclass
class Scheduler:
    """Holds all sequences: `waiting` for a place, `running` in the batch; both in the order of their ranks."""

    pool: PagePool
    page_size: int
    max_batch: int
    max_step_tokens: int
    waiting: list[Sequence] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    entered: list[Sequence] = field(default_factory=list)  # got a slot since the engine last looked

    def __post_init__(self) -> None:
        self._slots = list(reversed(range(self.max_batch)))
        self._budget = 0  # what is left of the step's
        self._planned: dict[Sequence, Work] = {}  # the step so far

    def add(self, seq: Sequence) -> None:
        insort(self.waiting, seq, key=_rank)

    def schedule(self) -> list[Work]:
        """The next step's work, decodes first; empty when there is nothing that can run."""
        self._budget, self._planned = self.max_step_tokens, {}
        background = [seq for seq in self.running if seq.background]
        self._plan_class(self.running[: len(self.running) - len(background)], background=False)
        self._plan_class(background, background=True)
        work = list(self._planned.values())
        if background:  # its decodes stand behind the others' prefill for the budget, not in the step
            work.sort(key=lambda item: not item.decoding)
        return work

    def _plan_class(self, running: Iterable[Sequence], background: bool) -> None:
        """Plan what is left of the step for the background, or for the others."""
        decodes, prefills = [], []
        for seq in running:
            (decodes if seq.decoding else prefills).append(seq)
        for seq in decodes:
            if self._budget and seq.slot is not None and seq.ready and self._make_room(seq, len(seq.tokens)):
                self._plan(seq, len(seq.tokens))
        for seq in prefills:
            stop = min(len(seq.tokens), seq.computed + self._budget)
            if stop > seq.computed and seq.slot is not None and self._make_room(seq, stop):
                self._plan(seq, stop)
        while self._budget and self.waiting and self.waiting[0].background is background:
            seq = self.waiting[0]
            if seq.unread or not self._enter(seq):
                break
            self._plan(seq, min(len(seq.tokens), seq.computed + self._budget))

    def fill_in(self, seq: Sequence, token: int) -> None:
        """A launched step's sample has been read: it stands for the oldest unread token."""
        seq.tokens[-2 if seq.tokens[-2] == UNREAD else -1] = token
        self._publish(seq)

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is. Its pages are free at once: a step already launched that still
        writes to them runs before any step that a new owner may launch."""
        seq.done = True
        if seq.slot is not None:
            self._leave(seq)
        elif seq in self.waiting:
            self.waiting.remove(seq)

    def check(self) -> None:
        """Pages in use and pages free add up. Raises AssertionError."""
        self.pool.check(page for seq in self.running for page in seq.pages)
        if any(seq.pages for seq in self.waiting):
            raise AssertionError("a waiting sequence holds pages")

    def _plan(self, seq: Sequence, stop: int) -> None:
        decoding = seq.decoding
        work = Work(seq, seq.computed, stop, samples=stop == len(seq.tokens), decoding=decoding)
        self._planned[seq] = work
        self._budget -= stop - seq.computed
        seq.computed = stop
        if work.samples:
            seq.tokens.append(UNREAD)
            seq.on_device = True
        self._publish(seq)

    def _make_room(self, seq: Sequence, tokens: int) -> bool:
        """Pages for `tokens` tokens of a running sequence, preempting the last ones while there are too few."""
        while not self._grow(seq, tokens):
            victim = self._last()
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _last(self) -> Sequence | None:
        """The last by rank of those that run and are not in the step yet."""
        return next((seq for seq in reversed(self.running) if seq not in self._planned), None)

    def _displace(self, seq: Sequence) -> bool:
        """Preempt a background sequence for one that is not. False: there is none."""
        victim = None if seq.background else self._last()
        if victim is None or not victim.background:
            return False
        self._preempt(victim)
        return True

    def _grow(self, seq: Sequence, tokens: int) -> bool:
        missing = -(-tokens // self.page_size) - len(seq.pages)
        if missing <= 0:
            return True
        pages = self.pool.allocate(missing)
        if pages is not None:
            seq.pages += pages
        return pages is not None

    def _preempt(self, seq: Sequence) -> None:
        """Back to the queue; what it computed is computed again (or found in the prefix cache)."""
        self.preemptions += 1
        self._leave(seq)
        self.add(seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        if seq in self.entered:
            self.entered.remove(seq)
        self._slots.append(seq.slot)
        seq.slot, seq.on_device = None, False
        self._drop_pages(seq)

    def _drop_pages(self, seq: Sequence) -> None:
        self.pool.release(seq.pages)
        seq.pages, seq.computed, seq.published = [], 0, 0

    def _enter(self, seq: Sequence) -> bool:
        """Give the first of the queue a place and pages for its first chunk, known prefixes first."""
        if not self._slots and not self._displace(seq):
            return False
        if self.pool.reuse:
            # All but the last token's page: something must be computed to sample from.
            known = min(len(seq.tokens) - 1, seq.reusable)
            seq.pages = self.pool.match(self._names(seq, known // self.page_size))
            seq.published = len(seq.pages)
            seq.computed = len(seq.pages) * self.page_size
        while not self._grow(seq, min(len(seq.tokens), seq.computed + self._budget)):
            if not self._displace(seq):
                self._drop_pages(seq)
                return False
        self.waiting.remove(seq)
        seq.slot = self._slots.pop()
        insort(self.running, seq, key=_rank)
        self.entered.append(seq)
        self.prefix_hit_tokens += seq.computed
        seq.generation.cached_tokens = max(seq.generation.cached_tokens, min(seq.computed, seq.prompt_len))
        return True

    def _publish(self, seq: Sequence) -> None:
        known = len(seq.tokens) - (seq.tokens[-1] == UNREAD) - (seq.tokens[-2:-1] == [UNREAD])
        full = min(seq.computed, known) // self.page_size
        if self.pool.reuse and full > seq.published:
            for i, name in enumerate(self._names(seq, full)[seq.published :], seq.published):
                self.pool.publish(seq.pages[i], name)
            seq.published = full

    def _names(self, seq: Sequence, full: int) -> list[PageHash]:
        for i in range(len(seq.hashes), full):
            parent = seq.hashes[-1] if seq.hashes else b""
            seq.hashes.append(page_hash(parent, seq.tokens[i * self.page_size : (i + 1) * self.page_size]))
        return seq.hashes[:full]


def _rank(seq: Sequence) -> tuple[bool, int, int, int]:
    return seq.rank
