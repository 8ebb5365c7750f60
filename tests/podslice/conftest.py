"""What tests of whole servers need."""

import subprocess
from collections.abc import Iterator

import pytest


@pytest.fixture
def runs() -> Iterator[list[subprocess.Popen[str]]]:
    """What a test starts; it is stopped however the test ends."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for run in started:
        run.terminate()
    for run in started:
        run.wait(240)
