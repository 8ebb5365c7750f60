"""States of sequences, kept at the ends of full pages, for models that hold a state by slot.

Such a state can't be cut: what comes after a prefix can be computed only from the state at its very end. So the pages
of a prefix are of use as far as one is kept. There is room for few: the one that was used least recently makes way.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from apps.llm.engine.prefix.pool_log import PoolLog
from apps.llm.engine.prefix.transfer import StateTransfer
from apps.llm.engine.schedule.sequence import Sequence as Request
from apps.llm.page_names import PageName

WORTH = 256
"""Tokens that a state must spare. A copy takes as long as a small part of a step; a shorter text fits into a step."""


class ReachedLog(PoolLog):
    """The log of a pool whose pages are of use as far as a state is kept: others have no name in it.

    For a prompt that leaves such a prefix before its end, it promises too much, until a state is kept there as well.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pages: set[PageName] = set()  # all that the pool knows by name
        self._before: dict[PageName, PageName | None] = {}  # of those before which a state is kept, the page before
        self._uses: dict[PageName, int] = {}  # of these: a state at its end, and pages that follow it

    def stored(self, name: PageName, on_host: bool = False) -> None:
        self._pages.add(name)
        if name in self._uses:
            super().stored(name, on_host)

    def tell(self, seq: Request, number: int) -> None:
        if seq.hashes[number] in self:
            super().tell(seq, number)

    def forgot(self, name: PageName, on_host: bool = False) -> None:
        self._pages.remove(name)
        if name in self._uses:
            super().forgot(name, on_host)

    def reach(self, seq: Request, pages: int) -> None:
        """A state is kept at the end of the sequence's first `pages` pages."""
        new = list[int]()
        for number in reversed(range(pages)):
            name = seq.hashes[number]
            self._uses[name] = self._uses.get(name, 0) + 1
            if self._uses[name] > 1:
                break
            self._before[name] = seq.hashes[number - 1] if number else None
            new.append(number)
        for number in reversed(new):
            if (name := seq.hashes[number]) in self._pages:
                super().stored(name)
                super().tell(seq, number)

    def leave(self, name: PageName | None) -> None:
        """That state, at the end of this page, is kept no longer."""
        while name is not None:
            self._uses[name] -= 1
            if self._uses[name]:
                return
            del self._uses[name]
            if name in self._pages:
                super().forgot(name)
            name = self._before.pop(name)


class KeptStates:
    """Which states are kept, and in which rows.

    Copies are carried out in one go before the next step is launched: first those that are kept, then those that are
    brought back. Until then nothing takes the row of one that is brought back.
    """

    def __init__(self, rows: int):
        self.log = ReachedLog()
        self._free = list(reversed(range(rows)))
        self._row_of: OrderedDict[PageName, int] = OrderedDict()  # least recently used first
        self._held: PageName | None = None  # for the sequence that is about to enter
        self._passing: set[PageName] = set()  # kept by a sequence on its way, which nobody else has used
        self._keep, self._bring_back = StateTransfer([], []), StateTransfer([], [])

    def __contains__(self, name: PageName) -> bool:
        return name in self._row_of

    def __len__(self) -> int:
        return len(self._row_of)

    def hold(self, names: Sequence[PageName]) -> int:
        """How many of these names of a prefix's pages come before the last state that is kept. Nothing takes its row
        before another call."""
        found = next((count for count in range(len(names), 0, -1) if names[count - 1] in self._row_of), 0)
        self._held = names[found - 1] if found else None
        return found

    def keep(self, seq: Request, pages: int, passing: bool) -> bool:
        """Keep the state of a sequence in a slot, which is that at the end of its first `pages` pages.

        Args:
            passing: for the sequence itself, should it be preempted or come back with more text: the next one that
                passes takes its place, unless another sequence has used it.

        Returns:
            False: the states in all rows are about to be brought back.
        """
        name = seq.hashes[pages - 1]
        if name in self._row_of:
            self._row_of.move_to_end(name)
            if not passing:
                self._passing.discard(name)
            return True
        if passing and seq.passed in self._passing and seq.passed != self._held:
            self.drop([seq.passed])
        if not self._free:
            brought_back = set(self._bring_back.rows)
            free = (old for old, row in self._row_of.items() if row not in brought_back and old != self._held)
            oldest = next(free, None)
            if oldest is None:
                return False
            self.drop([oldest])
        assert seq.slot is not None
        row = self._row_of[name] = self._free.pop()
        self._keep.slots.append(seq.slot)
        self._keep.rows.append(row)
        self.log.reach(seq, pages)
        if passing:
            self._passing.add(name)
            seq.passed = name
        return True

    def bring_back(self, name: PageName, slot: int) -> None:
        """Put the state that is kept under this name into a slot."""
        self._row_of.move_to_end(name)
        self._passing.discard(name)
        self._bring_back.slots.append(slot)
        self._bring_back.rows.append(self._row_of[name])

    def drop(self, names: Iterable[PageName]) -> None:
        """Keep these no longer."""
        for name in names:
            if (row := self._row_of.pop(name, None)) is not None:
                self._passing.discard(name)
                self._free.append(row)
                self.log.leave(name)

    def take(self) -> tuple[StateTransfer, StateTransfer]:
        """What to copy before the next step is launched: states to keep, then those to bring back."""
        taken = self._keep, self._bring_back
        self._keep, self._bring_back = StateTransfer([], []), StateTransfer([], [])
        return taken
