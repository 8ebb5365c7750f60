"""Pages that tests share."""

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.playground.page import Start, running


@pytest.fixture(scope="module")
def start() -> Iterator[Start]:
    with ExitStack() as pages:
        yield lambda url: pages.enter_context(running(url))
