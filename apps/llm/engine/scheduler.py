"""What runs in the next step: decodes first, then chunks of prefill, within a budget of tokens.

Plain Python without JAX. A sequence's `computed` counts the tokens whose keys and values will be in the cache once
everything launched has run; the token that a launched step samples is counted at once and its value filled in when
the step is read.
"""

import sys
from collections import deque
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
    """Holds all sequences: `waiting` for a place, `running` in the batch, oldest first."""

    pool: PagePool
    page_size: int
    max_batch: int
    max_step_tokens: int
    waiting: deque[Sequence] = field(default_factory=deque)
    running: list[Sequence] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    entered: list[Sequence] = field(default_factory=list)  # got a slot since the engine last looked

    def __post_init__(self) -> None:
        self._slots = list(reversed(range(self.max_batch)))

    def add(self, seq: Sequence) -> None:
        self.waiting.append(seq)

    def schedule(self) -> list[Work]:
        """The next step's work, decodes first; empty when there is nothing that can run."""
        budget = self.max_step_tokens
        work: list[Work] = []

        def plan(seq: Sequence, stop: int) -> None:
            nonlocal budget
            budget -= stop - seq.computed
            work.append(self._work(seq, stop))

        # Oldest first: only younger sequences than the one that needs pages are preempted, none already planned.
        decodes = [seq for seq in self.running if seq.decoding]
        for seq in decodes:
            if budget and seq.slot is not None and seq.ready and self._make_room(seq, len(seq.tokens)):
                plan(seq, len(seq.tokens))
        for seq in [seq for seq in self.running if not seq.decoding]:
            stop = min(len(seq.tokens), seq.computed + budget)
            if stop > seq.computed and seq.slot is not None and self._make_room(seq, stop):
                plan(seq, stop)
        while budget and self.waiting and self._slots and not self.waiting[0].unread:
            seq = self.waiting[0]
            if not self._enter(seq, budget):
                break
            plan(seq, min(len(seq.tokens), seq.computed + budget))
        return work

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

    def _work(self, seq: Sequence, stop: int) -> Work:
        decoding = seq.decoding
        work = Work(seq, seq.computed, stop, samples=stop == len(seq.tokens), decoding=decoding)
        seq.computed = stop
        if work.samples:
            seq.tokens.append(UNREAD)
            seq.on_device = True
        self._publish(seq)
        return work

    def _make_room(self, seq: Sequence, tokens: int) -> bool:
        """Pages for `tokens` tokens, preempting the youngest sequences while there are too few."""
        while not self._grow(seq, tokens):
            victim = self.running[-1]
            self._preempt(victim)
            if victim is seq:
                return False
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
        """Back to the head of the queue; what it computed is computed again (or found in the prefix cache)."""
        self.preemptions += 1
        self._leave(seq)
        self.waiting.appendleft(seq)

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

    def _enter(self, seq: Sequence, budget: int) -> bool:
        """Give the first of the queue a place and pages for its first chunk, known prefixes first."""
        if self.pool.reuse:
            # All but the last token's page: something must be computed to sample from.
            known = min(len(seq.tokens) - 1, seq.reusable)
            seq.pages = self.pool.match(self._names(seq, known // self.page_size))
            seq.published = len(seq.pages)
            seq.computed = len(seq.pages) * self.page_size
        if not self._grow(seq, min(len(seq.tokens), seq.computed + budget)):
            self._drop_pages(seq)
            return False
        self.waiting.popleft()
        seq.slot = self._slots.pop()
        self.running.append(seq)
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
