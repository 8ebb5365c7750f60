"""`podslice prepare CONFIG --to FOLDER`: what it writes is all that a replica needs, and it can be stopped anywhere.

Oracles: JAX's own events of tracing and compiling, and transformers' tokens.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from apps.arrays.stored_programs import folder, seal
from tests.llm.engine import tiny_models

KEY = "a key of the tests, long enough"
SERVICE = """
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(name="tiny", applications=(Application(config={config}),))
"""
SIZES = {"dtype": "float32", "max_batch_size": 2, "max_step_tokens": 16, "max_model_len": 64, "page_size": 16}
LOAD = """
import json, sys
import jax
events = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: events.append(event) if "/compile/" in event else None
)
from apps.llm.text import Engine, EngineConfig, SamplingParams
engine = Engine.load(EngineConfig(**json.loads(sys.argv[1])))
params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
tokens = [token for output in engine.submit([5, 6, 7, 8], params) for token in output.token_ids]
stats = engine.stats()
engine.shutdown()
print(json.dumps({"tokens": tokens, "events": events, "compiled": stats.programs_compiled}))
"""


def environment(**changes: str) -> dict[str, str]:
    return tiny_models.environment(XLA_FLAGS="--xla_backend_optimization_level=0", **{seal.KEY_VARIABLE: KEY} | changes)


def command(source: Path, to: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "apps.jobs.prepare", str(source), "--to", str(to), *options]


def prepare(source: Path, to: Path, *options: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(source, to, *options), env=environment(**changes), capture_output=True, text=True, timeout=900
    )


def service(path: Path, **fields: Any) -> Path:
    given = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    path.write_text(SERVICE.format(config=f"LLMConfig({given})"))
    return path


def loaded(**fields: Any) -> tuple[dict[str, Any], str]:
    """An engine in another process, without JAX's cache: its answer, what it traced and compiled, and its log."""
    order = json.dumps({"compile_cache": None, **SIZES, **fields})
    ended = subprocess.run(
        [sys.executable, "-c", LOAD, order], env=environment(), capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


def files(to: Path) -> dict[str, int]:
    return {str(path.relative_to(to)): path.stat().st_mtime_ns for path in to.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_a_prepared_config_starts_without_tracing(tiny_llama: Path, tmp_path: Path) -> None:
    source, to = service(tmp_path / "tiny.py", model=str(tiny_llama), **SIZES), tmp_path / "to"
    done = prepare(source, to)
    assert done.returncode == 0, done.stderr
    assert f"set model={to} in the config" in done.stdout and "programs for 1 x cpu" in done.stdout
    expected = tiny_models.greedy(tiny_llama, [5, 6, 7, 8], 8)
    for _ in range(2):  # the first tries the programs in a process of their own
        found, said = loaded(model=str(to))
        assert found == {"tokens": expected, "events": [], "compiled": 0}, said
    before = files(to)
    again = prepare(source, to)
    assert again.returncode == 0 and "0 in 0.0 s" in again.stderr
    changed = {name for name, written in files(to).items() if before.get(name) != written}
    assert {Path(name).name for name in changed} <= {"manifest.json"}
    assert loaded(model=str(to), max_batch_size=3)[0]["events"] != []  # another config: compiled, as it must be


@pytest.mark.slow
def test_one_that_is_killed_goes_on(tmp_path: Path) -> None:
    """Random weights: there are only programs to prepare."""
    source = service(tmp_path / "tiny.py", tiny=True, quantize_kv_cache="int8", **SIZES)
    to = tmp_path / "to"
    process = subprocess.Popen(command(source, to), env=environment(), stdout=subprocess.DEVNULL)
    while len(list(to.rglob("*.program"))) < 3 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    kept = files(to)
    done = prepare(source, to)
    assert done.returncode == 0, done.stderr
    assert "existed already" in done.stdout and f"prepared_programs={to}/programs" in done.stdout
    after = files(to)
    programs = {name for name in kept if name.endswith(".program")}
    assert sum(kept[name] == after[name] for name in programs) >= 2  # one may have missed the manifest
    assert not [name for name in after if name.endswith(".partial")]
    found, said = loaded(tiny=True, quantize_kv_cache="int8", prepared_programs=f"{to}/programs")
    assert found["compiled"] == 0, said


@pytest.mark.slow
def test_two_at_once(tmp_path: Path) -> None:
    to = tmp_path / "to"
    with folder.ProgramFolder(f"{to}/programs", KEY.encode()).locked():
        done = prepare(service(tmp_path / "tiny.py", tiny=True, **SIZES), to)
    assert done.returncode == 1 and "another process" in done.stderr and "Traceback" not in done.stderr
    assert not list(to.rglob("*.program"))


@pytest.mark.slow
def test_a_full_disk_names_the_way_out(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    to = tmp_path / "to"
    to.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(to)], check=True)
    try:
        done = prepare(service(tmp_path / "tiny.py", tiny=True, **SIZES), to)
    finally:
        subprocess.run(["umount", str(to)], check=True)
    assert done.returncode == 1
    assert "Make room and run the same command again" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "options", "changes", "said"),
    [
        ({}, [], {seal.KEY_VARIABLE: ""}, "openssl rand"),
        ({}, [], {seal.KEY_VARIABLE: "short"}, "fewer than 16"),
        ({}, ["--emulated"], {}, "leave it out"),
        ({}, ["--app", "other"], {}, "no language model or Stable Diffusion application named 'other'"),
        ({}, ["--slice", "v5e:2x2"], {}, "--slice: with --to"),
        ({"tensor_parallel": 3}, [], {}, "tensor_parallel"),
        ({"tensor_parallel": 3, "tiny": False}, [], {}, "tensor_parallel"),
        ({"model": "/no/such/folder", "tiny": False}, [], {}, "/no/such/folder"),
    ],
)
def test_a_wrong_argument_is_named(
    tmp_path: Path, fields: dict[str, Any], options: list[str], changes: dict[str, str], said: str
) -> None:
    source = service(tmp_path / "tiny.py", **{"tiny": True} | SIZES | fields)
    done = prepare(source, tmp_path / "to", *options, **changes)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and said in done.stderr, done.stderr
    assert "Traceback" not in done.stderr and not (tmp_path / "to").exists()
