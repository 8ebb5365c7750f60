"""JAX's compilation cache on disk, damaged or full. The oracles: JAX's own report of hits, and NumPy's values."""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from apps.arrays.program_cache import ENTRY, PARTIAL, ProgramCache, SharedPrograms
from apps.arrays.stored_programs.seal import KEY_VARIABLE
from tests.llm.engine import tiny_models

START = """
import logging, sys
logging.basicConfig()
import resource
if len(sys.argv) > 2:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
import jax, jax.numpy as jnp, numpy as np
from apps.arrays.program_cache import use_compile_cache
use_compile_cache(sys.argv[1])
hits, compiled = [], []
jax.monitoring.register_event_listener(lambda event, **_: hits.append(event) if event.endswith("/cache_hits") else None)
x = np.arange(8, dtype=np.float32)
for n in range(1, 4):
    found = jax.jit(lambda x: jnp.sin(x) * n)(x)
    np.testing.assert_allclose(found, np.sin(x) * n, rtol=1e-6)
print(len(hits))
"""


def start(folder: Path | str, *limit: str) -> tuple[int, str]:
    """A process that compiles three programs: how many came from the cache, and what it logged."""
    command = [sys.executable, "-c", START, str(folder), *limit]
    ran = subprocess.run(command, env=tiny_models.environment(), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return int(ran.stdout), ran.stderr


DAMAGES: dict[str, Callable[[bytes, int], bytes]] = {
    "empty": lambda whole, at: b"",
    "cut": lambda whole, at: whole[:at],
    "flipped": lambda whole, at: whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :],
}


@pytest.mark.slow
def test_a_damaged_entry_is_compiled_and_written_again(tmp_path: Path) -> None:
    assert start(tmp_path) == (0, "")
    entries = [path for path in tmp_path.iterdir() if path.name.endswith(ENTRY)]
    assert len(entries) == 3
    draw = random.Random(5)
    for damaged in DAMAGES.values():
        for path in entries:
            whole = path.read_bytes()
            path.write_bytes(damaged(whole, draw.randrange(len(whole))))
        hits, log = start(tmp_path)
        assert hits == 0
        assert all(log.count(f"{path.name} is damaged") == 1 for path in entries), log
    assert start(tmp_path) == (3, "")
    entries[0].unlink()
    entries[0].mkdir()
    assert start(tmp_path)[0] == 2, "what can be neither read nor replaced is done without"


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_entry_is_absent(damage: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache, draw, program = ProgramCache(str(tmp_path)), random.Random(damage), random.Random(1).randbytes(999)
    for _ in range(50):
        cache.put("a", program)
        path = tmp_path / f"a{ENTRY}"
        whole = path.read_bytes()
        path.write_bytes(DAMAGES[damage](whole, draw.randrange(len(whole))))
        assert cache.get("a") is None
        assert not path.exists()
    assert len(caplog.records) == 1


@pytest.mark.slow
def test_a_full_disk_and_a_folder_that_is_none_are_done_without(tmp_path: Path) -> None:
    hits, log = start(tmp_path / "full", "limited")
    assert hits == 0
    assert log.count("not kept") == 1, log
    assert not list((tmp_path / "full").iterdir()), "no half entry that the next start would find"
    assert start(tmp_path / "full")[1] == ""
    (tmp_path / "file").touch()
    hits, log = start(tmp_path / "file" / "folder")
    assert hits == 0
    assert "not kept" in log


def test_half_entries_of_the_killed_are_removed_in_time(tmp_path: Path) -> None:
    old, new = tmp_path / f"a{ENTRY}.1{PARTIAL}", tmp_path / f"a{ENTRY}.2{PARTIAL}"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache = ProgramCache(str(tmp_path))
    assert (old.exists(), new.exists()) == (False, True)
    assert cache.get("a") is None
    cache.put("a", b"program")
    cache.put("a", b"another")
    assert ProgramCache(str(tmp_path)).get("a") == b"another"


def test_a_bucket_holds_what_this_key_has_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    draw, program = random.Random(3), random.Random(1).randbytes(999)
    monkeypatch.setenv(KEY_VARIABLE, "first" * 7)
    bucket = f"file://{tmp_path}/programs"
    SharedPrograms(bucket).put("a", program)
    assert SharedPrograms(bucket).get("a") == program and SharedPrograms(bucket).get("b") is None
    (path,) = (tmp_path / "programs").iterdir()
    sealed = path.read_bytes()
    for damaged in (*(damage(sealed, draw.randrange(len(sealed))) for damage in DAMAGES.values()), sealed[32:]):
        path.write_bytes(damaged)
        assert SharedPrograms(bucket).get("a") is None and not path.exists()
    (tmp_path / "programs" / f"b{ENTRY}").write_bytes(sealed)
    assert SharedPrograms(bucket).get("b") is None, "a program is sealed by its name"
    path.mkdir()
    assert SharedPrograms(bucket).get("a") is None and path.is_dir(), "what cannot be read now may be whole"
    path.rmdir()
    path.write_bytes(sealed)
    monkeypatch.setenv(KEY_VARIABLE, "other" * 7)
    assert SharedPrograms(bucket).get("a") is None
    assert "was sealed with another PODSLICE_PROGRAMS_KEY" in caplog.text


@pytest.mark.slow
def test_a_bucket_is_used_with_a_key_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = f"file://{tmp_path}/programs"
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    hits, log = start(bucket)
    assert hits == 0 and "is not used, so the next start compiles them again: PODSLICE_PROGRAMS_KEY is not set" in log
    monkeypatch.setenv(KEY_VARIABLE, "short")
    assert "fewer than 16" in start(bucket)[1]
    assert not (tmp_path / "programs").exists()
    monkeypatch.setenv(KEY_VARIABLE, "first" * 7)
    assert [start(bucket) for _ in range(2)] == [(0, ""), (3, "")]
    assert len(list((tmp_path / "programs").iterdir())) == 3
    hits, log = start("nowhere://programs")
    assert hits == 0 and "nowhere" in log
