"""Numba's cache on disk, damaged, unreadable or on a full disk. The oracle is the function in plain Python."""

import json
import logging
import os
import random
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import pytest

from apps.llm.engine.cpu import kernel_cache
from tests.llm.engine import tiny_models

DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "empty": lambda whole, _: b"",
    "cut": lambda whole, draw: whole[: draw.randrange(len(whole))],
    "flipped": lambda whole, draw: _flipped(whole, draw.randrange(len(whole))),
    "other": lambda whole, draw: draw.randbytes(len(whole)),
}


def _flipped(whole: bytes, at: int) -> bytes:
    return whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :]


SOURCE = """
from numba import types
from apps.llm.engine.cpu.kernel_cache import callback, kernel

@kernel()
def thrice(x):
    return 3 * x

@callback(types.int64(types.int64))
def plus(x):
    return thrice(x) + 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))  # Numba reads it again when it compiles
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setattr(kernel_cache, "_said", set())
    (tmp_path / "module.py").write_text(SOURCE)
    return tmp_path / "kernels"


def check(folder: Path) -> int:
    """Compile or load both as a new process would, see that they are right, and return how many came from the cache."""
    module = runpy.run_path(str(folder.parent / "module.py"))
    plus, thrice = module["plus"], module["thrice"]
    assert [plus.ctypes(n) for n in (0, 5, -7)] == [3 * n + 1 for n in (0, 5, -7)]
    assert thrice(4) == 12
    return int(plus._cache_hits + sum(thrice.stats.cache_hits.values()))


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_written_again_and_logged_by_name(
    damage: str, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert check(folder) == 0
    assert check(folder) == 2, "whole, both are used"
    draw = random.Random(damage)
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".nbi", ".nbc"))
    assert len(files) == 4
    for damaged in [[path] for path in files] + [files]:
        caplog.clear()
        kernel_cache._said.clear()  # as in a new process
        for path in damaged:
            path.write_bytes(DAMAGES[damage](path.read_bytes(), draw))
        check(folder)
        named = {path for path in files if path.name in caplog.text}
        assert named == ({path for path in damaged if path.suffix == ".nbi"} or set(damaged)), (
            "data of no index is not read"
        )
        caplog.clear()
        assert check(folder) == 2, damaged
        assert not caplog.records


def test_what_cannot_be_written_is_done_without_and_logged_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder.write_text("a file where the folder should be")
    assert check(folder) == check(folder) == 0
    assert len(caplog.records) == 1
    assert "not kept on disk" in caplog.text


def test_a_folder_that_can_only_be_read_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check(folder)

    def refused(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Read-only file system")

    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    assert check(folder) == 2
    assert not caplog.records


def test_a_start_that_compiles_kernels_says_so_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `podslice serve` reads it, which shows the stage."""
    events = folder.parent / "events"
    monkeypatch.setenv("PODSLICE_EVENTS", str(events))

    def stages_of_a_start() -> list[str]:
        events.write_text("")
        kernel_cache._say_compiling.cache_clear()  # as in a new process
        check(folder)
        return [json.loads(line)["stage"] for line in events.read_text().splitlines()]

    compiling = ["compiling kernels for this CPU, once"]
    assert stages_of_a_start() == compiling, "there are two kernels"
    assert stages_of_a_start() == []
    next(folder.rglob("*.nbc")).write_bytes(b"")
    assert stages_of_a_start() == compiling


@pytest.mark.slow
def test_a_full_disk_is_no_reason_to_stop(tmp_path: Path) -> None:
    """With a limit on the size of files, which the kernel enforces as it does a full disk."""
    script = "import resource, logging; logging.basicConfig(); resource.setrlimit(resource.RLIMIT_FSIZE, (512, 512))\n"
    script += "from pathlib import Path; from tests.llm.engine.cpu.test_kernel_cache import check\n"
    script += f"print(check(Path({str(tmp_path / 'kernels')!r})))"
    (tmp_path / "module.py").write_text(SOURCE)
    environment = tiny_models.environment(NUMBA_CACHE_DIR=str(tmp_path / "kernels"))
    ran = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "0\n"), ran.stderr
    assert "File too large" in ran.stderr
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if ".tmp." in name]


def test_a_whole_file_of_another_numba_is_no_damage(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    check(folder)
    monkeypatch.setattr(numba, "__version__", "0.0.1")
    caplog.set_level(logging.WARNING)
    assert check(folder) == 0
    assert not caplog.records
