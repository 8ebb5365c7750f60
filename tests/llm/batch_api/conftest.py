import pytest

from apps.llm.batch_api import runner


@pytest.fixture(autouse=True)
def undoubting(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait after taking a lease: a lone replica has no competitor for it."""
    monkeypatch.setattr(runner, "CONFIRM_S", 0.01)
