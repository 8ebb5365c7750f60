"""The index knows what each cache has, whatever the order of their news."""

from hypothesis import given
from hypothesis import strategies as st

from apps.llm.api import CacheNews
from apps.llm.placement.cache_index import EXPECTED_S, CacheIndex

CACHES, NAMES = 3, [bytes([number]) for number in range(6)]
changes = st.lists(
    st.tuples(
        st.integers(0, CACHES - 1), st.booleans(), st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES))
    )
)


def leading(names: list[bytes], having: set[bytes]) -> int:
    return next((number for number, name in enumerate(names) if name not in having), len(names))


@given(changes, st.permutations(NAMES))
def test_it_has_what_was_announced(changes: list[tuple[int, bool, set[bytes], set[bytes]]], asked: list[bytes]) -> None:
    index, having = CacheIndex(CACHES), [set[bytes]() for _ in range(CACHES)]
    for number, (cache, whole, stored, forgotten) in enumerate(changes):
        forgotten = set() if whole else forgotten - stored
        news = CacheNews(number=number, whole=whole, stored=tuple(stored), forgotten=tuple(forgotten))
        index.apply(cache, news)
        having[cache] = (set() if whole else having[cache] - forgotten) | stored
        assert index.numbers[cache] == number
    assert index.found(asked, 0.0) == [leading(asked, own) for own in having]
    assert len(index) == len(set().union(*having))


@given(st.lists(st.tuples(st.integers(0, CACHES - 1), st.sampled_from(NAMES), st.floats(0, 20)), max_size=20))
def test_what_is_expected_counts_for_a_while(sent: list[tuple[int, bytes, float]]) -> None:
    index, now, until = CacheIndex(CACHES), 0.0, dict[tuple[int, bytes], float]()
    for cache, name, later in sent:
        now += later
        index.expect(cache, [name], now)
        until[cache, name] = now + EXPECTED_S
        for cache in range(CACHES):
            known = {name for name in NAMES if until.get((cache, name), 0) > now}
            assert index.found(NAMES, now)[cache] == leading(NAMES, known)
    assert index.found(NAMES, now + EXPECTED_S) == [0] * CACHES
    assert len(index) == 0, "and nothing of it stays"
