"""Plans the next step: decodes first, then chunks of prefill, within a token budget.

Plain Python without JAX. A sequence's `computed` counts the tokens whose keys and values will be in the cache once
every launched step has run. The token that a launched step samples is counted at once; its value is filled in when the
step is read. In a step with drafts that is so for the first sample; `accept` counts the others as they are read.

`fairness.accounts` decides which caller goes next; within a caller, sequences go by `rank`. When pages run out, the
last sequence of the caller that holds the most slots is preempted. Background sequences get what the others leave of a
step, and give up their slots to them.
"""

from collections import deque
from collections.abc import Mapping
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from apps.llm.engine.fairness.accounts import Account, Accounts, insert, least_served
from apps.llm.engine.fairness.backlog import Backlog
from apps.llm.engine.images.rows import ImageRows
from apps.llm.engine.prefix.kept_states import KeptStates
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.engine.prefix.reuse import PrefixReuse
from apps.llm.engine.schedule.sequence import UNREAD, Sequence, Work


@dataclass
class Scheduler:
    """Holds all sequences: `waiting` for a slot, `running` in the batch."""

    pool: PagePool
    page_size: int
    max_batch: int
    max_step_tokens: int
    weights: Mapping[str, float] = field(default_factory=dict)  # by caller name
    image_rows: int = 0  # for encoded images
    prefix_states: int = 0  # that can be kept, of a model that holds a state for each sequence by slot
    running: list[Sequence] = field(default_factory=list)
    preemptions: int = 0
    prefix_hit_tokens: int = 0
    entered: list[Sequence] = field(default_factory=list)  # given a slot since the loop last cleared this

    def __post_init__(self) -> None:
        self.states = KeptStates(self.prefix_states) if self.prefix_states else None
        if self.states is not None:
            self.pool.news = self.states.log
        self.images = ImageRows(self.image_rows)
        self.reuse = PrefixReuse(self.pool, self.page_size, self.states)
        self.slots = list(reversed(range(self.max_batch)))
        self._budget = 0  # tokens left in the step
        self._planned: dict[Sequence, Work] = {}  # the step so far
        self._drafts: Mapping[Sequence, Ids[int]] = {}  # for the step
        self.accounts: Accounts[Sequence] = Accounts(self.weights)
        self.backlog = Backlog(self.max_step_tokens)

    @property
    def waiting(self) -> list[Sequence]:
        return list(self.accounts.waiting)

    def add(self, seq: Sequence) -> None:
        seq.account = self.accounts.of(seq.request.caller)
        insert(seq.account.waiting, seq)

    def schedule(self, drafts: Mapping[Sequence, Ids[int]] | None = None) -> list[Work]:
        """The next step's work, decodes first; empty when nothing can run.

        Args:
            drafts: for decoding sequences whose tokens are all read. Shortened where a sequence's limit or free pages
                leave less room. The batch must have a row, and the budget a token, for each drafted token.
        """
        self._budget, self._planned, self._drafts = self.max_step_tokens, {}, drafts or {}
        clients, background = self.accounts.of_class(background=False), self.accounts.of_class(background=True)
        self._make_way(clients, background)
        self._plan_class(clients, entering=True)
        if background:
            self._plan_class(background, entering=not any(account.waiting for account in clients))
        self.backlog.next_step(clients)
        # Background decodes come after other callers' prefill when the budget is spent, but not in the step's layout.
        work = list(self._planned.values())
        return sorted(work, key=lambda item: not (item.decoding or item.draft)) if background else work

    def _make_way(self, clients: list[Account[Sequence]], background: list[Account[Sequence]]) -> None:
        """Preempt a sequence of the caller that holds the most, if the caller that goes next is due a slot or pages.

        At most one a step, before anything is planned. Background sequences are preempted later, as needed.
        """
        if len(clients) < 2 or any(account.running for account in background):
            return
        wants = least_served(account for account in clients if account.waiting and account.waiting[0].may_enter)
        holder = max(clients, key=lambda account: account.held)
        if wants is None or not wants.may_take_from(holder):
            return
        first_chunk = min(len(wants.waiting[0].tokens), self.max_step_tokens)
        if not self.slots or self.pool.free * self.page_size < first_chunk:
            self._preempt(holder.running[-1])

    def _plan_class(self, accounts: list[Account[Sequence]], entering: bool) -> None:
        """Plan the rest of the step for background callers, or for all others: their decodes, then prefill."""
        # Callers that hold the least go first: pages are taken from those that hold the most, never from planned work.
        accounts = sorted(accounts, key=lambda account: account.held)
        self._plan_prefills({account: self._plan_decodes(account) for account in accounts}, entering)

    def _plan_decodes(self, account: Account[Sequence]) -> deque[Sequence]:
        """Plan what of a caller's sequences has only its last token left to compute; returns the others, in order."""
        decodes, prefills = list[Sequence](), deque[Sequence]()
        for seq in account.running:
            (decodes if seq.one_left else prefills).append(seq)
        for seq in decodes:  # making room may preempt some of them: those have no slot any more
            if self._budget and seq.slot is not None and seq.ready and self._make_room(seq, len(seq.tokens)):
                draft = self._drafts.get(seq, ())
                self._plan(seq, len(seq.tokens), self._fitting(seq, draft) if draft else ())
        return prefills

    def _plan_prefills(self, prefills: dict[Account[Sequence], deque[Sequence]], entering: bool) -> None:
        """Plan a chunk for one caller after another, the least served first, until the budget is spent.

        Args:
            prefills: by caller, its running sequences with more than one token to compute.
            entering: waiting sequences may have a slot.
        """
        accounts = [account for account in prefills if prefills[account] or (entering and account.waiting)]
        backlog_left = self.backlog.prefill_budget(self._budget)
        while self._budget and (account := least_served(accounts)) is not None:
            before = self._budget
            budget = min(before, backlog_left) if account in self.backlog else before
            enters = account.waiting and account.waiting[0].may_enter
            if not budget or not (prefills[account] or enters):
                accounts.remove(account)  # it has nothing more for this step, or may have nothing more of it
                continue
            if prefills[account]:
                seq = prefills[account].popleft()
                stop = self._stop(seq, budget)
                if stop > seq.computed and seq.slot is not None and self._make_room(seq, stop):
                    self._plan(seq, stop)
            elif entering and self._enter(seq := account.waiting[0]):
                if (stop := self._stop(seq, budget)) > seq.computed:
                    self._plan(seq, stop)
            else:  # no overtaking: small prompts would starve a large one
                entering = False
                accounts = [account for account in accounts if prefills[account]]
                continue
            if account in self.backlog:
                backlog_left -= before - self._budget
            elif seq in self._planned and self._planned[seq].samples and not seq.background:
                # A first token: this step stays short for it.
                self.backlog.first_token(account)
                backlog_left = 0

    def fill_in(self, seq: Sequence, token: int) -> None:
        """Replace the oldest unread token by the sample that was read."""
        seq.tokens[-2 if seq.tokens[-2] == UNREAD else -1] = token
        self.reuse.publish(seq)

    def accept(self, seq: Sequence, token: int) -> None:
        """Append the sample that follows an accepted draft token. The sequence's last token is computed by now.

        Keys and values of rejected drafts stay past the sequence's end until its next tokens overwrite them.
        """
        seq.account.charge(1)
        seq.computed += 1
        seq.tokens.append(token)
        self.reuse.publish(seq)

    def finish(self, seq: Sequence) -> None:
        """Remove a sequence, waiting or running. Its pages are free at once: a launched step that still writes to them
        runs before any step of their next owner."""
        seq.done = True
        if seq.slot is not None:
            self._leave(seq)
        elif seq in seq.account.waiting:
            seq.account.waiting.remove(seq)

    def spoil(self, seq: Sequence, start: int) -> list[Sequence]:
        """Keep the pages of a sequence, whose numbers are not finite, from all others: see `PagePool.spoil`.

        If it has given them up, only those that others could find by their names are still its own.

        Args:
            start: the first token of the step that found it out; those before were sound.

        Returns:
            Others that have found pages of that step by their names already, before it was read: what they computed
            from them is as bad, even where the cache's type has made numbers of it.
        """
        first = start // self.page_size
        made = {*seq.pages[first:], *self.pool.named(seq.hashes[first:])}
        self.reuse.spoil(seq, first)
        return [other for other in self.running if other is not seq and not made.isdisjoint(other.pages)]

    def check(self) -> None:
        """Raises AssertionError unless used and free pages add up."""
        self.pool.check(page for seq in self.running for page in seq.pages)
        if any(seq.pages for seq in self.waiting):
            raise AssertionError("a waiting sequence holds pages")

    def _stop(self, seq: Sequence, budget: int) -> int:
        stop = self.reuse.stop(seq, min(len(seq.tokens), seq.computed + budget))
        return stop if seq.images is None else seq.images.stop(seq.computed, stop, seq.computed + self._budget)

    def _plan(self, seq: Sequence, stop: int, draft: Ids[int] = ()) -> None:
        self.reuse.keep_state(seq)
        decoding = seq.decoding and not draft
        samples, count = stop == len(seq.tokens), stop - seq.computed
        self._planned[seq] = Work(seq, seq.computed, stop, samples, decoding, draft)
        self._budget -= count + len(draft)
        seq.account.charge(min(count, max(0, stop - seq.charged)))
        seq.computed = stop
        if samples:
            seq.tokens.append(UNREAD)
            seq.on_device = not draft  # with a draft, the host must read the samples to know which is the last token
        self.reuse.publish(seq)

    def _fitting(self, seq: Sequence, draft: Ids[int]) -> Ids[int]:
        """The draft, cut to the sequence's limit and to free pages: no sequence is preempted for guesses."""
        length = len(seq.tokens)
        draft = draft[: seq.limit - length - 1]
        if draft and not self._grow(seq, length + len(draft)):
            draft = draft[: len(seq.pages) * self.page_size - length]
        return draft

    def _make_room(self, seq: Sequence, tokens: int) -> bool:
        """Get pages for `tokens` tokens of a running sequence, preempting others; False if it was preempted itself."""
        while not self._grow(seq, tokens):
            victim = self._last()
            assert victim is not None  # `seq` itself, if there is no other
            self._preempt(victim)
            if victim is seq:
                return False
        return True

    def _last(self) -> Sequence | None:
        """The sequence to preempt next: the last unplanned one of the caller that holds the most, background first."""
        accounts = (*self.accounts.of_class(background=True), *self.accounts.of_class(background=False))
        for account in sorted(accounts, key=lambda account: (account.caller.background, account.held), reverse=True):
            for seq in reversed(account.running):
                if seq not in self._planned:
                    return seq
        return None

    def _displace(self, seq: Sequence) -> bool:
        """Preempt a background sequence for one that is not. False if there is none."""
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
        """Move a sequence back to the queue. Its tokens are computed again, or found in the prefix cache."""
        self.preemptions += 1
        self._leave(seq)
        insert(seq.account.waiting, seq)

    def _leave(self, seq: Sequence) -> None:
        self.running.remove(seq)
        seq.account.running.remove(seq)
        if seq in self.entered:
            self.entered.remove(seq)
        assert seq.slot is not None  # it was running
        self.reuse.keep_state(seq)
        self.slots.append(seq.slot)
        seq.slot, seq.on_device = None, False
        self._drop(seq)

    def _drop(self, seq: Sequence) -> None:
        """Give back its pages, and what its images have."""
        if seq.images is not None:
            self.images.release(seq.images)
        self.pool.release(seq.pages)
        seq.pages, seq.computed, seq.published = [], 0, 0

    def _enter(self, seq: Sequence) -> bool:
        """Give the first sequence in its caller's queue a slot and pages for its first chunk, cached prefix first."""
        if not self.slots and not self._displace(seq):
            return False
        self.reuse.begin(seq)
        if seq.images is not None and not self.images.hold(seq.images, seq.computed):
            self._drop(seq)
            return False
        while not self._grow(seq, min(len(seq.tokens), seq.computed + self._budget)):
            if not self._displace(seq):
                self._drop(seq)
                return False
        seq.account.waiting.remove(seq)
        seq.slot = self.slots.pop()
        self.reuse.entered(seq)
        self.running.append(seq)
        insert(seq.account.running, seq)
        self.entered.append(seq)
        self.prefix_hit_tokens += seq.computed
        seq.cached_tokens = max(seq.cached_tokens, min(seq.computed, seq.prompt_len))
        return True
