"""`podslice prepare CONFIG --to FOLDER` of a picture model: a server that finds the programs compiles nothing.

Oracles: JAX's own events of compiling, and the same picture from a server that compiled its programs.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from apps.arrays.stored_programs import seal
from tests.stable_diffusion.engine import tiny_pictures
from tests.stable_diffusion.engine.controlnets import tiny_controlnets

KEY = "a key of the tests, long enough"
SERVICE = """
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig

service = Service(name="tiny", applications=(Application(config={config}),))
"""
LOAD = """
import hashlib, json, logging, sys
import jax
logging.basicConfig(format="%(message)s", level=logging.INFO)
events = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: events.append(event) if "backend_compile" in event else None
)
from apps.stable_diffusion.engine.engine import Engine
from apps.stable_diffusion.engine.job import Finished
from apps.stable_diffusion.engine.request import PictureRequest
from ray_configs.stable_diffusion import StableDiffusionConfig
engine = Engine.load(StableDiffusionConfig(**json.loads(sys.argv[1])))
request = PictureRequest("a red circle", 64, 64, 3, 3.0, "ddim", seed=3)
compiled = engine.stats().programs_compiled
[pixels] = [event.pixels for event in engine.submit([request]) if isinstance(event, Finished)]
engine.shutdown()
print(json.dumps({"picture": pixels.tolist(), "events": events, "compiled": compiled}))
"""
SIZES = {"dtype": "float32", "sizes": ["64x64"], "max_batch_size": 2}


def environment(**changes: str) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    flags = "--xla_backend_optimization_level=0"  # compiles sooner
    own = {"JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1", "XLA_FLAGS": flags, seal.KEY_VARIABLE: KEY}
    return os.environ | {"PYTHONPATH": path} | own | changes


def service(path: Path, **fields: Any) -> Path:
    given = ", ".join(f"{name}={value!r}" for name, value in fields.items())
    path.write_text(SERVICE.format(config=f"StableDiffusionConfig({given})"))
    return path


def prepare(source: Path, to: Path, *options: str, **changes: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "apps.jobs.prepare", str(source), "--to", str(to), *options]
    return subprocess.run(command, env=environment(**changes), capture_output=True, text=True, timeout=900)


def loaded(**fields: Any) -> tuple[dict[str, Any], str]:
    """An engine in another process, without JAX's cache: a picture, what it compiled, and its log."""
    order = json.dumps({"compile_cache": None, **SIZES, **fields})
    ended = subprocess.run(
        [sys.executable, "-c", LOAD, order], env=environment(), capture_output=True, text=True, timeout=900
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    return json.loads(ended.stdout.splitlines()[-1]), ended.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tiny_pictures.save("sd1", tmp_path_factory.mktemp("models") / "sd1")
    tiny_controlnets.save(made, made.parent / "edges", 1)
    return made


@pytest.mark.slow
def test_a_prepared_server_compiles_nothing(model: Path, tmp_path: Path) -> None:
    """With LoRA and a ControlNet, whose programs are prepared too."""
    to = tmp_path / "to"
    fields = {"model": str(model), "lora_folder": str(tmp_path), "controlnets": {"edges": str(model.parent / "edges")}}
    source = service(tmp_path / "tiny.py", **SIZES, **fields)
    done = prepare(source, to)
    assert done.returncode == 0, done.stderr
    assert f"set prepared_programs={to}/programs in the config" in done.stdout
    again = prepare(source, to)
    assert again.returncode == 0 and "9 existed already" in again.stdout, again.stdout + again.stderr
    plain, _ = loaded(**fields)
    assert plain["events"] and plain["compiled"] == 9
    for _ in range(2):  # the first tries the programs in a process of their own
        found, said = loaded(**fields, prepared_programs=f"{to}/programs")
        assert found == {"picture": plain["picture"], "events": [], "compiled": 0}, said
        assert "9 prepared ones loaded, 0 compiled" in said
    other, said = loaded(**{**fields, "max_batch_size": 4}, prepared_programs=f"{to}/programs")
    assert other["events"] and "the nearest were made for batch sizes '1, 2', where here it is '1, 2, 4'" in said


@pytest.mark.slow
def test_what_cannot_be_prepared(model: Path, tmp_path: Path) -> None:
    to = tmp_path / "to"
    for fields, options, changes, says in (
        ({"backend": "torch"}, (), {}, "backend='torch' has no programs of its own"),
        ({"slice": "v5e:4x4:4t"}, (), {}, "has 4 hosts, and a picture model fits on one"),
        ({"max_prompt_tokens": 75, "model": "/none"}, (), {}, "/none: no such folder"),
        ({"slice": "v5e:1x1:1t"}, ("--emulated",), {}, "--emulated is for language models"),
        ({}, (), {seal.KEY_VARIABLE: ""}, f"{seal.KEY_VARIABLE} is not set"),
    ):
        source = service(tmp_path / "tiny.py", **SIZES | {"model": str(model)} | fields)
        done = prepare(source, to, *options, **changes)
        assert done.returncode == 2 and says in done.stderr, (fields, done.stderr)
    assert not to.exists()
