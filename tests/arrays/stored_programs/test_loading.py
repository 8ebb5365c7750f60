"""Programs that one process wrote are run by others, which compile nothing. JAX's own events are the oracle."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from apps.arrays.program_cache import use_compile_cache
from apps.arrays.stored_programs import folder, seal
from tests.arrays.stored_programs import making

SCRIPT = Path(making.__file__)
EXPECTED = {"negative": [-float(n) for n in range(8)], "scaled": [3.0 * n for n in range(8)], "sum": 28.0}


def process(order: str, location: Path, devices: int = 2, **environment: str) -> tuple[dict[str, Any], str]:
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = {**os.environ, "XLA_FLAGS": flags, seal.KEY_VARIABLE: making.KEY, **environment}
    ended = subprocess.run(
        [sys.executable, SCRIPT, order, location],
        env=env,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=SCRIPT.parents[3],  # where a child finds the tests
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = tmp_path_factory.mktemp("programs")
    process("write", location)
    return location


@pytest.mark.slow
def test_another_process_compiles_nothing(written: Path) -> None:
    """Another hash seed, too: a digest must not hang on the order of a set."""
    for seed in ("1", "2"):
        found, said = process("load", written, PYTHONHASHSEED=seed)
        assert EXPECTED.items() <= found.items()
        assert (found["loaded"], found["compiled"], found["events"]) == (2, 0, []), said
    assert [path.name for path in written.glob("*/tried.json")] == ["tried.json"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "devices", "named"),
    [
        ({seal.KEY_VARIABLE: ""}, 2, f"{seal.KEY_VARIABLE} is not set"),
        ({seal.KEY_VARIABLE: "another key of sixteen"}, 2, "was not sealed with this"),
        ({seal.KEY_VARIABLE: "short"}, 2, "fewer than 16"),
        ({}, 1, "devices '2 x cpu"),
        ({"JAX_DEFAULT_MATMUL_PRECISION": "highest"}, 2, "settings"),
    ],
)
def test_what_differs_is_named_and_compiled(
    written: Path, environment: dict[str, str], devices: int, named: str
) -> None:
    found, said = process("load", written, devices, **environment)
    assert EXPECTED.items() <= found.items()
    assert (found["loaded"], found["compiled"]) == (0, 2)
    assert named in said and len(said.strip().splitlines()) == 1, said


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A set for this process's devices."""
    monkeypatch.setenv(seal.KEY_VARIABLE, making.KEY)
    making.write(str(tmp_path))
    return tmp_path


@pytest.mark.slow
def test_a_program_in_jaxs_cache_is_compiled_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU one that was fetched from there is serialized without its functions."""
    monkeypatch.setenv(seal.KEY_VARIABLE, making.KEY)
    use_compile_cache(str(tmp_path / "cache"))
    compilation_cache.reset_cache()
    try:
        for spec in making.specs() * 2:
            spec.compiled()
        assert list((tmp_path / "cache").glob("*cache"))
        making.write(str(tmp_path / "programs"))
        found, said = run(tmp_path / "programs", caplog)
        assert (found["loaded"], found["compiled"], said) == (2, 0, "")
    finally:
        jax.config.update("jax_compilation_cache_dir", None)
        compilation_cache.reset_cache()


def run(location: Path, caplog: pytest.LogCaptureFixture) -> tuple[dict[str, Any], str]:
    caplog.clear()
    found = making.run(str(location))
    assert EXPECTED.items() <= found.items()
    return found, "\n".join(record.getMessage() for record in caplog.records if record.levelname == "WARNING")


@pytest.mark.slow
def test_a_changed_file_is_not_loaded(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    (program,) = own.glob("*/negative*")
    making.trial.try_sets(str(own), making.PARTS, making.register)
    for damage in (lambda content: content[:-1], lambda content: content[:50] + b"x" + content[51:], lambda _: b""):
        content = program.read_bytes()
        program.write_bytes(damage(content))
        found, said = run(own, caplog)
        assert (
            (found["loaded"], found["compiled"]) == (1, 1)
            and "negative" in said
            and "changed" in said
            and said.count("\n") == 0
        )
        program.write_bytes(content)


@pytest.mark.slow
def test_a_changed_manifest_is_not_believed(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not one that names another file of the same folder, and not one whose seal is taken away."""
    (manifest,) = own.glob("*/manifest.json")
    whole = json.loads(manifest.read_text())
    for changes in ({"pages": 7}, {"programs": whole["programs"][::-1]}, {"seal": ""}, {"seal": None}, {"extra": 1}):
        manifest.write_text(json.dumps(whole | changes))
        found, said = run(own, caplog)
        assert (found["loaded"], found["compiled"]) == (0, 2) and "not sealed" in said
    for text in ("", "[]", "{", "null", "[" * 100_000):
        manifest.write_text(text)
        found, said = run(own, caplog)
        assert (found["loaded"], found["compiled"]) == (0, 2) and "damaged" in said


def test_a_seal_is_of_one_set(own: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A mark that a set was tried holds for its very files, in this folder and in others."""
    stored = folder.ProgramFolder(str(own), making.KEY.encode())
    ((manifest,), _) = stored.manifests()
    stored.mark_tried(manifest)
    changed = manifest.programs[0].model_copy(update={"sha256": "0" * 64})
    other = manifest.model_copy(update={"programs": (changed, *manifest.programs[1:])})
    assert stored.is_tried(manifest) and not stored.is_tried(other)


@pytest.mark.slow
def test_programs_that_end_their_process_are_compiled(
    own: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the child dies. Without a trial nothing is loaded."""
    monkeypatch.setattr(making, "register", making.register_and_die)
    found, said = run(own, caplog)
    assert (found["loaded"], found["compiled"]) == (0, 2)
    assert "ended by signal 6" in said and "has not been tried" in said


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_is_tried_at_each_start(
    own: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (name,) = (path.parent for path in own.glob("*/manifest.json"))
    (name / "tried.json").mkdir()  # nothing can be renamed to it, not even by root
    with caplog.at_level("INFO", "podslice"):
        found, said = run(own, caplog)
    assert (found["loaded"], found["compiled"]) == (2, 0), said
    assert any("each start tries these programs again" in record.getMessage() for record in caplog.records)


@pytest.mark.slow
def test_a_set_that_cannot_be_used_spoils_no_other(own: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One of another key, of a newer Podslice, or damaged. What is beside the sets is none."""
    (good,) = own.iterdir()
    whole = json.loads((good / "manifest.json").read_text())
    others = {"0" * 16: json.dumps(whole | {"seal": "of another key"}), "f" * 16: "{", "1" * 16: ""}
    for name, text in others.items():
        (own / name).mkdir()
        (own / name / "manifest.json").write_text(text)
    (own / ("2" * 16)).mkdir()
    (own / "README").write_text("notes")
    found, said = run(own, caplog)
    assert (found["loaded"], found["compiled"], said) == (2, 0, "")
    (good / "manifest.json").unlink()
    found, said = run(own, caplog)
    assert (found["loaded"], found["compiled"]) == (0, 2) and "not sealed" in said


def test_nothing_is_said_where_there_is_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for location in (tmp_path, tmp_path / "absent"):
        found, said = run(location, caplog)
        assert (found["loaded"], found["compiled"], said) == (0, 2, "")


def test_zeros_suit_a_program_that_ignores_an_argument(own: Path) -> None:
    """XLA drops what a program makes no use of, and then says nothing of where it is."""
    args = making.trial._zeros(making.specs()[0].compiled())
    assert [np.shape(each) for each in args] == [(8,), (2,)]
