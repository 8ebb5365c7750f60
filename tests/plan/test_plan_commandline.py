"""`python -m apps.llm.plan`: what it refuses and how, and the plan that it prints."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from apps.llm.plan import app
from apps.plan.commandline import app as either
from apps.plan.llm.report import LLMPlan
from apps.plan.llm.search import Candidate, Found
from apps.plan.report import LABEL

PICTURES = "ray_configs.catalog.stable_diffusion_v4"
LLAMA = "ray_configs.catalog.llama3_8b_v5e"
SMALL = ["--set", "max_batch_size=8", "--set", "max_step_tokens=64", "--set", "max_model_len=128"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["no.such.module"], "there is no module 'no.such.module'"),
        (["ray_configs.catalog.prepare_gemma_7b_it"], "is a job"),
        (["ray_configs.catalog.stable_diffusion_v4"], "no language model"),
        (["ray_configs.catalog.local"], "no slice to plan for"),
        ([LLAMA, "--app", "other"], "no language model named 'other'; it has llm"),
        ([LLAMA, "--set", "batch=3"], "must be FIELD=VALUE"),
        ([LLAMA, "--set", "max_batch_size=0"], "max_batch_size"),
        ([LLAMA, "--slice", "v6e:2x2", "--set", "quantize_weights=int3"], "not a valid config"),
        ([LLAMA, "--slice", "v5e:3x3"], "v5e has no topology '3x3'"),
        ([LLAMA, "--search", "--price", "v5e"], "must be GENERATION=DOLLARS"),
    ],
)
def test_refusals_say_why(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([LLAMA, "--steps", "0"], "--steps: not for a language model, whose fields --set changes"),
        ([LLAMA, "--ms-per-token", "4"], "--ms-per-token: only with --search"),
        ([PICTURES, "--context", "5", "--search"], "--context, --search: not for Stable Diffusion"),
        ([PICTURES, "--set", "batch=3"], "a field of StableDiffusionConfig"),
        (["ray_configs.catalog.cell_v5e_4x8"], "no language model or Stable Diffusion application"),
    ],
)
def test_one_command_tells_the_models_apart(arguments: list[str], complaint: str) -> None:
    done = CliRunner().invoke(either, arguments)
    assert (done.exit_code, complaint in done.stderr) == (2, True), done.stderr


ROOT = str(Path(__file__).parents[2])
ENVIRONMENT = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "apps.llm.plan", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)


REFUSED = {
    "this model's context is 8192": ["--set", "max_model_len=100000"],
    "= 16, but this host has 8 tpu devices": ["--set", "tensor_parallel=16"],
    "from 1 to the longest sequence, 2048": ["--context", "4096"],
    "no TPU generation 'v9'": ["--search", "--generation", "v9"],
}
REFUSALS = """
import json, sys
from typer.testing import CliRunner
from apps.llm.plan import app
for arguments in json.loads(sys.argv[1]):
    done = CliRunner().invoke(app, arguments)
    print(json.dumps([done.exit_code, done.stderr]))
"""


@pytest.mark.slow
def test_refusals_of_the_planner_say_why() -> None:
    """All in one process, apart from this one's JAX: to begin is what takes the time."""
    pytest.importorskip("libtpu")
    command = [sys.executable, "-c", REFUSALS, json.dumps([[LLAMA, *arguments] for arguments in REFUSED.values()])]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(answers) == len(REFUSED), done.stderr
    for complaint, (status, said) in zip(REFUSED, answers, strict=True):
        assert status == 2 and complaint in said and "Traceback" not in said


def test_the_schema_describes_every_number() -> None:
    for part in (LLMPlan, Found, Candidate):
        schema = part.model_json_schema()
        assert set(schema["required"]) <= set(schema["properties"])
    assert LABEL.startswith("computed, not measured")


@pytest.mark.tpu_compile
@pytest.mark.long
@pytest.mark.timeout(900)
def test_search_compiles_the_cheapest_and_prints_its_plan() -> None:
    pytest.importorskip("libtpu")
    model = ["ray_configs.catalog.spmd_175b", "--set", "model=lm_cloud.LmCloudSpmd2BTest", *SMALL]
    done = run(*model, "--json", "--search", "--generation", "v5e", "--most-chips", "8", "--ms-per-token", "6")
    assert done.returncode == 0, done.stderr
    found = Found.model_validate_json(done.stdout)
    assert json.loads(done.stdout)["label"] == LABEL
    (chosen,) = [c for c in found.candidates if c.plan is not None]
    assert found.chosen == [chosen.slice]
    plan = chosen.plan
    assert plan.chips == chosen.chips
    assert plan.memory.fits
    assert plan.layers_compiled == [2, 4]
    # The two branches of the arithmetic agree, and a floor is one.
    assert chosen.least_ms <= plan.at_floor.time_per_token_ms <= plan.estimate.time_per_token_ms <= 6
    assert plan.decode.hbm_over_least < 1.10
    assert plan.memory.total <= plan.memory.usable
    assert [entry.context for entry in plan.batches] == [128, 64, 32, 16]
    assert all(c.chips >= chosen.chips for c in found.candidates if "more expensive" in c.verdict)
