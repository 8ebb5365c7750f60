"""What the engine's decode steps hold and move on TPU, at full width: by the compiler, layers extrapolated."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from apps.llm.engine.model.families import lm_cloud
from tests.plan import decode_steps
from tests.plan.decode_steps import EIGHT_HOSTS

pytestmark = pytest.mark.tpu_compile


@pytest.fixture(scope="module")
def steps(request: pytest.FixtureRequest) -> dict[str, dict[str, float]]:
    """Of those that the selected tests ask for: each takes a quarter of a minute."""
    pytest.importorskip("libtpu")
    root = str(Path(__file__).parents[2])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH")))),
        "JAX_PLATFORMS": "cpu",
    }
    names = [name for name in decode_steps.STEPS if any(f"[{name}" in item.name for item in request.session.items)]
    command = [sys.executable, decode_steps.__file__, *names]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(zip(names, map(json.loads, done.stdout.splitlines())))


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", [pytest.param("llama-bf16", marks=pytest.mark.long), "llama-int8", "gemma-bf16"])
def test_one_copy_of_the_cache_and_every_byte_once(name: str, steps: dict[str, dict[str, float]]) -> None:
    step = steps[name]
    assert step["aliased"] >= step["kv_cache"], "the cache is donated"
    # Beside them the sampling state is held once more, whose size the cache's says nothing about.
    assert step["temporaries"] - step["other_arguments"] < 0.05 * step["kv_cache"], "and nowhere copied"
    moved = step["hbm_read"] + step["hbm_written"] + step["kernel"]
    assert moved < 1.10 * (step["weights"] - step["lookup"] + step["live"])


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("name", "bytes_each"), [pytest.param("175b-bf16", 2, marks=pytest.mark.long), ("175b-int8", 1)]
)
def test_the_largest_model_fits_32_chips(name: str, bytes_each: int, steps: dict[str, dict[str, float]]) -> None:
    step = steps[name]
    held = step["weights"] + step["kv_cache"] + step["other_arguments"] + step["temporaries"]
    assert max(held, step["peak"]) + step["shapes"] * step["code"] < step["usable"]
    moved = step["hbm_read"] + step["hbm_written"] + step["kernel"]
    assert moved < 1.10 * (step["weights"] + step["live"])
    parameters = lm_cloud.find(decode_steps.LARGE["model"]).num_params
    assert 1.0 < step["weights"] * EIGHT_HOSTS.chips / (parameters * bytes_each) < 1.05
