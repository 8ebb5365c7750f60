"""Which pages the hosts' memory holds, of those that have left the devices: the prefix cache's second tier.

A copy stays when its page comes back, so that it costs nothing when the page leaves the devices again.
"""

from collections import OrderedDict
from collections.abc import Iterable

from apps.llm.engine.prefix.pool_log import PoolLog
from apps.llm.engine.prefix.transfer import Transfer
from apps.llm.page_names import PageName

NOTHING = Transfer([], [])


class HostPages:
    """Rows 0..total-1 of the hosts' memory, by the names of the pages in them, least recently used first.

    It only decides; `take` says what the executor has to copy.
    """

    def __init__(self, total: int, news: PoolLog):
        self.total, self._news = total, news
        self._row_of: OrderedDict[PageName, int] = OrderedDict()
        self._free = list(reversed(range(total)))
        self._leaving: dict[int, int] = {}  # row -> page that is copied to it
        self._returning: dict[int, int] = {}  # page -> row that it is copied from
        self._read: set[PageName] = set()  # whose rows must stay until `take`
        self.returned = 0  # pages copied back so far

    @property
    def used(self) -> int:
        return len(self._row_of)

    def keep(self, page: int, name: PageName) -> None:
        """Copy a page that is about to be overwritten, in place of the copy that was used longest ago."""
        if name in self._row_of:
            self._row_of.move_to_end(name)
            return
        if not self._free:
            oldest = next((old for old in self._row_of if old not in self._read), None)
            if oldest is None:
                return
            self.drop([oldest])
        row = self._free.pop()
        self._row_of[name], self._leaving[row] = row, page
        self._news.stored(name, on_host=True)

    def holds(self, name: PageName) -> bool:
        """Whether a copy is here. It then stays until `take`."""
        if name not in self._row_of:
            return False
        self._row_of.move_to_end(name)
        self._read.add(name)
        return True

    def bring_back(self, name: PageName, page: int) -> None:
        """Copy back what `holds` has found."""
        self._returning[page] = self._row_of[name]
        self.returned += 1

    def drop(self, names: Iterable[PageName]) -> None:
        """Forget copies, of those names that have any."""
        for name in names:
            if name in self._row_of:
                self._free.append(self._row_of.pop(name))
                self._news.forgot(name, on_host=True)

    def take(self) -> tuple[Transfer, Transfer]:
        """What is to be copied before the next step: first to host memory, then from it."""
        if not self._leaving and not self._returning:  # most turns, and all where there is no host memory
            self._read.clear()
            return NOTHING, NOTHING
        leaving, returning = self._leaving, self._returning
        self._leaving, self._returning = {}, {}
        self._read.clear()
        return Transfer(list(leaving.values()), list(leaving)), Transfer(list(returning), list(returning.values()))
