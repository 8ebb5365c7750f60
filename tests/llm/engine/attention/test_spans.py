"""An image's tokens see all of it, those after them too: every attention against the dense one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.llm.engine.attention.test_attention import (
    EVERY,
    NOT_FINITE,
    SLOW,
    SPEC,
    assert_close,
    dense,
    make,
    paged,
)

LENGTHS = (200, 1), (16, 1), (300, 170), (19, 19), (90, 40)
"""Of a mixed step: the last sequence's first image is in its cache as far as its first ten tokens."""
IMAGES = {2: ((135, 280), (282, 283), (290, 300)), 3: ((2, 18),), 4: ((40, 70), (75, 88))}
SHAPE = 256, 6


@pytest.mark.slow
@EVERY
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"window": 12},
        pytest.param({"window": 150, "softcap": 3.0, "page_size": 128}, marks=SLOW),
    ],
    ids=str,
)
def test_images_are_seen_both_ways(impl: Any, changes: dict[str, Any], interpreted: None) -> None:
    spec = replace(SPEC, both_ways=True, **changes)
    case = make(LENGTHS, spec)
    wanted = dense(case, spec, IMAGES)
    assert any(np.abs(a - b).max() > 0.1 for a, b in zip(wanted, dense(case, spec)))
    assert_close(paged(case, impl, spec, SHAPE, images=IMAGES), wanted, 2e-5)
    assert_close(paged(case, impl, spec, SHAPE), dense(case, spec), 2e-5)


@EVERY
@NOT_FINITE
def test_what_a_page_held_before_is_never_seen(impl: Any, bad: float, interpreted: None) -> None:
    spec = replace(SPEC, both_ways=True)
    case = make(LENGTHS, spec)
    clean, dirty = (paged(case, impl, spec, SHAPE, stale=stale, images=IMAGES) for stale in (0, bad))
    for alone, beside in zip(clean, dirty):
        assert (alone == beside).all()
