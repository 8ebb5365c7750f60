"""`python -m apps.stable_diffusion.plan`: what it refuses, what it reckons with, and a plan compiled for a TPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh
from typer.testing import CliRunner

from apps.plan import hlo
from apps.plan.report import LABEL
from apps.plan.stable_diffusion import known, planner
from apps.plan.stable_diffusion.report import ImagePlan, Rate
from apps.stable_diffusion.engine.backends.assembly import programs_of
from apps.stable_diffusion.engine.backends.jax_backend import JaxBackend
from apps.stable_diffusion.engine.model.pipelines import XL, kind_with
from apps.stable_diffusion.plan import app
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import GENERATIONS, TpuSlice

PICTURES = "ray_configs.catalog.stable_diffusion_v4"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no.such.module"], "there is no module 'no.such.module'"),
        (["ray_configs.catalog.llama3_8b_v5e"], "no Stable Diffusion application"),
        ([PICTURES, "--app", "other"], "no Stable Diffusion application named 'other'; it has stable-diffusion"),
        ([PICTURES, "--slice", "v5e:3x3"], "v5e has no topology '3x3'"),
        ([PICTURES, "--size", "500x500"], "multiples of 8"),
        ([PICTURES, "--pictures", "1,none"], "--pictures '1,none' must be numbers of at least 1"),
        ([PICTURES, "--steps", "0"], "num_inference_steps"),
    ],
)
def test_refusals_say_why(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


# Millions of parameters, as the models' papers and cards give them.
SIZES = {
    "CompVis/stable-diffusion-v1-4": {"unet": 859.5, "vae": 83.7, "text_encoder": 123.1},
    "stabilityai/stable-diffusion-2-1": {"unet": 865.9, "vae": 83.7, "text_encoder": 340.4},
    "stabilityai/stable-diffusion-xl-base-1.0": {
        "unet": 2567.5,
        "vae": 83.7,
        "text_encoder": 123.1,
        "text_encoder_2": 694.7,
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("model", SIZES)
def test_known_models_have_the_size_that_their_cards_state(model: str) -> None:
    configs = known.MODELS[model]
    kind = kind_with(configs)
    programs = programs_of(
        kind,
        configs,
        ((512, 512),),
        (77,) * len(kind.text_encoders),
        mesh=Mesh(np.array(jax.devices()[:1]), ("data",)),
        attention="xla",
        dtype=jnp.dtype("bfloat16"),
        guided=True,
    )
    for part, forms in programs.forms((512, 512)).items():
        count = sum(form.size for form in jax.tree.leaves(forms)) / 1e6
        # XL reads its first encoder's last layer but one, so the norm behind it is not asked for.
        assert count == pytest.approx(SIZES[model][part], rel=0.06 if kind is XL else 0.002), part


@pytest.mark.parametrize(("slice", "said"), [("v5e", "0.438"), ("v6e", "1.36"), ("v4", None)])
@pytest.mark.parametrize("steps", [20, 25])
def test_what_mlperf_measured_stands_beside_a_plan_for_the_same(slice: str, said: str | None, steps: int) -> None:
    config = StableDiffusionConfig(model="stabilityai/stable-diffusion-xl-base-1.0", num_inference_steps=steps)
    machine = GENERATIONS[slice].machines_for("2x2x1" if slice == "v4" else "2x2")[0].name
    there = TpuSlice(slice, "2x2x1" if slice == "v4" else "2x2", machine)
    rates = [
        Rate(pictures=1, seconds=1, per_chip_s=each, per_chip_s_at_floor=1, hbm_gib=1, fits=True) for each in (0.4, 0.5)
    ]
    notes = " ".join(planner._notes(planner.PictureWorkload(config, there, "1024x1024"), "", 1, rates))
    if said is None or steps == 25:
        assert "MLPerf" not in notes
    else:
        assert f"MLPerf measured {said} pictures/s" in notes and f"is {0.5 / float(said):.2f} times" in notes


def test_what_is_declared_is_what_a_checkpoint_has(checkpoint) -> None:
    made = JaxBackend(str(checkpoint("sdxl")), sizes=[(64, 64)], max_batch_size=1, dtype="float32")
    declared = {
        part: {name: form.shape for name, form in forms.items()}
        for part, forms in made.programs.forms((64, 64)).items()
    }
    assert declared == {
        part: {name: array.shape for name, array in arrays.items()} for part, arrays in made._weights.items()
    }


def test_models_are_found_by_their_last_name() -> None:
    assert known.find("gs://bucket/models/stable-diffusion-v1-4/") == "CompVis/stable-diffusion-v1-4"
    assert known.find("someone/else") is None


def test_the_kernels_work_by_hand() -> None:
    # 8 heads of 40 over 4096 positions, two to a tile of 128 lanes, in two passes.
    scores = 2 * 8 * 4096**2
    cost = f'"cost_estimate":{{"flops":"{4 * scores * 40}","transcendentals":"{scores}","bytes_accessed":"1000"}}'
    line = f'  %o = bf16[2,4096,512] custom-call(%q), custom_call_target="tpu_custom_call", backend_config={{{cost}}}'
    module = hlo.parse("HloModule m\n\nENTRY %main (q: bf16[2,4096,512]) -> bf16[2,4096,512] {\n" + line + "\n}\n")
    cost = planner.attention_kernels(module)
    assert cost.hbm_bytes == 1000
    assert cost.flops == 4 * scores * 128


@pytest.mark.tpu_compile
@pytest.mark.timeout(900)
def test_a_plan(checkpoint) -> None:
    pytest.importorskip("libtpu")
    root = str(Path(__file__).parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
    where = ["--model", str(checkpoint("sd1")), "--slice", "v5e:2x2", "--size", "64x64", "--pictures", "1,2"]
    command = [sys.executable, "-m", "apps.stable_diffusion.plan", PICTURES, *where, "--json"]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    plan = ImagePlan.model_validate_json(done.stdout)
    assert json.loads(done.stdout)["label"] == LABEL
    assert (plan.chips, plan.devices_per_chip, plan.steps, plan.guided) == (4, 1, 50, True)
    assert [program.pictures for program in plan.denoising] == [1, 2]
    one, two = plan.denoising
    assert one.kernels == two.kernels > 0, "long self attention goes through the kernel"
    assert two.flops == pytest.approx(2 * one.flops, rel=0.1)
    for program in (one, two, plan.decoder, plan.text_encoder):
        assert 0 < program.floor_s <= program.estimate_s
    assert all(rate.fits for rate in plan.rates)
    assert plan.rates[0].per_chip_s < plan.rates[0].per_chip_s_at_floor
    assert plan.rates[0].seconds == pytest.approx(
        50 * one.estimate_s + plan.decoder.estimate_s + 8 * plan.text_encoder.estimate_s
    )
