"""The page pool: who holds a page, which contents can be found again, and that the books balance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.llm.engine.prefix.page_pool import PagePool


def test_page_zero_is_never_given_out() -> None:
    pool = PagePool(5)
    assert sorted(pool.allocate(4)) == [1, 2, 3, 4]
    assert pool.allocate(1) is None
    assert pool.allocate(0) == []


def test_all_or_nothing() -> None:
    pool = PagePool(4)
    assert pool.allocate(4) is None
    assert (pool.free, pool.used) == (3, 0)


def test_released_pages_are_found_by_name() -> None:
    pool = PagePool(4)
    (page,) = pool.allocate(1)
    pool.publish(page, b"a")
    pool.release([page])
    assert pool.match([b"a", b"b"]) == [page]
    assert pool.match([b"b", b"a"]) == [], "a match is a run from the first name on"
    pool.check([page])


def test_without_reuse_nothing_is_found() -> None:
    pool = PagePool(4, reuse=False)
    (page,) = pool.allocate(1)
    pool.publish(page, b"a")
    assert pool.match([b"a"]) == []


def test_least_recently_used_contents_go_first_and_a_prefix_outlives_what_followed() -> None:
    pool = PagePool(5)
    first, second = pool.allocate(2), pool.allocate(2)
    for page, name in zip(first + second, [b"a1", b"a2", b"b1", b"b2"]):
        pool.publish(page, name)
    pool.release(first)
    pool.release(second)
    assert pool.allocate(1) == [first[1]], "the end of the oldest sequence"
    held = pool.match([b"a1", b"a2"])
    assert held == first[:1]
    assert pool.allocate(2) == [second[1], second[0]]


def test_unnamed_pages_go_before_named_ones() -> None:
    pool = PagePool(4)
    pages = pool.allocate(3)
    pool.publish(pages[0], b"a")
    pool.release(pages)
    assert set(pool.allocate(2)) == set(pages[1:])
    assert pool.match([b"a"]) == pages[:1]


def test_the_first_page_of_a_name_stays() -> None:
    pool = PagePool(4)
    first, second = pool.allocate(2)
    pool.publish(first, b"a")
    pool.publish(second, b"a")
    pool.release([first, second])
    assert pool.match([b"a"]) == [first]


def test_check_sees_a_lost_page() -> None:
    pool = PagePool(4)
    pages = pool.allocate(2)
    pool.check(pages)
    with pytest.raises(AssertionError):
        pool.check(pages[:1])
    with pytest.raises(AssertionError):
        pool.check([*pages, pages[0]])


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["allocate", "release", "publish", "match"]), st.integers(0, 5)), max_size=60)
)
def test_books_balance(operations: list[tuple[str, int]]) -> None:
    pool, holders = PagePool(8), []
    for operation, number in operations:
        if operation == "allocate":
            if (pages := pool.allocate(number)) is not None:
                assert len(set(pages)) == number
                holders.append(pages)
        elif operation == "match":
            holders.append(pool.match([bytes([number]), bytes([number + 1])]))
        elif holders and operation == "release":
            pool.release(holders.pop(number % len(holders)))
        elif holders and holders[-1]:
            pool.publish(holders[-1][number % len(holders[-1])], bytes([number]))
        pool.check(page for pages in holders for page in pages)


def test_a_spoiled_page_is_cleaned_before_its_next_user_and_never_found() -> None:
    pool = PagePool(8)
    first = pool.allocate(3)
    for page, name in zip(first, (b"x", b"y")):
        pool.publish(page, name)
    second = pool.match([b"x", b"y"])
    pool.spoil(first)
    pool.release(first)
    assert pool.match([b"x"]) == [] == pool.named([b"x", b"y"])
    assert pool.to_clean() == first[2:], "the others are still read"
    pool.publish(second[0], b"x")
    assert pool.match([b"x"]) == [], "what they hold is not to be found again"
    pool.release(second)
    pages = pool.allocate(7)
    assert sorted(pool.to_clean()) == sorted(second), "their next user waits for that"
    assert pool.to_clean() == []
    pool.check(pages)


@given(st.lists(st.tuples(st.sampled_from(["take", "spoil", "give", "clean"]), st.integers(0, 9)), max_size=40))
def test_no_page_is_taken_twice_without_being_cleaned(turns: list[tuple[str, int]]) -> None:
    """The oracle is a set of pages that hold something bad."""
    pool, holders, bad = PagePool(7), list[list[int]](), set[int]()
    for action, number in turns:
        if action == "take" and (pages := pool.allocate(1 + number % 3)) is not None:
            holders.append(pages)
            cleaned = pool.to_clean()  # as before each step
            assert bad & set(pages) <= set(cleaned)
            bad -= set(cleaned)
        elif action == "spoil" and holders:
            pool.spoil(holders[number % len(holders)])
            bad |= set(holders[number % len(holders)])
        elif action == "give" and holders:
            pool.release(holders.pop(number % len(holders)))
        elif action == "clean":
            cleaned = set(pool.to_clean())
            assert cleaned <= bad and cleaned.isdisjoint(page for pages in holders for page in pages)
            bad -= cleaned
        pool.check(page for pages in holders for page in pages)
