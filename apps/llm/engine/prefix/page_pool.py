"""Allocates the KV cache's pages and keeps the prefix cache.

A full page has a name that stands for a whole prefix: see `page_names`. Released pages keep their contents and names
until they are allocated again, least recently used first. Where there is host memory for them, they go there then.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from apps.llm.engine.prefix.host_pages import HostPages
from apps.llm.engine.prefix.pool_log import PoolLog
from apps.llm.page_names import PageName


@dataclass
class PagePool:
    """Pages 1..total-1. Page 0 takes the writes of padding and is never allocated.

    Args:
        host_total: pages for which the hosts' memory has room.
    """

    total: int
    reuse: bool = True
    host_total: int = 0
    news: PoolLog = field(default_factory=PoolLog)
    _free: OrderedDict[int, None] = field(init=False)  # oldest first
    _users: dict[int, int] = field(init=False, default_factory=dict)  # page -> sequences that hold it
    _page_of: dict[PageName, int] = field(init=False, default_factory=dict)
    _hash_of: dict[int, PageName] = field(init=False, default_factory=dict)
    _spoiled: set[int] = field(init=False, default_factory=set)
    _unclean: list[int] = field(init=False, default_factory=list)  # were spoiled, and have a new user

    def __post_init__(self) -> None:
        self._free = OrderedDict.fromkeys(range(1, self.total))
        self.host = HostPages(self.host_total, self.news)

    @property
    def free(self) -> int:
        return len(self._free)

    @property
    def used(self) -> int:
        return len(self._users)

    def allocate(self, count: int) -> list[int] | None:
        """Allocate `count` pages, evicting their cached contents; None if too few are free."""
        if count > len(self._free):
            return None
        pages = [self._free.popitem(last=False)[0] for _ in range(count)]
        for page in pages:
            self._users[page] = 1
            if (name := self._hash_of.get(page)) is not None:
                if self.host.total:
                    self.host.keep(page, name)
                self._forget(page)
            if page in self._spoiled:
                self._spoiled.remove(page)
                self._unclean.append(page)
        return pages

    def release(self, pages: Iterable[int]) -> None:
        """Free a sequence's pages, last page first, so that a prefix stays cached longer than what followed it."""
        for page in reversed(list(pages)):
            self._users[page] -= 1
            if not self._users[page]:
                del self._users[page]
                self._free[page] = None
                if page not in self._hash_of:
                    self._free.move_to_end(page, last=False)  # nothing to reuse: evict it first

    def publish(self, page: int, name: PageName) -> bool:
        """Make a full page available for reuse. If the name is taken, the earlier page keeps it: False."""
        if not self.reuse or name in self._page_of or page in self._spoiled:
            return False
        self._page_of[name] = page
        self._hash_of[page] = name
        self.news.stored(name)
        return True

    def match(self, names: Iterable[PageName]) -> list[int]:
        """Pages of the longest cached prefix of `names`; the caller now holds them too."""
        pages = []
        for name in names:
            page = self._page_of.get(name)
            if page is None:
                break
            self._hold(page)
            pages.append(page)
        return pages

    def bring_back(self, names: Iterable[PageName]) -> list[int]:
        """Pages of the longest prefix of `names` that is in host memory, as far as pages are free, or cached after all.

        The caller now holds them. They have their contents once `host.take` is carried out.
        """
        pages = []
        for name in names:
            page = self._page_of.get(name)
            if page is not None:
                self._hold(page)
            elif self.host.holds(name) and (allocated := self.allocate(1)):
                (page,) = allocated
                self.host.bring_back(name, page)
                self.publish(page, name)
            else:
                break
            pages.append(page)
        return pages

    def _hold(self, page: int) -> None:
        self._free.pop(page, None)
        self._users[page] = self._users.get(page, 0) + 1

    def named(self, names: Iterable[PageName]) -> list[int]:
        """The pages that have these names, of those that any has."""
        return [self._page_of[name] for name in names if name in self._page_of]

    def spoil(self, pages: Iterable[int], names: Iterable[PageName] = ()) -> None:
        """Keep these pages, held or not, and those that have these names, from being reused before they are cleaned.

        Who holds one goes on with it. Transfer in host memory are forgotten.
        """
        names = list(names)
        for page in {*pages, *self.named(names)}:
            self.host.drop([self._hash_of[page]] if page in self._hash_of else [])
            self._forget(page)
            self._spoiled.add(page)
        self.host.drop(names)

    def to_clean(self) -> list[int]:
        """Spoiled pages that no sequence reads. The caller cleans them before it launches the next step."""
        if not self._spoiled and not self._unclean:
            return []
        pages = self._unclean + [page for page in self._spoiled if page not in self._users]
        self._spoiled.difference_update(pages)
        self._unclean = []
        return pages

    def _forget(self, page: int) -> None:
        name = self._hash_of.pop(page, None)
        if name is not None:
            del self._page_of[name]
            self.news.forgot(name)

    def check(self, held: Iterable[int]) -> None:
        """Raises AssertionError unless every page is either free or held, and held as often as `held` lists it."""
        counts: dict[int, int] = {}
        for page in held:
            counts[page] = counts.get(page, 0) + 1
        if counts != self._users:
            raise AssertionError(f"pages held by sequences {counts} differ from those accounted for {self._users}")
        if set(self._free) & set(self._users) or len(self._free) + len(self._users) != self.total - 1:
            raise AssertionError(f"{len(self._free)} free + {len(self._users)} used pages of {self.total - 1}")
