"""A CPU's kernels: compiled once on a machine, and called by no XLA but that of their version."""

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numba
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.llm.engine import kernels
from apps.llm.engine.attention.spec import FP8
from apps.llm.engine.attention.xla import XlaAttention
from apps.llm.engine.cpu import _of_this_source, ffi
from apps.llm.engine.cpu.attention import CpuAttention
from tests.llm.engine import tiny_models

REGISTER = """
from apps.llm.engine.cpu import attention_calls, ffi
attention_calls.register("f32")
handlers = [kernel for kernel in ffi._alive if hasattr(kernel, "cache_hits")]
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


def test_each_state_of_the_sources_has_its_folder(tmp_path: Path) -> None:
    own = _of_this_source(tmp_path)
    assert own.parent == tmp_path
    assert _of_this_source(own) == own, "a child process inherits it"


@pytest.mark.slow
def test_threads_that_ask_at_once_register_once() -> None:
    """XLA takes each name once. Threads that load prepared programs ask for the same kernels as the engine."""
    made: list[str] = []

    def register() -> None:
        time.sleep(0.05)
        made.append("kernels")

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: ffi.compile_once("kernels of this test", register), range(8)))
    assert made == ["kernels"]


@pytest.mark.slow
def test_one_compiles_and_the_others_wait(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    assert ends([start(folder) for _ in range(3)]) == ["3 0", "3 3", "3 3"]


def test_a_folder_that_cannot_be_locked_is_no_reason_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    (tmp_path / "podslice-kernels.lock").mkdir()
    with ffi._one_process_at_a_time():
        pass
    assert "cannot be locked" in caplog.text


@pytest.mark.parametrize(
    ("header", "has"),
    [("#define XLA_FFI_API_MAJOR 0\n#define XLA_FFI_API_MINOR 6\n", "0.6"), (None, "none that can be found")],
)
def test_an_xla_that_calls_them_otherwise_computes_attention_itself(
    header: str | None,
    has: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("tensor",))
    assert isinstance(kernels.attention("auto", mesh, [64], 16), CpuAttention), "this jaxlib is the tested one"
    folder = tmp_path / "xla" / "ffi" / "api"
    folder.mkdir(parents=True)
    if header is not None:
        (folder / "c_api.h").write_text(header)
    monkeypatch.setattr(jax.ffi, "include_dir", lambda: str(tmp_path))
    ffi.usable.cache_clear()
    try:
        for name in ("auto", "cpu"):
            assert isinstance(kernels.attention(name, mesh, [64], 16), XlaAttention)
    finally:
        ffi.usable.cache_clear()
    assert f"jaxlib has {has}" in caplog.text


def test_sinks_need_an_implementation_that_has_them() -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("tensor",))
    assert isinstance(kernels.attention("auto", mesh, [64], 16, sinks=True), CpuAttention)
    with pytest.raises(ValueError, match=r"attention 'pallas' does not fit .* heads of 128 channels"):
        kernels.attention("pallas", mesh, [128], 16, sinks=True)


def test_an_fp8_cache_needs_an_implementation_that_has_it() -> None:
    mesh = Mesh(np.array(jax.devices("cpu")[:1]), ("tensor",))
    assert isinstance(kernels.attention("auto", mesh, [64], 16, cache=FP8), XlaAttention)
    with pytest.raises(ValueError, match=r"attention 'cpu' has no FP8 cache: use 'auto' or 'xla'"):
        kernels.attention("cpu", mesh, [64], 16, cache=FP8)
