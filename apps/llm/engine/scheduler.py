"""What runs in the next step: decodes first, then chunks of prefill, within a budget of tokens.

Plain Python without JAX. A sequence's `computed` counts the tokens whose keys and values will be in the cache once
everything launched has run; the token that a launched step samples is counted at once and its value filled in when
the step is read. Of a step with drafted tokens only its first sample is: `accept` counts the others when it is read.

Between callers `fairness.accounts` says whose turn it is; among one caller's sequences, their `rank`. Pages that are
needed come from the last sequence of the caller that holds most. Background sequences get what the others leave of a
step, and give up their places to them.
"""

import sys
from collections import deque
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from apps.llm.api import Generation
from apps.llm.engine.fairness.accounts import Account, Accounts, next_of, put
from apps.llm.engine.fairness.crowd import Crowd
from apps.llm.engine.pages import PageHash, PagePool, page_hash
from apps.llm.engine.speculation.drafter import Drafter

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
    drafter: Drafter | None = None  # guesses its next tokens, if it may have drafts
    done: bool = False
    rank: tuple[int, int, int] = field(init=False)  # among its caller's, lower goes first
    account: Account["Sequence"] = field(init=False, repr=False)  # its caller's, set by `Scheduler.add`

    def __post_init__(self) -> None:
        params = self.generation.params
        self.rank = (0 if params is None else params.priority), self.generation.id, self.index

    @property
    def background(self) -> bool:
        return self.generation.caller.background

    @property
    def one_left(self) -> bool:
        """Its next step computes just its last token."""
        return self.computed == len(self.tokens) - 1

    @property
    def decoding(self) -> bool:
        """Its next step computes just the token that it sampled last, which the device has."""
        return self.on_device and self.one_left

    @property
    def unread(self) -> bool:
        return self.tokens[-1] == UNREAD

    @property
    def ready(self) -> bool:
        """Whether it may decode in the next step, launched before the last one is read."""
        waits = self.unread and (self.lockstep or not self.on_device)
        return len(self.tokens) < self.limit and not waits


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's part in a step."""

    seq: Sequence
    start: int  # computes tokens [start, stop)
    stop: int
    samples: bool  # the step reaches the sequence's end: its sample is the next token
    decoding: bool  # the token is on the device, not in the plan
    draft: Ids[int] = ()  # computed too, and sampled after: guesses of what follows


def with_rows(work: list[Work]) -> Iterator[tuple[int, Work]]:
    """Each sequence's part in a step with its first row of it; its drafted tokens have the rows after that."""
    row = 0
    for item in work:
        yield row, item
        row += 1 + len(item.draft)


