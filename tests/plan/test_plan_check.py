"""What `make plan-check` compares, and the comparison itself of every case."""

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXPECTED = ROOT / "tests" / "plan" / "expected"
FILES = {file.stem: json.loads(file.read_text()) for file in sorted(EXPECTED.glob("*.json"))}
PROGRAMS = {name: file["programs"] for name, file in FILES.items() if "programs" in file}


def plan_check(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tools.plan_check", *arguments]
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)


def test_what_grew_is_worse_and_what_shrank_is_said() -> None:
    from tools.plan_check.expectations import compare

    before = {"decode": {"hbm_mb": 100.0, "collectives": 7.0, "compile_s": 3.0}, "prefill": {"hbm_mb": 5.0}}
    assert compare(before, before) == ([], False)
    slower = {"decode": before["decode"] | {"compile_s": 300.0}, "prefill": before["prefill"]}
    assert compare(before, slower) == ([], False)
    better = {"decode": before["decode"] | {"hbm_mb": 50.0}, "prefill": {"hbm_mb": 5.1}}
    lines = ["decode: hbm_mb 100 -> 50, -50.0 %", "prefill: hbm_mb 5 -> 5.1, +2.0 %"]
    assert compare(before, better) == (lines, False)
    assert compare(before, {"decode": before["decode"] | {"collectives": 8.0}, "prefill": {"hbm_mb": 5.0}}) == (
        ["decode: collectives 7 -> 8, +14.3 %  WORSE"],
        True,
    )
    moved, grown = ({"prefill": {"temporaries_mib": mib}} for mib in (46.6, 51.0))
    assert compare({"prefill": {"temporaries_mib": 45.6}}, moved)[1] is False
    assert compare({"prefill": {"temporaries_mib": 45.6}}, grown)[1] is True
    lines, worse = compare(before, {"decode": before["decode"] | {"spilled": 1.0}, "verify": {"hbm_mb": 1.0}})
    assert worse and lines == [
        "prefill: is no longer compiled",
        "verify: is not expected",
        "decode: spilled 0 -> 1  WORSE",
    ]


def test_every_case_has_expectations_of_one_compiler() -> None:
    from tools.plan_check.cases import TRACED, cases

    assert sorted(cases()) == list(FILES)
    assert len({file["compiler"] for file in FILES.values()}) == 1
    assert all(file["traced"] for file in FILES.values())
    assert FILES.keys() - PROGRAMS.keys() == set(TRACED)


LANGUAGE = [name for name in PROGRAMS if not name.startswith("sd")]


@pytest.mark.parametrize("name", LANGUAGE)
def test_the_plans_size_of_all_programs_is_theirs(name: str) -> None:
    """Worked out from two of them; rather too much than too little."""
    from apps.plan.llm.capacity import code_bytes

    steps = PROGRAMS[name]
    code = {int(step.split()[0]): numbers["code_mib"] for step, numbers in steps.items()}
    decode = max(int(step.split()[0]) for step in steps if "decode" in step)
    said = code_bytes(list(code), decode, code[decode], code[max(code)])
    assert 0.94 < said / sum(code.values()) < 1.25


def test_expectations_of_another_compiler_are_not_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tools.plan_check import expectations as checking

    monkeypatch.setattr(checking, "EXPECTED", tmp_path)
    with pytest.raises(checking.NotComparable, match="make it with --write llama3_8b_v5e"):
        checking.expected("llama3_8b_v5e")
    (tmp_path / "llama3_8b_v5e.json").write_text('{"compiler": "jax 0.1, libtpu 0.0.1", "programs": {}}')
    with pytest.raises(checking.NotComparable, match="make it with --write --quick llama3_8b_v5e"):
        checking.expected("llama3_8b_v5e", "traced")
    with pytest.raises(checking.NotComparable, match=r"is for jax 0.1, libtpu 0.0.1, but this is jax"):
        checking.expected("llama3_8b_v5e")


def test_a_name_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from tools.plan_check import __main__ as checking

    monkeypatch.setattr(sys, "argv", ["plan_check", "llama"])
    with pytest.raises(SystemExit) as refused:
        checking.main()
    assert refused.value.code == 2
    assert "unknown: llama; choose from llama3_8b_v5e, " in capsys.readouterr().err


def test_turns_take_every_program_and_each_for_minutes() -> None:
    from tools.plan_check.turns import TURN, turn

    days = [turn(day, PROGRAMS) for day in range(200)]
    again = days.index(days[0], 1)
    assert days[again : 2 * again] == days[:again]
    for name, programs in PROGRAMS.items():
        seconds = {program: figures["compile_s"] for program, figures in programs.items()}
        parts = [list(seconds)[only] for each, only in days[:again] if each == name]
        assert list(itertools.chain(*parts)) == list(seconds)
        assert all(len(part) == 1 or sum(map(seconds.__getitem__, part)) <= TURN for part in parts)


@pytest.mark.tpu_compile
def test_traces_of_all_cases_are_what_they_were() -> None:
    """At most, that is. `make plan-check` has what the compiler says, which takes minutes for each."""
    checked = plan_check("--quick")
    if checked.returncode == 2:  # the expectations are another compiler's, which says nothing against the programs
        pytest.skip(checked.stderr.splitlines()[-1])
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_a_trace_counts_what_a_program_does() -> None:
    """Two layers of a product of 8 x 16 x 16, one in a function, and a loop whose body counts once."""
    import jax
    import jax.numpy as jnp

    from apps.arrays.programs import ProgramSpec
    from tools.plan_check.traced import figures

    def step(x: jax.Array, weight: jax.Array) -> jax.Array:
        x = jax.jit(jnp.dot)(jnp.dot(x, weight), weight)
        return jax.lax.fori_loop(0, 5, lambda _, x: x @ weight, x)

    x, weight = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 16), (16, 16)))
    found = figures(ProgramSpec(("step",), step, (x, weight)))
    assert (found["products"], found["product_gflop"]) == (3, float(f"{3 * 2 * 8 * 16 * 16 / 1e9:.4g}"))
    assert found["arguments_mib"] == float(f"{4 * (8 * 16 + 16 * 16) / 2**20:.4g}")
    assert found["kernels"] == found["exchanges"] == 0


SMALL = """
import sys
from pathlib import Path
from ray_configs.loading import changed
from tools.plan_check import __main__, cases, expectations

small = {"max_batch_size": 8, "max_step_tokens": 8, "max_model_len": 128}
llama = changed(cases.cases()["llama3_8b_v5e"], small, "small")
cases.cases = lambda: {"small": llama}
expectations.EXPECTED = Path(sys.argv.pop(1))
sys.exit(__main__.main())
"""


@pytest.mark.tpu_compile
def test_a_program_that_got_worse_fails(tmp_path: Path) -> None:
    """Written, the same again, and then against a file that says it was better."""

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", SMALL, str(tmp_path), *options]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)

    assert "there is no" in run().stderr
    assert run("--write").returncode == 0
    same = run()
    assert (same.returncode, same.stdout) == (0, "== small\nas expected: 1 programs\n"), same.stderr
    file = tmp_path / "small.json"
    content = json.loads(file.read_text())
    (program,) = content["programs"].values()
    program["hbm_mb"] /= 2
    file.write_text(json.dumps(content))
    worse = run()
    assert worse.returncode == 1
    assert "8 tokens: decode 8 x 128: hbm_mb" in worse.stdout and "+100.0 %  WORSE" in worse.stdout
    assert run("--quick").returncode == 0, "those figures are still as written"
    assert run("--turn", "7").returncode == 1, "the only turn has it"
