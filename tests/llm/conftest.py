"""The demo model behind HTTP without Ray, for the tests of several folders."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def crowded_server() -> Iterator[Any]:
    """A `LocalServer` whose queue holds two requests."""
    from tests.llm.serve.serving import local_server

    with local_server(max_waiting=2) as server:
        yield server