@dataclass
class Scheduler:
    """Holds all sequences: `waiting` for a place, `running` in the batch."""

    pool: PagePool
    page_size: int
    max_batch: int
    max_step_tokens: int
    weights: Mapping[str, float] = field(default_factory=dict)  # by the name of a caller
    running: list[Sequence] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    entered: list[Sequence] = field(default_factory=list)  # got a slot since the engine last looked

    def __post_init__(self) -> None:
        self._slots = list(reversed(range(self.max_batch)))
        self._budget = 0  # what is left of the step's
        self._planned: dict[Sequence, Work] = {}  # the step so far
        self._drafts: Mapping[Sequence, Ids[int]] = {}  # for the step
        self._accounts: Accounts[Sequence] = Accounts(self.weights)
        self._crowd = Crowd(self.max_step_tokens)

    @property
    def waiting(self) -> list[Sequence]:
        return list(self._accounts.waiting)

    def add(self, seq: Sequence) -> None:
        seq.account = self._accounts.of(seq.generation.caller)
        put(seq.account.waiting, seq)

    def schedule(self, drafts: Mapping[Sequence, Ids[int]] | None = None) -> list[Work]:
        """The next step's work, decodes first; empty when there is nothing that can run.

        Args:
            drafts: of sequences that decode and whose tokens are all read. They are shortened to what has room; the
                batch and the budget must have a row and a token for each.
        """
        self._budget, self._planned, self._drafts = self.max_step_tokens, {}, drafts or {}
        clients, background = self._accounts.of_class(background=False), self._accounts.of_class(background=True)
        self._make_way(clients, background)
        self._plan_class(clients, entering=True)
        if background:
            self._plan_class(background, entering=not any(account.waiting for account in clients))
        self._crowd.next_step(clients)
        # The background's decodes stand behind the others' prefill for the budget, not in the step.
        work = list(self._planned.values())
        return sorted(work, key=lambda item: not (item.decoding or item.draft)) if background else work

    def _make_way(self, clients: list[Account[Sequence]], background: list[Account[Sequence]]) -> None:
        """Take a place from the caller that holds most for the one whose turn it is, if that is due more.

        Before anything is planned, and one in a step. What the background holds is taken when it is needed.
        """
        if len(clients) < 2 or any(account.running for account in background):
            return
        wants = next_of(account for account in clients if account.waiting and not account.waiting[0].unread)
        holder = max(clients, key=lambda account: account.holds, default=None)
        if wants is None or not wants.may_take_from(holder):
            return
        first_chunk = min(len(wants.waiting[0].tokens), self.max_step_tokens)
        if not self._slots or self.pool.free * self.page_size < first_chunk:
            self._preempt(holder.running[-1])

    def _plan_class(self, accounts: list[Account[Sequence]], entering: bool) -> None:
        """Plan what is left of the step for the background, or for all others."""
        # Those who hold least come first: pages are taken from who holds most, and from none that is planned already.
        accounts = sorted(accounts, key=lambda account: account.holds)
        prefills: dict[Account[Sequence], deque[Sequence]] = {}
        for account in accounts:
            prefills[account] = deque(seq for seq in account.running if not seq.one_left)
            for seq in [seq for seq in account.running if seq.one_left]:
                if self._budget and seq.slot is not None and seq.ready and self._make_room(seq, len(seq.tokens)):
                    self._plan(seq, len(seq.tokens), self._fitting(seq, self._drafts.get(seq, ())))
        accounts = [account for account in accounts if prefills[account] or (entering and account.waiting)]
        crowds = self._crowd.budget(self._budget)
        while self._budget and (account := next_of(accounts)) is not None:
            left, budget = self._budget, min(self._budget, crowds) if account in self._crowd else self._budget
            if not budget or not (prefills[account] or (account.waiting and not account.waiting[0].unread)):
                accounts.remove(account)
                continue
            if prefills[account]:
                seq = prefills[account].popleft()
                stop = min(len(seq.tokens), seq.computed + budget)
                if stop > seq.computed and seq.slot is not None and self._make_room(seq, stop):
                    self._plan(seq, stop)
            elif entering and self._enter(seq := account.waiting[0]):
                self._plan(seq, min(len(seq.tokens), seq.computed + budget))
            else:  # nobody passes by: small prompts would keep a large one out for ever
                entering, accounts = False, [account for account in accounts if prefills[account]]
                continue
            if account in self._crowd:
                crowds -= left - self._budget
            elif seq in self._planned and self._planned[seq].samples and not seq.background:
                self._crowd.first_token(account)
                crowds = 0

    def fill_in(self, seq: Sequence, token: int) -> None:
        """A launched step's sample has been read: it stands for the oldest unread token."""
        seq.tokens[-2 if seq.tokens[-2] == UNREAD else -1] = token
        self._publish(seq)

    def accept(self, seq: Sequence, token: int) -> None:
        """The sample after a drafted token that was right: the sequence's last token is computed, and this is the next.

        Keys and values of drafts that were wrong stay behind the sequence's end, until its next tokens overwrite them.
        """
        seq.account.charge(1)
        seq.computed += 1
        seq.tokens.append(token)
        self._publish(seq)

    def finish(self, seq: Sequence) -> None:
        """Take a sequence out, wherever it is. Its pages are free at once: a step already launched that still
        writes to them runs before any step that a new owner may launch."""
        seq.done = True
        if seq.slot is not None:
            self._leave(seq)
        elif seq in seq.account.waiting:
            seq.account.waiting.remove(seq)

    def check(self) -> None:
        """Pages in use and pages free add up. Raises AssertionError."""
        self.pool.check(page for seq in self.running for page in seq.pages)
        if any(seq.pages for seq in self.waiting):
            raise AssertionError("a waiting sequence holds pages")

    def _plan(self, seq: Sequence, stop: int, draft: Ids[int] = ()) -> None:
        decoding = seq.decoding and not draft
        work = Work(seq, seq.computed, stop, samples=stop == len(seq.tokens), decoding=decoding, draft=draft)
        self._planned[seq] = work
        self._budget -= stop - seq.computed + len(draft)
        seq.account.charge(stop - seq.computed)
        seq.computed = stop
        if work.samples:
            seq.tokens.append(UNREAD)
            seq.on_device = not draft  # which of the samples is its last token turns out when they are read
        self._publish(seq)

    def _fitting(self, seq: Sequence, draft: Ids[int]) -> Ids[int]:
        """As much of a draft as its limit allows and pages are free for: no other sequence makes room for guesses."""
        length = len(seq.tokens)
        draft = draft[: seq.limit - length - 1]
        if draft and not self._grow(seq, length + len(draft)):
            draft = draft[: len(seq.pages) * self.page_size - length]
        return draft

    def _make_room(self, seq: Sequence, tokens: int) -> bool:
        """Pages for `tokens` tokens of a running sequence, preempting the last ones while there are too few."""
        while not self._grow(seq, tokens):
            victim = self._last()
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _last(self) -> Sequence | None:
        """Of those that run and are not planned yet, the last of the caller that holds most, the background first."""
        accounts = (*self._accounts.of_class(background=True), *self._accounts.of_class(background=False))
        for account in sorted(accounts, key=lambda account: (account.caller.background, account.holds), reverse=True):
            for seq in reversed(account.running):
                if seq not in self._planned:
                    return seq
        return None

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
        put(seq.account.waiting, seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        seq.account.running.remove(seq)
        if seq in self.entered:
            self.entered.remove(seq)
        self._slots.append(seq.slot)
        seq.slot, seq.on_device = None, False
        self._drop_pages(seq)

    def _drop_pages(self, seq: Sequence) -> None:
        self.pool.release(seq.pages)
        seq.pages, seq.computed, seq.published = [], 0, 0

    def _enter(self, seq: Sequence) -> bool:
        """Give the first of its caller's queue a place and pages for its first chunk, known prefixes first."""
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
        seq.account.waiting.remove(seq)
        seq.slot = self._slots.pop()
        self.running.append(seq)
        put(seq.account.running, seq)
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
