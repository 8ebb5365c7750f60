"""What is the JAX backend's alone: nothing compiles once it is ready, and a batch is split over chips."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from apps.stable_diffusion.engine.backends.choice import open_backend
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.backends.program_list import ProgramList
from apps.stable_diffusion.engine.controlnets.loaded import control_programs
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint
from apps.stable_diffusion.engine.request import SCHEDULERS
from tests.stable_diffusion.engine.controlnets import tiny_controlnets
from tests.stable_diffusion.engine.test_pictures import MASK, MIXED, PICTURE, ask, make


def environment(**changes: str) -> dict[str, str]:
    root = str(Path(__file__).parents[4])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    return os.environ | {"PYTHONPATH": path} | changes


@pytest.mark.slow
def test_nothing_compiles_after_ready(backend: Callable[..., JaxBackend]) -> None:
    made = backend("jax", "sd1")
    before = made.compiles_after_ready
    for scheduler in SCHEDULERS:
        for mask in (None, MASK):
            make(made, ask(scheduler, 4, image=PICTURE, mask=mask, prompt=f"a {scheduler}"))
    for batch in (MIXED[:1], MIXED[1:3], MIXED[:3]):
        make(made, *batch)
    picture = made.start(ask(prompt="never seen", negative_prompt="nor this"))
    made.denoise([picture], 1)
    made.decode([picture], estimate=True)
    assert made.compiles_after_ready == before
    jax.jit(lambda x: x * 3.25)(np.ones(7))
    assert made.compiles_after_ready == before + 1, "the count hears of compilations"


@pytest.mark.slow
def test_four_chips_give_what_one_does(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """With guidance each picture is two passes, so two pictures give work to all four; one is filled up to two."""
    flags = "--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0"  # the latter compiles sooner
    net = tiny_controlnets.save(checkpoint("sdxl"), tmp_path / "edges", 1)
    command = [sys.executable, str(Path(__file__).with_name("sharded_pictures.py")), str(checkpoint("sdxl")), str(net)]
    found = subprocess.run(command, env=environment(XLA_FLAGS=flags), capture_output=True, text=True, timeout=250)
    assert found.returncode == 0, found.stderr[-3000:]
    device, difference, four, one = json.loads(found.stdout.splitlines()[-1])
    assert difference <= 1
    assert (device, four, one) == ("cpu", [2], [1, 2])


@pytest.mark.slow
@pytest.mark.parametrize("guided", [True, False])
def test_programs_lower_for_tpu_with_the_flash_kernel(
    checkpoint: Callable[[str], Path], guided: bool, tmp_path: Path
) -> None:
    model = checkpoint("sd1")
    nets = {"edges": str(tiny_controlnets.save(model, tmp_path / "edges", 1))}
    settings: dict[str, Any] = {"sizes": [(64, 64)], "max_batch_size": 1, "guided": guided, "attention": "flash"}
    made = JaxBackend(str(model), controlnets=nets, **settings)
    controls = control_programs(nets, Checkpoint(str(model)).config("unet"), made.programs)[0]
    specs = list(ProgramList(made.programs, made.sizes, made.batch_sizes, None, controls).listed())
    assert {spec.key[0] for spec in specs} == {"text", "denoise", "decode", "image", "control", "control image"}
    for spec in specs:
        text = spec.traced().lower(lowering_platforms=("tpu",)).as_text()
        assert ("tpu_custom_call" in text) == (spec.key[0] not in ("text", "control image")), spec.key


@pytest.mark.slow
def test_open_backend(checkpoint: Callable[[str], Path], compile_cache: str) -> None:
    told = []
    opened = open_backend(
        str(checkpoint("sd-turbo")),
        sizes=[(32, 32)],
        max_batch_size=1,
        guidance_scale=0.0,
        dtype="float32",
        compile_cache=compile_cache,
        progress=lambda *news: told.append(news),
    )
    assert (opened.name, opened.device, opened.sizes, opened.batch_sizes) == ("jax", "cpu", ((32, 32),), (1,))
    names, counts, totals, seconds = zip(*told)
    assert set(names) == {"text encoder", "denoising 32x32 batch 1", "decoder 32x32", "image encoder 32x32"}
    assert counts == (1, 2, 3, 4) and set(totals) == {4} and min(seconds) >= 0
    missed = Counter()
    jax.monitoring.register_event_listener(lambda event, **_: missed.update([event.rsplit("/", 1)[-1]]))
    settings = {"sizes": [(32, 32)], "max_batch_size": 1, "guidance_scale": 0.0, "dtype": "float32"}
    open_backend(str(checkpoint("sd-turbo")), compile_cache=compile_cache, **settings)
    assert (missed["cache_hits"], missed["cache_misses"]) == (4, 0), "a second start compiles nothing"
    through_torch = open_backend(str(checkpoint("sd-turbo")), backend="torch", **settings)
    request = ask("euler-ancestral", 1, 0.0)
    assert np.abs(make(opened, request)[0].astype(int) - make(through_torch, request)[0]).max() <= 2


@pytest.mark.slow
def test_bfloat16_is_near(checkpoint: Callable[[str], Path], backend: Callable[..., JaxBackend]) -> None:
    half = JaxBackend(str(checkpoint("sd2")), sizes=[(32, 32)], max_batch_size=1)
    half.compile()
    near = np.abs(make(half, ask())[0].astype(int) - make(backend("jax", "sd2"), ask())[0]).mean()
    assert 0 < near < 8
