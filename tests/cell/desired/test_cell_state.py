"""The state that a cell keeps: written whole, read strictly, never overwritten by who does not understand it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.cell.desired.state import CellState
from apps.cell.desired.store import LEASE_S, StateError, StateTaken, Store
from apps.cell.errors import AlreadyTaken, Unavailable
from apps.serving import files
from apps.serving.files import Holder
from tests.cell.desired.killed_cell import opened

MODEL = {"model": "/sax/test/m", "model_path": "catalog.local", "checkpoint": "None", "replicas": 2}
KILLS = 120


def newest(folder: Path) -> Path:
    return max((folder / "test").glob("state-*.json"))


@pytest.mark.slow
def test_killed_at_random_moments_nothing_answered_is_lost(tmp_path: Path) -> None:
    command = [sys.executable, str(Path(__file__).with_name("killed_cell.py")), str(tmp_path), str(KILLS), "7"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout)
    assert told["answered"] > KILLS / 2 and told["killed_in_call"] > KILLS / 4, told
    # What the killed ones left half-written goes with the next write, once it is clear that nobody finishes it.
    for name in os.listdir(tmp_path / "test"):
        if name.endswith(files.PARTIAL):
            os.utime(tmp_path / "test" / name, (0, 0))
    admin = opened(str(tmp_path))
    admin.publish(None, MODEL)
    left = [name for name in os.listdir(tmp_path / "test") if not name.startswith("state-0")]
    assert left == ["lease.json"]
    assert len(list((tmp_path / "test").glob("state-*.json"))) == 10


def test_a_new_cell_serves_what_the_old_one_published(tmp_path: Path) -> None:
    admin = opened(str(tmp_path))
    admin.publish(None, MODEL | {"overrides": {"max_batch_size": 4}})
    admin.set_acl(None, {"model": "/sax/test/m", "method": "lm.score", "acl": "acl/alice"})
    again = opened(str(tmp_path))
    assert again.state == admin.state and again.state.models["/sax/test/m"].acls == {"lm.score": "alice"}


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "no json", "deep", "other cell"])
def test_a_damaged_file_stops_the_cell_and_stays(tmp_path: Path, damage: str) -> None:
    opened(str(tmp_path)).publish(None, MODEL)
    file = newest(tmp_path)
    content = file.read_bytes()
    file.write_bytes(
        {
            "cut": content[: len(content) // 2],
            "flipped": content.replace(b"catalog.local", b"catalog.Local"),
            "empty": b"",
            "no json": b"[]",
            "deep": b'{"format":' * 100_000,
            "other cell": content.replace(b'"cell": "test"', b'"cell": "rest"'),
        }[damage]
    )
    damaged = file.read_bytes()
    with pytest.raises(StateError, match=rf"{file.name}.*(damaged|is cell)"):
        opened(str(tmp_path))
    assert file.read_bytes() == damaged and newest(tmp_path) == file


def test_a_newer_format_stops_the_cell_and_stays(tmp_path: Path) -> None:
    opened(str(tmp_path)).publish(None, MODEL)
    file = newest(tmp_path)
    content = json.loads(file.read_text()) | {"format": 2, "state": "nobody knows"}
    file.write_text(json.dumps(content))
    with pytest.raises(StateError, match=r"newer Podslice \(format 2; this one reads up to 1\)"):
        opened(str(tmp_path))
    assert json.loads(file.read_text()) == content and newest(tmp_path) == file


def test_two_writers_of_one_version_and_nothing_of_the_first_is_lost(tmp_path: Path) -> None:
    """Both believe that they hold the lease: a replica that Serve gave up, and its successor."""
    one, other = opened(str(tmp_path)), opened(str(tmp_path))
    one.publish(None, MODEL)
    with pytest.raises(Unavailable, match="another cell"):
        other.publish(None, MODEL | {"model": "/sax/test/n"})
    with pytest.raises(AlreadyTaken):
        other.publish(None, MODEL)  # it has looked meanwhile
    other.publish(None, MODEL | {"model": "/sax/test/n"})
    assert list(opened(str(tmp_path)).state.models) == ["/sax/test/m", "/sax/test/n"]


def test_a_write_whose_answer_was_lost_is_no_conflict(tmp_path: Path) -> None:
    store = Store(str(tmp_path), "test")
    state = opened(str(tmp_path)).state
    store.write(2, state)
    store.write(2, state)
    with pytest.raises(StateTaken):
        Store(str(tmp_path), "test").write(2, state)


def test_a_full_disk_is_said_and_changes_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for it: the write fails in the middle in the same way."""
    import resource
    import signal

    admin = opened(str(tmp_path))
    before, limits = newest(tmp_path), resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(Unavailable, match=r"cannot be written: File too large; the call changed nothing"):
            admin.publish(None, MODEL)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert newest(tmp_path) == before and admin.state.models == {}
    admin.publish(None, MODEL)
    assert "/sax/test/m" in opened(str(tmp_path)).state.models


def test_the_second_cell_looks_on_until_the_first_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from apps.cell.admin import Admin
    from ray_configs.cell import CellConfig

    clock = [0.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: clock[0])

    def cell(owner: str) -> Admin:
        store = Store(str(tmp_path), "test")
        admin = Admin(CellConfig(state_uri=str(tmp_path)), store, store.lease(Holder(owner, f"the {owner} cluster")))
        admin.open()
        return admin

    first, second = cell("first"), cell("second")
    assert second.undecided, "the first one's words may be left over"
    first.publish(None, MODEL)
    with pytest.raises(Unavailable, match=r"another cell \(the first cluster\) holds the lease") as refusal:
        second.publish(None, MODEL | {"model": "/sax/test/n"})
    assert refusal.value.retry_after_s == LEASE_S
    for _ in range(6):  # while the first one lives
        clock[0] += LEASE_S / 2
        first.renew()
        second.renew()
        assert not second.undecided
    assert "/sax/test/m" in second.state.models, "it serves what the other one publishes"
    clock[0] += LEASE_S / 2
    second.renew()
    with pytest.raises(Unavailable):
        second.unpublish(None, {"model": "/sax/test/m"})
    clock[0] += LEASE_S
    second.renew()
    second.publish(None, MODEL | {"model": "/sax/test/n"})
    first.renew()
    with pytest.raises(Unavailable, match="the second cluster"):
        first.unpublish(None, {"model": "/sax/test/m"})
    second.close()
    first.renew()  # given back: no waiting
    first.unpublish(None, {"model": "/sax/test/m"})


def test_a_cell_that_takes_over_nothing_begins_the_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one ended before it wrote anything."""
    clock = [0.0]
    monkeypatch.setattr(files.time, "monotonic", lambda: clock[0])
    Store(str(tmp_path), "test").lease(Holder("gone", "elsewhere")).renew()
    admin = opened(str(tmp_path))
    clock[0] += LEASE_S - 1
    admin.renew()
    assert admin.undecided
    clock[0] += 1
    admin.renew()
    assert not admin.undecided
    assert admin._version == 1 and opened(str(tmp_path)).state == admin.state


def test_a_state_with_a_relay_key_is_read() -> None:
    """As it was written while fronts sent a key to the models' own HTTP servers."""
    state = CellState(cell="test", published=3)
    assert CellState.model_validate(state.model_dump() | {"relay_key": "secret"}) == state
