"""Processes that start side by side on one machine compile the CPU attention's kernels once."""

import subprocess
import sys
from pathlib import Path

import numba
import pytest
import tiny_models

from apps.llm.engine.attention.cpu import calls as cpu_calls

REGISTER = """
from apps.llm.engine.attention.cpu import calls as cpu_calls
cpu_calls.register("f32")
handlers = [kernel for kernel in cpu_calls._alive if hasattr(kernel, "cache_hits")]
print(len(handlers), sum(kernel.cache_hits for kernel in handlers))
"""


def start(folder: Path) -> subprocess.Popen[str]:
    environment = tiny_models.environment(NUMBA_CACHE_DIR=str(folder))
    command = [sys.executable, "-c", REGISTER]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(processes: list[subprocess.Popen[str]]) -> list[str]:
    found = [process.communicate(timeout=200) for process in processes]
    assert [process.returncode for process in processes] == [0] * len(processes), found
    return sorted(out.strip() for out, _ in found)


def test_one_compiles_and_the_others_wait(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    assert ends([start(folder) for _ in range(3)]) == ["3 0", "3 3", "3 3"]


def test_a_folder_that_cannot_be_locked_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    (tmp_path / "podslice-kernels.lock").mkdir()
    with cpu_calls._one_process_at_a_time():
        pass
    assert "cannot be locked" in caplog.text
