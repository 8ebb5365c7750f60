"""`python -m tools.budgets`: every line of the product is in one room, and a room that outgrows its budget fails."""

from pathlib import Path

import pytest

from tools import budgets


def test_the_rooms_make_up_the_product() -> None:
    assert sum(room.lines() for room in budgets.ROOMS) == budgets.PRODUCT.lines() > 10_000


@pytest.fixture
def house(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(budgets, "ROOT", tmp_path)
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "a.py").write_text("x = 1\n" * 110)
    return tmp_path


@pytest.mark.parametrize(
    ("lines", "ceiling", "status", "said"),
    [
        (0, 0, 0, ""),
        (1, 0, 1, "OVER its limit of 110"),
        (1, 111, 0, "to shrink; for now at most 111"),
        (2, 111, 1, "OVER its limit of 111"),
        (0, 111, 0, "take its ceiling out"),
    ],
)
def test_a_room_over_its_limit_fails(
    house: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lines: int,
    ceiling: int,
    status: int,
    said: str,
) -> None:
    (house / "room" / "b.py").write_text("x = 1\n" * lines)
    room = budgets.Room("hall", 100, ("room",), ceiling=ceiling)
    monkeypatch.setattr(budgets, "ROOMS", ())
    monkeypatch.setattr(budgets, "PRODUCT", room)
    assert budgets.main() == status
    written = capsys.readouterr()
    assert said in written.out and ("hall" in written.err) == bool(status)


def test_a_room_that_has_moved_is_named(house: Path) -> None:
    with pytest.raises(FileNotFoundError, match="attic does not exist"):
        budgets.Room("attic", 1, ("attic",)).lines()
