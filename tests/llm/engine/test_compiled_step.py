"""The compiled step holds no second copy of the KV cache, on the CPU and on TPU slices that are not there."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model.families.hugging_face import from_hf_config
from tests.llm.engine import tiny_models, tpu_step

NO_TPU_HERE = {"TPU_SKIP_MDS_QUERY": "1", "TPU_WORKER_HOSTNAMES": "localhost", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1"}


def run(topology: str, *steps: str) -> subprocess.Popen:
    """libtpu wants an environment of its own, set before JAX starts."""
    command = [sys.executable, str(Path(tpu_step.__file__)), topology, *steps]
    environment = tiny_models.environment(**NO_TPU_HERE)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def assert_one_cache(process: subprocess.Popen, *steps: str, devices: int | None = None, spare: float = 1 / 3) -> None:
    """All `steps` compiled, and their temporaries take less than `spare` of the cache."""
    out, errors = process.communicate()
    assert process.returncode == 0, errors[-3000:]
    found = [json.loads(line) for line in out.splitlines()]
    assert [step["step"] for step in found] == list(steps)
    for step in found:
        assert devices in (None, step["devices"])
        assert step["alias"] >= step["cache"], "the cache is donated"
        assert step["temp"] < step["cache"] * spare, "and nowhere copied"


@pytest.mark.tpu_compile
def test_the_whole_step_compiles_for_tpu_slices() -> None:
    pytest.importorskip("libtpu")
    slices = {
        "v5e:2x4": (8, "prefill:bfloat16"),  # its decode steps: plan/test_plan_decode_steps.py
        "v6e:2x2": (4, "decode:bfloat16"),
    }
    running = {name: run(name, step) for name, (_, step) in slices.items()}
    for name, (devices, step) in slices.items():
        assert_one_cache(running[name], step, devices=devices)


SLICES = pytest.mark.parametrize("topology", ["v5e:2x4", pytest.param("v6e:2x4", marks=pytest.mark.long), "v5p:2x2x1"])


@pytest.mark.tpu_compile
@SLICES
def test_layers_of_several_kinds_compile_for_tpu_slices(topology: str) -> None:
    """Gemma 4's: heads of 256 and 512 channels, experts beside feed-forward networks, shared keys and values. Muse
    Glimmer's: gates, and layers that are not rotated."""
    pytest.importorskip("libtpu")
    models = "google/gemma-4-31B", "google/gemma-4-26B-A4B", "google/gemma-4-E4B", "meta-models/Muse-Glimmer-30B"
    steps = [f"decode:int8:{models[0]}", *(f"decode:bfloat16:{model}" for model in models)]
    assert_one_cache(run(topology, *steps), *steps)


@pytest.mark.tpu_compile
@pytest.mark.long
def test_every_family_compiles_for_a_tpu_slice() -> None:
    """For other slices: tpu_step.py v6e:2x4 decode:bfloat16:MODEL ..."""
    pytest.importorskip("libtpu")
    steps = [f"decode:bfloat16:{model}" for model in tpu_step.FAMILIES]
    assert_one_cache(run("v5e:2x4", *steps), *steps)


@pytest.mark.tpu_compile
@SLICES
def test_an_fp8_cache_compiles_for_tpu_slices(topology: str) -> None:
    pytest.importorskip("libtpu")
    steps = "decode:fp8", "prefill:fp8"
    assert_one_cache(run(topology, *steps), *steps, spare=1 / 2)


@pytest.mark.tpu_compile
def test_images_that_are_seen_both_ways_compile_for_a_tpu_slice() -> None:
    """Over heads of 256 channels, whose cache has two parts, and over int8."""
    pytest.importorskip("libtpu")
    steps = "images:bfloat16:google/gemma-3-4b", "images:int8:google/gemma-3-27b"
    assert_one_cache(run("v6e:2x2", *steps), *steps, devices=4)


@pytest.mark.slow
@pytest.mark.parametrize("attention", ["auto", "xla"])
@pytest.mark.parametrize("tokens", [64, 128])
def test_the_cpu_keeps_one_cache(attention: str, tokens: int) -> None:
    arch = from_hf_config(tpu_step.LLAMA3 | tiny_models.SIZES | {"head_dim": 64})
    mesh = Mesh(np.array(jax.devices()[:1]), ("tensor",))
    found = tpu_step.memory(arch, mesh, attention, "none", StepShape(tokens, tpu_step.BATCH, 16))
    assert found["alias"] >= found["cache"]
    assert found["temp"] < found["cache"]
