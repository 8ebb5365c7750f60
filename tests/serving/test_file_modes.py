"""Who may read what is written. The oracle is `stat`, with the most open umask."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from apps.cell.desired.state import CellState
from apps.cell.desired.store import Store
from apps.llm.batch_api.files.storage import Storage
from apps.serving.files import Holder, Lease, create, make_folder, writing
from tests.llm.engine import tiny_models

LOCAL = fsspec.filesystem("file")


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path) -> set[tuple[bool, str]]:
    """The modes of everything in a folder: whether it is a folder, and its bits."""
    found = [folder, *folder.rglob("*")]
    return {(path.is_dir(), oct(stat.S_IMODE(path.lstat().st_mode))) for path in found}


def test_what_is_written_is_the_users_alone(tmp_path: Path) -> None:
    root = tmp_path / "new"
    create(LOCAL, f"{root}/a/b/record.json", b"{}")
    with writing(LOCAL, f"{root}/c/part") as file:
        file.write(b"text")
    (root / "c" / "left.partial").touch(0o666)
    with writing(LOCAL, f"{root}/c/left") as file:
        file.write(b"text")
    os.unlink(root / "c" / "left")
    Lease(LOCAL, f"{root}/lease.json", Holder("me", "here"), 1.0).renew()
    (root / "c" / "left.partial").unlink(missing_ok=True)
    assert modes(root) == {(True, "0o700"), (False, "0o600")}


def test_results_of_jobs_follow_the_umask(tmp_path: Path) -> None:
    with writing(LOCAL, f"{tmp_path}/out/part.jsonl", private=False) as file:
        file.write(b"text")
    assert modes(tmp_path / "out") == {(True, "0o777"), (False, "0o666")}


def test_folders_that_are_there_keep_their_mode(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir(0o755)
    make_folder(str(tmp_path / "mine" / "new"))
    assert oct(stat.S_IMODE((tmp_path / "mine").stat().st_mode)) == "0o755"
    assert modes(tmp_path / "mine" / "new") == {(True, "0o700")}


def test_a_cells_state_and_batches(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "cells"), "test")
    store.write(1, CellState(cell="test"))
    batches = Storage(str(tmp_path / "batches"))
    batches.create(batches.path("owner", "id", "end.json"), {"a": 1})
    for folder in ("cells", "batches"):
        assert modes(tmp_path / folder) == {(True, "0o700"), (False, "0o600")}, folder


@pytest.mark.slow
def test_a_servers_processes_write_for_their_user_alone(tmp_path: Path) -> None:
    """Also what others' code writes there, as Ray its token, and a token that was open before."""
    (tmp_path / ".ray").mkdir(0o755)
    (tmp_path / ".ray" / "auth_token").touch(0o644)
    script = "import subprocess, pathlib, podslice.server as s; s.keep_private()\n"
    script += f"subprocess.run(['sh', '-c', 'mkdir {tmp_path}/logs; echo x > {tmp_path}/logs/x'])"
    subprocess.run([sys.executable, "-c", script], env=tiny_models.environment(HOME=str(tmp_path)), check=True)
    assert oct(stat.S_IMODE((tmp_path / ".ray" / "auth_token").stat().st_mode)) == "0o600"
    assert modes(tmp_path / "logs") == {(True, "0o700"), (False, "0o600")}
