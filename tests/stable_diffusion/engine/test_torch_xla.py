"""The backend on torch_xla, beyond the pictures, which `test_pictures` compares; and what is said without torch_xla."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from apps.stable_diffusion.engine.backends.choice import open_backend
from apps.stable_diffusion.engine.backends.torch_backend import TorchBackend
from apps.stable_diffusion.engine.request import SCHEDULERS
from tests.stable_diffusion.engine.test_pictures import MASK, MIXED, PICTURE, ask, make

needs_torch_xla = pytest.mark.skipif(find_spec("torch_xla") is None, reason="make test-torch-xla runs it")


def compilations() -> int:
    """Programs that torch_xla compiled so far in this process."""
    from torch_xla.debug import metrics

    found = metrics.metric_data("CompileTime")
    return found[0] if found else 0


@needs_torch_xla
def test_no_torch_xla_program_after_ready(backend: Callable[..., TorchBackend]) -> None:
    made = backend("torch_xla", "sd1")
    assert made.batch_sizes == (1, 2, 4)
    before = compilations()
    for scheduler in SCHEDULERS:
        for steps, mask in ((4, None), (7, MASK)):
            make(made, ask(scheduler, steps, image=PICTURE, mask=mask, prompt=f"a {scheduler}"))
    make(made, ask("euler", image=PICTURE, strength=1.0), ask("ddim", guidance=1.0, seed=8), ask("ddim", seed=8))
    for batch in (MIXED[:1], MIXED[1:3], MIXED[:3], [ask()] * 2, [ask()] * 3, [ask(negative_prompt=ask().prompt)] * 4):
        make(made, *batch)
    first, second = (
        made.start(ask(prompt=prompt, negative_prompt="nor this")) for prompt in ("never seen", "not this")
    )
    made.denoise([first, second], 1)
    made.denoise([second], 3)
    made.denoise([second, first], 1)
    made.decode([first, second], estimate=True)
    made.decode([second])
    assert compilations() == before
    (torch.ones(7).to("xla") * 3.25).cpu()
    assert compilations() == before + 1, "the count hears of compilations"


@needs_torch_xla
@pytest.mark.parametrize("family, guided", [("sdxl", True), ("sd-turbo", False)])
def test_no_torch_xla_program_after_ready_of_other_families(
    backend: Callable[..., TorchBackend], family: str, guided: bool
) -> None:
    made = backend("torch_xla", family, guided=guided)
    guidance = 3.0 if guided else 0.0
    before = compilations()
    make(made, ask("euler", 3, guidance, prompt="new"))
    make(made, ask("lcm", 2, guidance, image=PICTURE, mask=MASK, negative_prompt="blue" if guided else ""))
    assert compilations() == before


@needs_torch_xla
def test_sizes_side_by_side(checkpoint: Callable[[str], Path]) -> None:
    told: list[tuple[str, int, int]] = []
    made = open_backend(
        str(checkpoint("sd1")),
        backend="torch_xla",
        sizes=[(32, 32), (48, 32)],
        max_batch_size=2,
        progress=lambda name, done, total, seconds: told.append((name, done, total)),
    )
    assert (made.name, made.device, made.batch_sizes) == ("torch_xla", "cpu", (1, 2))
    assert told == [
        (f"{size} batch {b}", i, 4)
        for i, (size, b) in enumerate(((size, b) for size in ("32x32", "48x32") for b in (1, 2)), start=1)
    ]
    before = compilations()
    (picture,) = make(made, ask())
    assert picture.shape == (32, 32, 3)
    assert compilations() == before


@needs_torch_xla
@pytest.mark.parametrize("device", ["TPU", "ABACUS"])
def test_torch_xla_without_a_device(checkpoint: Callable[[str], Path], device: str) -> None:
    """In a process of its own: torch_xla settles on a device once."""
    if device == "TPU" and find_spec("libtpu"):
        pytest.skip("libtpu is installed, and there may be a TPU")
    script = f"""
from apps.stable_diffusion.engine.backends.choice import open_backend
try:
    open_backend({str(checkpoint("sd1"))!r}, backend="torch_xla", sizes=[(32, 32)])
except ValueError as error:
    print(error)
"""
    found = subprocess.run(
        [sys.executable, "-c", script],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PJRT_DEVICE": device},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.stdout.startswith(f"backend torch_xla: PJRT finds no device (PJRT_DEVICE={device}): "), found
    for part in ("libtpu" if device == "TPU" else "No PjRtPlugin", "extra torch-xla", "make test-torch-xla"):
        assert part in found.stdout


def test_without_torch_xla(checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before any weights are read."""
    monkeypatch.setitem(sys.modules, "torch_xla", None)
    with pytest.raises(ValueError, match=r"torch_xla cannot be imported .*\.\[torch-xla\].*make test-torch-xla"):
        open_backend(str(checkpoint("sd1")), backend="torch_xla", sizes=[(32, 32)])
