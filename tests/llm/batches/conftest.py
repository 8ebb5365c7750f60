import pytest

from apps.llm.batches import runner


@pytest.fixture(autouse=True)
def undoubting(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that is alone need not wait and see whether another one took a lease at the same moment."""
    monkeypatch.setattr(runner, "DOUBT_S", 0.01)
