"""Answers on disk: whatever kills the run, and whenever, each line has its one answer in the end."""

import contextlib
import json
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem
from fsspec.spec import AbstractBufferedFile

from apps.jobs.generation.parts import Chunk, OutputRefused, RunParts, held
from apps.llm.batch_api import parts as saved_parts
from apps.llm.batch_api.parts import PartDamaged
from apps.serving.files import LOCK, Busy

RUN = {"input": {"lines": 10, "sha256": "x"}, "model": {"model": "m"}}


def chunk(*indices: int, text: str = "answer", errors: int = 0) -> Chunk:
    return Chunk(list(indices), [f"{text} {i}".encode() for i in indices], errors, 1, 1, 0.0)


def begin(output: Path, lines: int = 10, run: dict = RUN, overwrite: bool = False) -> RunParts:
    Path(f"{output}.parts").mkdir(exist_ok=True)
    return RunParts.open(LocalFileSystem(), str(output), lines, run, overwrite)


def test_out_of_order_in_order_out(tmp_path: Path) -> None:
    output = tmp_path / "out"
    with held(LocalFileSystem(), f"{output}.parts"):
        parts = begin(output)
        assert parts.add(chunk(7, 8, 9)) and parts.add(chunk(0, 2, errors=1))
        parts.save()
        assert not parts.add(chunk(0, 2, text="again")), "a chunk that was tried twice counts once"
        again = begin(output)
        assert again.done.nonzero()[0].tolist() == [0, 2, 7, 8, 9] and again.errors == 1
        again.add(chunk(1, 6))
        again.save()
        again.add(chunk(3, 4, 5))
        assert not output.exists()
        again.finish()
    assert output.read_text().splitlines() == [f"answer {i}" for i in range(10)]
    assert sorted(tmp_path.iterdir()) == [output]


def test_a_run_of_something_else_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "out"
    parts = begin(output)
    parts.add(chunk(0))
    parts.save()
    other = {**RUN, "model": {"model": "n"}}
    with pytest.raises(OutputRefused, match=r"differs in model \(model\)\. .*--overwrite"):
        begin(output, run=other)
    assert not begin(output, run=other, overwrite=True).done.any()
    assert not list(Path(f"{output}.parts").glob("part-*"))


@pytest.mark.parametrize("damage", [b"", b"{", b"[1]", b"\xff", b'{"a":' * 100_000])
def test_a_damaged_description_of_the_run_is_refused(tmp_path: Path, damage: bytes) -> None:
    output = tmp_path / "out"
    parts = begin(output)
    parts.add(chunk(0))
    parts.save()
    Path(f"{output}.parts/run.json").write_bytes(damage)
    with pytest.raises(OutputRefused, match=r"run\.json is damaged.*--overwrite"):
        begin(output)
    assert list(Path(f"{output}.parts").glob("part-*")), "the answers stay"


def test_an_output_is_not_overwritten(tmp_path: Path) -> None:
    output = tmp_path / "out"
    output.write_text("precious")
    with pytest.raises(OutputRefused, match="exists already"):
        begin(output)
    begin(output, lines=0, overwrite=True)
    assert output.read_text() == "precious", "not before the new one is whole"


def test_a_damaged_part_is_named(tmp_path: Path) -> None:
    output = tmp_path / "out"
    parts = begin(output, lines=2)
    parts.add(chunk(0, 1))
    parts.save()
    part = Path(f"{output}.parts/part-000000.jsonl")
    part.write_bytes(part.read_bytes()[:-3])
    with pytest.raises(PartDamaged, match="jsonl is damaged"):
        begin(output, lines=2).finish()
    assert sorted(Path(f"{output}.parts").iterdir()) == [part, part.parent / "run.json"]
    part.write_bytes(b"")
    with pytest.raises(PartDamaged, match="jsonl is damaged"):
        begin(output, lines=2)
    part.unlink()
    assert not begin(output, lines=2).done.any()


