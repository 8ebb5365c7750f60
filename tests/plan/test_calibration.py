"""The figures that others have published, and the page of them."""

import pytest

from apps.plan.calibration import Figure, correction, figures, spread
from apps.plan.llm.architectures import find
from ray_configs.llm import LLMConfig
from tools.calibrate import PAGE, written

SAME = {"name": "x", "system": "y", "source": "z", "model": "m", "slice": "v5e:2x2", "prompt": "8", "answer": "8"}


@pytest.mark.parametrize(("unit", "published", "estimate"), [("ms/token", 20.0, 10.0), ("tokens/s", 500.0, 1000.0)])
def test_a_ratio_of_two_means_that_theirs_took_twice_as_long(unit: str, published: float, estimate: float) -> None:
    values = {"concurrency": 1, "requests": 1, "unit": unit, "published": published, "estimate": estimate}
    assert Figure.model_validate(SAME | values).ratio == 2.0


@pytest.mark.parametrize("figure", figures(), ids=lambda figure: figure.name)
def test_each_can_be_planned(figure: Figure) -> None:
    config = LLMConfig.model_validate({**figure.fields, "model": figure.model, "slice": figure.slice})
    assert config.slice is not None and find(config).arch.num_params > 1e9
    assert figure.concurrency <= figure.requests


def test_there_are_enough_to_speak_of_a_median() -> None:
    known = [figure for figure in figures() if figure.estimate is not None]
    assert len(known) >= 12 and len({figure.system for figure in known}) >= 3
    low, high = spread()
    assert 0.2 < low <= 1.0 <= high < 5 and 0.3 < correction() < 4
    assert all(figure.floor is not None and figure.over_floor >= figure.ratio for figure in known)


def test_the_page_is_of_these_figures() -> None:
    assert PAGE.read_text() == written(), "python -m tools.calibrate --page"
