"""`podslice plan` for a workload: what it refuses and how, and what it prints."""

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from apps.plan.commandline import app
from apps.plan.workload import text
from apps.plan.workload.planning import WorkloadPlan, WorkloadSearch

LLAMA = "ray_configs.catalog.llama3_8b_v5e"
LENGTHS = ["--prompt-tokens", "16:64", "--output-tokens", "16"]
SMALL = ["--set", "max_batch_size=8", "--set", "max_step_tokens=64", "--set", "max_model_len=128"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--rate", "3"], "a workload needs --trace FILE, or --prompt-tokens and --output-tokens"),
        (["--prompt-tokens", "3", "--rate", "3"], "or --output-tokens (512, 32:512, ...)"),
        (LENGTHS, "a workload needs --rate (requests a second) or --concurrency"),
        ([*LENGTHS, "--rate", "3", "--concurrency", "3"], "--rate and --concurrency: give one of them"),
        ([*LENGTHS, "--rate", "-1"], "--rate -1.0 must be greater than 0"),
        ([*LENGTHS, "--rate", "3", "--slo", "fast"], "--slo: 'fast' must be such as ttft=2s,tpot=40ms"),
        ([*LENGTHS[2:], "--prompt-tokens", "9:3", "--rate", "3"], "--prompt-tokens: '9:3' says no lengths; write 512"),
        (["--trace", "nowhere.jsonl"], "--trace: [Errno 2] No such file or directory: 'nowhere.jsonl'"),
        (["--trace", "TRACE", *LENGTHS], "--prompt-tokens, --output-tokens: not with --trace"),
        (["--trace", "TRACE", "--chart", "no/such/folder/x.svg"], "--chart no/such/folder/x.svg: there is no folder"),
        (["--trace", "TRACE", "--context", "64"], "--context: not for a workload"),
        (["--trace", "TRACE", "--search"], "--search for a workload needs --slo"),
        (["--trace", "TRACE", "--rate", "3"], "all requests of this trace come at once"),
        (["--trace", "TRACE", "--most-chips", "8"], "--most-chips: only with --search"),
        (["--trace", "TRACE", "--search", "--slo", "ttft=1s", "--replicas", "2"], "--replicas: not with --search"),
    ],
)
def test_refusals_name_the_option(arguments: list[str], complaint: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 5, "input_length": 20, "output_length": 4}\n' * 3)
    done = CliRunner().invoke(app, [LLAMA, *(str(trace) if word == "TRACE" else word for word in arguments)])
    assert (done.exit_code, complaint in done.stderr) == (2, True), done.stderr


def test_pictures_have_no_such_workload() -> None:
    done = CliRunner().invoke(app, ["ray_configs.catalog.stable_diffusion_v4", "--rate", "3"])
    assert (done.exit_code, "--rate: not for Stable Diffusion" in done.stderr) == (2, True)


def test_a_file_that_is_no_plan(tmp_path: Path) -> None:
    for content in ("[]", "{", '{"asked": {"config": "x"}}'):
        (tmp_path / "plan.json").write_text(content)
        done = CliRunner().invoke(app, [str(tmp_path / "plan.json")])
        assert (done.exit_code, "is no plan of a workload" in done.stderr) == (2, True), done.output


@pytest.mark.slow
def test_a_config_without_a_slice_is_timed_here_first(tmp_path: Path) -> None:
    chart = tmp_path / "run.svg"
    arguments = ["ray_configs.catalog.local", "--app", "llm", "--set", "max_batch_size=4", *LENGTHS]
    arguments += [
        "--concurrency",
        "4",
        "--requests",
        "40",
        "--slo",
        "ttft=1h".replace("1h", "99s"),
        "--chart",
        str(chart),
    ]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 0, done.output
    assert "timing steps of 4 requests at a time" in done.stderr
    plan = WorkloadPlan.model_validate_json(done.stdout)
    assert plan.asked is not None and plan.asked.options["concurrency"] == 4 and "kinds" not in plan.asked.options
    console = Console(width=120, file=StringIO())
    text.show(plan, console)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for line in ("podslice-demo on one replica like this machine: 40 requests", "first token", "met: ttft 99 s"):
        assert line in shown
    assert "measured on this machine" in shown and chart.read_text().startswith("<svg")


@pytest.mark.tpu_compile
def test_a_trace_on_a_slice(tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    entries = [{"timestamp": 20 * n, "input_length": 40, "output_length": 12, "hash_ids": [0, n]} for n in range(200)]
    trace.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    arguments = [LLAMA, *SMALL, "--trace", str(trace), "--slo", "ttft=1s,tpot=1s", "--price", "v5e=1.2", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    plan = WorkloadPlan.model_validate_json(done.stdout)
    assert plan.served.requests == 200 and plan.served.meets
    assert plan.floor is not None and plan.estimate is not None and plan.steps is not None
    floor, estimate = plan.floor.tpot, plan.estimate.tpot
    assert floor is not None and estimate is not None and floor.p50 < estimate.p50
    # A lone step's time is the plan's own, give or take the host and the shorter contexts.
    assert estimate.p50 == pytest.approx(plan.steps.estimate.time_per_token_ms / 1e3, rel=0.3)
    assert plan.cost is not None and plan.cost.dollars_an_hour == pytest.approx(1.2 * plan.chips)
    saved = tmp_path / "plan.json"
    saved.write_text(done.stdout)
    again = CliRunner().invoke(app, [str(saved), "--json"])
    without_seconds = {"steps": None}  # that compiling took
    assert WorkloadPlan.model_validate_json(again.stdout).model_copy(update=without_seconds) == plan.model_copy(
        update=without_seconds
    )
    trace.write_text(trace.read_text() + '{"timestamp": 0, "input_length": 1, "output_length": 1}')
    other = CliRunner().invoke(app, [str(saved)])
    assert (other.exit_code, "is not the trace that it was of" in other.stderr) == (2, True)


@pytest.mark.tpu_compile
def test_the_cheapest_slices_that_keep_to_an_slo() -> None:
    arguments = [LLAMA, *SMALL, *LENGTHS, "--rate", "40", "--requests", "400", "--slo", "ttft=1s,tpot=20ms", "--search"]
    arguments += ["--price", "v5e=1.2", "--most-chips", "8", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = WorkloadSearch.model_validate_json(done.stdout)
    assert [plan.slice.partition(":")[0] for plan in found.found if plan.slice] == ["v5e"]
    best = found.found[0]
    assert best.served.meets and best.served.good and best.served.good >= 0.99
