"""What a sequence need not compute, because one that began alike has: its first pages, and the state at their end."""

from apps.llm.engine.prefix.kept_states import WORTH, KeptStates
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.engine.schedule.sequence import UNREAD, Sequence


class PrefixReuse:
    """The prefix cache of a scheduler.

    Args:
        states: of a model that holds a state for each sequence by slot; None: any page goes on from.
    """

    def __init__(self, pool: PagePool, page_size: int, states: KeptStates | None = None):
        self.pool, self.page_size, self.states = pool, page_size, states

    def begin(self, seq: Sequence) -> None:
        """Give a sequence, which has nothing, the pages that it need not compute."""
        if not self.pool.reuse:
            return
        # Not the last token's page: at least one token must be computed to sample from.
        known = min(len(seq.tokens) - 1, seq.reusable)
        names = seq.names(known // self.page_size, self.page_size)
        seq.pages = self.pool.match(names)
        if self.states is not None:
            self._end_at_a_state(seq, self.states)
        else:
            for page in self.pool.bring_back(names[len(seq.pages) :]):
                self.pool.news.tell(seq, len(seq.pages))
                seq.pages.append(page)
        seq.published = len(seq.pages)
        seq.computed = seq.kept = len(seq.pages) * self.page_size

    def _end_at_a_state(self, seq: Sequence, states: KeptStates) -> None:
        """Leave out pages that come after the last state that is kept. At their end, and at the end of what another
        request may begin with, the sequence is to stop, so that its state can be kept."""
        matched = len(seq.pages)
        reached = states.hold(seq.hashes[:matched])
        self.pool.release(seq.pages[reached:])
        del seq.pages[reached:]
        seq.stops, last = [], reached * self.page_size
        for pages in (matched, (len(seq.tokens) - 1) // self.page_size):
            if pages * self.page_size - last >= WORTH:
                last = pages * self.page_size
                seq.stops.append(last)

    def entered(self, seq: Sequence) -> None:
        """The sequence has a slot, into which its state is to come."""
        if self.states is not None and seq.computed:
            assert seq.slot is not None
            self.states.bring_back(seq.hashes[seq.computed // self.page_size - 1], seq.slot)

    def stop(self, seq: Sequence, stop: int) -> int:
        """How far a step may compute that would get as far as `stop`."""
        return min([stop, *(at for at in seq.stops if seq.computed < at)])

    def publish(self, seq: Sequence) -> None:
        """Make full pages of a sequence available to others, as soon as their tokens are known."""
        if not self.pool.reuse or seq.computed // self.page_size <= seq.published:
            return
        known = len(seq.tokens) - (seq.tokens[-1] == UNREAD) - (seq.tokens[-2:-1] == [UNREAD])
        full = min(seq.computed, known) // self.page_size
        if full > seq.published:
            for i, name in enumerate(seq.names(full, self.page_size)[seq.published :], seq.published):
                if self.pool.publish(seq.pages[i], name):
                    self.pool.news.tell(seq, i)
            seq.published = full

    def keep_state(self, seq: Sequence) -> None:
        """Keep the state of a sequence in a slot, if it is one to keep. Its next part is not planned yet."""
        if self.states is None or seq.computed % self.page_size or seq.computed == seq.kept:
            return
        stops, pages = seq.computed in seq.stops, seq.computed // self.page_size
        if pages > seq.published or (not stops and seq.computed - seq.kept < WORTH):
            return
        if self.pool.named(seq.hashes[pages - 1 : pages]) and self.states.keep(seq, pages, passing=not stops):
            seq.kept = seq.computed

    def until_kept(self, seq: Sequence) -> int:
        """Tokens that a decoding sequence computes before its state is next to be kept."""
        return -(-max(seq.kept + WORTH, seq.computed) // self.page_size) * self.page_size - seq.computed

    def spoil(self, seq: Sequence, first: int) -> None:
        """Keep a sequence's pages from all others, and what is known by the names of those from `first` on."""
        self.pool.spoil(seq.pages, seq.hashes)
        if self.states is not None:
            self.states.drop(seq.hashes[first:])
