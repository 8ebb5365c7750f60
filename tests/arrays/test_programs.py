"""The list of an engine's programs: compiled once, answered by key, and nothing compiled later goes unseen."""

import ast
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from apps.arrays.programs import ProgramSet, ProgramSpec, zeros

FORM = jax.ShapeDtypeStruct((3,), np.float32, sharding=jax.sharding.SingleDeviceSharding(jax.devices("cpu")[0]))


def plus(number: int, **options) -> ProgramSpec:
    return ProgramSpec(("plus", number), lambda x: x + number, (FORM,), **options)


def test_programs_are_compiled_in_advance_and_answered_by_key() -> None:
    programs, done = ProgramSet(plus(number) for number in range(5)), []
    programs.compile(lambda key, seconds: done.append(key))
    assert sorted(done) == [("plus", number) for number in range(5)]
    programs.ready()
    assert programs["plus", 3](np.ones(3, np.float32)).tolist() == [4, 4, 4]
    assert programs.compiles_after_ready == 0
    programs.compile(lambda key, seconds: done.append(key))
    assert len(done) == 5, "what is compiled stays so"
    with pytest.raises(KeyError, match="minus"):
        _ = programs["minus", 3]


def test_what_is_compiled_later_is_counted_whether_it_is_in_the_list_or_not() -> None:
    programs = ProgramSet([plus(7)])
    assert programs.compiles_after_ready == 0
    programs.ready()
    assert programs["plus", 7](np.zeros(3, np.float32)).tolist() == [7, 7, 7]
    assert programs.compiles_after_ready == 1
    _ = programs["plus", 7]
    assert programs.compiles_after_ready == 1
    jax.jit(lambda x: x * 3.25)(np.ones(7))
    assert programs.compiles_after_ready == 2
    ProgramSet([plus(8)]).compile()
    assert programs.compiles_after_ready == 2, "another engine's warm-up is its own"


def test_arguments_are_donated_and_results_placed() -> None:
    programs = ProgramSet([plus(1, donate=(0,), out_shardings=FORM.sharding)])
    x = jnp.zeros(3)
    assert programs["plus", 1](x).sharding == FORM.sharding
    assert x.is_deleted()
    empty = ProgramSpec(("zeros",), lambda: zeros({"a": FORM}), (), out_shardings=FORM.sharding).compiled()()
    assert empty["a"].tolist() == [0, 0, 0]


def test_a_key_names_one_program() -> None:
    with pytest.raises(ValueError, match=r"two programs have the key \('plus', 1\)"):
        ProgramSet([plus(1), plus(2), plus(1)])


def test_the_first_error_ends_the_compiling() -> None:
    def fails(x: jax.Array) -> jax.Array:
        raise ArithmeticError("no such sum")

    programs, done = ProgramSet([ProgramSpec(("fails",), fails, (FORM,)), *map(plus, range(50))]), []
    with pytest.raises(ArithmeticError, match="no such sum"):
        programs.compile(lambda key, seconds: done.append(key))
    assert len(done) < 50


ROOT = Path(__file__).parents[2]
ALLOWED = {
    "apps/arrays/programs.py": "compiles the lists",
    "apps/llm/engine/model/decoder.py": "a function inside a program, traced once for all layers",
    "apps/llm/engine/model/towers/blocks.py": "likewise",
    "apps/jobs/smoke.py": "a job, which serves nobody",
    "apps/plan/topology.py": "asks the compiler how much memory there is",
}
COMPILES = {"jit", "pjit", "pmap"}


def compiling(path: Path) -> bool:
    """Whether a file asks JAX to compile, or to trace for compiling."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "jax" and node.attr in COMPILES:
            return True
        names = {alias.name for alias in node.names} if isinstance(node, ast.ImportFrom) else set()
        if names & COMPILES and (node.module or "").split(".")[0] == "jax":
            return True
    return False


@pytest.mark.slow
def test_nothing_else_compiles() -> None:
    found = {str(path.relative_to(ROOT)) for path in (ROOT / "apps").rglob("*.py") if compiling(path)}
    assert found == ALLOWED.keys()