def test_two_threads_that_save_write_two_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output, began, go_on = tmp_path / "out", threading.Event(), threading.Event()
    parts = begin(output, lines=3)
    writing = saved_parts.writing

    @contextlib.contextmanager
    def slowly(*arguments: object, **named: object) -> Iterator[object]:
        with writing(*arguments, **named) as file:
            began.set()
            assert go_on.wait(240)
            yield file

    monkeypatch.setattr(saved_parts, "writing", slowly)
    parts.add(chunk(0))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(parts.save)
        assert began.wait(240)
        parts.add(chunk(1, 2))
        second = pool.submit(parts.save)
        go_on.set()
        first.result(60), second.result(60)
    assert [line for _, line in parts.merged()] == [b"answer 0\n", b"answer 1\n", b"answer 2\n"]
    assert begin(output, lines=3).done.all()


def test_a_full_disk_loses_nothing(tmp_path: Path) -> None:
    output = tmp_path / "out"
    parts = begin(output, lines=3)
    parts.add(chunk(0))
    parts.save()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        parts.add(chunk(1, 2, text="x" * 1000))
        with pytest.raises(OSError):
            parts.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert not list(Path(f"{output}.parts").glob("*.partial"))
    assert begin(output, lines=3).done.tolist() == [True, False, False]
    parts.finish()
    assert len(output.read_text().splitlines()) == 3


WRITER = """
import random, sys
sys.path.insert(0, {root!r})
from tests.jobs.generate.test_generate_parts import begin, chunk
from pathlib import Path
parts = begin(Path({output!r}), lines={lines})
left = [i for i in range({lines}) if not parts.done[i]]
print("go", flush=True)
while left:
    parts.add(chunk(*sorted(left.pop(random.randrange(min(len(left), 50))) for _ in range(min(len(left), 5)))))
    parts.save()
parts.finish()
"""


@pytest.mark.slow
def test_killed_at_any_moment(tmp_path: Path) -> None:
    """A process that does nothing but write parts, killed again and again, until one gets through."""
    output, lines = tmp_path / "out", 2000
    program = WRITER.format(root=str(Path(__file__).parents[3]), output=str(output), lines=lines)
    kills = 0
    while not output.exists():
        writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        writer.stdout.readline()
        if kills < 5:
            time.sleep(random.uniform(0, 0.15))
            writer.kill()
            kills += 1
        assert writer.wait(240) in (0, -signal.SIGKILL)
        writer.stdout.close()
    assert output.read_text().splitlines() == [f"answer {i}" for i in range(lines)]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    fs = LocalFileSystem()
    folder = str(tmp_path / "parts")
    for _ in range(2):
        with held(fs, folder), pytest.raises(Busy, match=r"another process \(process \d+ on "), held(fs, folder):
            pass
        assert not list(tmp_path.iterdir())


class ObjectFile(AbstractBufferedFile):
    """What gcsfs and s3fs read objects with: fsspec's own buffered file, whose `readline` takes no size."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        return self.fs.cat_file(self.path, start, end)


class Bucket(MemoryFileSystem):
    """fsspec's in-memory object store has what a bucket has, and lacks what it lacks: whole objects, no locks."""

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        return ObjectFile(self, path) if mode == "rb" else super()._open(path, mode, **options)


def test_in_a_bucket() -> None:
    fs, output = Bucket(), "/bucket/out"
    folder = f"{output}.parts"
    with held(fs, folder, lease_s=0.4), pytest.raises(Busy, match="another process"), held(fs, folder, lease_s=0.4):
        pass
    with held(fs, folder, lease_s=0.4):
        parts = RunParts.open(fs, output, 3, RUN, overwrite=False)
        parts.add(chunk(1))
        parts.save()
    fs.pipe_file(f"{folder}/{LOCK}", json.dumps({"owner": "t", "where": "a dead one", "count": 5}).encode())
    with held(fs, folder, lease_s=0.4):
        parts = RunParts.open(fs, output, 3, RUN, overwrite=False)
        assert parts.done.tolist() == [False, True, False]
        parts.add(chunk(0, 2))
        parts.finish()
    assert fs.cat_file(output) == b"answer 0\nanswer 1\nanswer 2\n"
    assert fs.find("/bucket") == [output]
