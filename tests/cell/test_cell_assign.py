"""Which model gets how many slices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.cell.desired.state import Published
from apps.cell.reconcile import assign


def models(**wanted: int) -> dict[str, Published]:
    """In the order in which they were published."""
    return {
        name: Published(model_path="catalog.local", replicas=replicas, order=order)
        for order, (name, replicas) in enumerate(wanted.items())
    }


@pytest.mark.parametrize(
    ("wanted", "slices", "placed", "given"),
    [
        ({"a": 2}, 2, {}, {"a": 2}),
        ({"a": 3}, 2, {}, {"a": 2}),
        ({"a": 2, "b": 1}, 2, {}, {"a": 1, "b": 1}),  # one for each before a second for anyone
        ({"a": 2, "b": 1}, 2, {"a": 2}, {"a": 2, "b": 0}),  # what is placed stays
        ({"a": 2, "b": 1}, 3, {"a": 2}, {"a": 2, "b": 1}),
        ({"a": 1, "b": 1}, 2, {"a": 2}, {"a": 1, "b": 1}),  # a slice that its model gives back
        ({"a": 2, "b": 2}, 1, {"b": 1}, {"a": 0, "b": 1}),
        ({"a": 2, "b": 2}, 1, {"a": 1, "b": 1}, {"a": 1, "b": 0}),  # a slice less than there was
        ({"a": 0}, 2, {"a": 1}, {"a": 0}),
        ({"a": 5, "b": 5}, None, {}, {"a": 5, "b": 5}),
        ({}, 2, {"gone": 2}, {}),
    ],
)
def test_table(wanted: dict[str, int], slices: int | None, placed: dict[str, int], given: dict[str, int]) -> None:
    assert assign(models(**wanted), slices, placed) == given


COUNTS = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 4))


@given(COUNTS, st.integers(0, 8), COUNTS)
def test_none_more_than_there_are_and_none_left_over(
    wanted: dict[str, int], slices: int, placed: dict[str, int]
) -> None:
    published = models(**wanted)
    found = assign(published, slices, placed)
    assert all(0 <= found[name] <= wanted[name] for name in wanted)
    assert sum(found.values()) == min(slices, sum(wanted.values()))
    assert assign(published, slices, found) == found, "a second look changes nothing"
