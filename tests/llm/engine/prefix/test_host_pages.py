"""Pages in host memory: what is found by a name is what was computed for it.

The oracle is a memory of dictionaries, in which copies, cleaning and steps are carried out as an executor would.
"""

from hypothesis import given, settings
from hypothesis import strategies as st

from apps.llm.engine.prefix.host_pages import HostPages
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.engine.prefix.pool_log import PoolLog
from apps.llm.engine.prefix.preparing import prepare
from apps.llm.engine.prefix.reuse import PrefixReuse

PAGE = 16
PROMPTS = [[bytes([prompt, page]) for page in range(4)] for prompt in range(6)]


class Memory:
    """An executor's part in this: what is in each page, on the devices and in host memory."""

    def __init__(self) -> None:
        self.device: dict[int, bytes] = {}
        self.host: dict[int, bytes] = {}
        self.kept = 0

    def keep(self, transfer) -> None:
        self.kept += len(transfer.pages)
        self.host |= {row: self.device[page] for page, row in zip(*transfer)}

    def bring_back(self, transfer) -> None:
        assert len(set(transfer.pages)) == len(transfer.pages), "none is written twice"
        self.device |= {page: self.host[row] for page, row in zip(*transfer)}

    def clean(self, pages) -> None:
        self.device |= dict.fromkeys(pages, b"clean")


TURNS = st.lists(
    st.lists(st.tuples(st.sampled_from(["enter", "leave", "spoil"]), st.integers(0, 99)), min_size=1, max_size=4),
    max_size=40,
)


@settings(deadline=None, max_examples=300)
@given(TURNS, st.integers(5, 12), st.integers(1, 12))
def test_what_is_found_is_what_was_computed(turns, pages: int, rows: int) -> None:
    pool, memory = PagePool(pages, host_total=rows), Memory()
    held: list[list[int]] = []
    for turn in turns:
        computed: dict[int, bytes] = {}
        found: list[tuple[int, bytes]] = []
        for action, number in turn:
            if action == "enter":
                names = PROMPTS[number % len(PROMPTS)][: 1 + number % 4]
                own = pool.match(names)
                own += pool.bring_back(names[len(own) :])
                found += zip(own, names)
                rest = pool.allocate(len(names) - len(own))
                if rest is None:  # as the scheduler does, when there is no room for the prompt
                    pool.release(own)
                    continue
                for page, name in zip(rest, names[len(own) :]):
                    computed[page] = name
                    pool.publish(page, name)
                held.append(own + rest)
            elif held and action == "leave" and not computed:  # what is computed in this turn leaves in a later one
                pool.release(held.pop(number % len(held)))
            elif held and action == "spoil" and not computed:
                pool.spoil(held[number % len(held)])
        prepare(PrefixReuse(pool, PAGE), memory)
        pool.check(page for own in held for page in own)
        still = {page: name for page, name in found if pool.named([name]) == [page]}
        memory.device |= computed
        for page, name in still.items():
            assert memory.device[page] == name
        for names in PROMPTS:
            for name in names:
                for page in pool.named([name]):
                    assert memory.device[page] == name
                assert (name in pool.news) == bool(pool.named([name]) or name in pool.host._row_of)
        for name, row in pool.host._row_of.items():
            assert memory.host[row] == name


def test_a_page_goes_to_host_memory_once() -> None:
    pool, memory = PagePool(3, host_total=4), Memory()
    own = pool.allocate(1)
    memory.device[own[0]] = b"a"
    pool.publish(own[0], b"a")
    for _ in range(3):
        pool.release(own)
        others = pool.allocate(2)
        prepare(PrefixReuse(pool, PAGE), memory)
        pool.release(others)
        own = pool.bring_back([b"a"])
        prepare(PrefixReuse(pool, PAGE), memory)
        assert memory.device[own[0]] == b"a"
    assert memory.kept == 1, "its copy was there all the time"
    assert pool.host.returned == 3


def test_the_copy_used_longest_ago_goes_first_but_none_that_is_read() -> None:
    news = PoolLog()
    host = HostPages(2, news)
    host.keep(1, b"a")
    host.keep(2, b"b")
    host.take()
    host.keep(9, b"a")
    host.keep(3, b"c")
    assert [host.holds(name) for name in (b"a", b"b", b"c")] == [True, False, True]
    host.keep(4, b"d")
    assert not host.holds(b"d"), "both rows are read in this turn"
    host.take()
    host.keep(4, b"d")
    assert host.holds(b"d")
    assert set(news.since(0).stored) == {b"c", b"d"}


def test_spoiled_contents_are_forgotten_everywhere() -> None:
    """Their name was kept before the step that found them out was read."""
    pool, memory = PagePool(3, host_total=4), Memory()
    pages = pool.allocate(2)
    memory.device |= dict.fromkeys(pages, b"bad")
    pool.publish(pages[0], b"a")
    pool.release(pages)
    again = pool.allocate(2)
    prepare(PrefixReuse(pool, PAGE), memory)
    pool.spoil([], [b"a"])
    assert pool.bring_back([b"a"]) == [] and pool.news.since(0).stored == ()
    pool.check(again)
