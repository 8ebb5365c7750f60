"""A program's digest: the same wherever it is made, another for whatever may change the program."""

from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.programs import ProgramSpec
from apps.arrays.stored_programs import fingerprint


class Kind(Enum):
    one = 1
    other = 2


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclass(frozen=True)
class Model:
    layers: int
    kind: Kind

    @cached_property
    def computed(self) -> int:
        return self.layers


def run(model: Model, x: Any) -> Any:
    return x


def mesh(axis: str = "tensor") -> Mesh:
    return Mesh(np.array(jax.devices()[:1]), (axis,))


def form(shape: tuple[int, ...] = (8, 4), dtype: Any = jnp.float32, spec: P | None = None, axis: str = "tensor") -> Any:
    return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh(axis), P() if spec is None else spec))


BASE = ProgramSpec(("step", 8), partial(run, Model(2, Kind.one)), ({"w": form(), "scale": None}, [form()]))


@pytest.mark.parametrize(
    "changes",
    [
        {"key": ("step", 16)},
        {"function": run},
        {"function": partial(run, Model(3, Kind.one))},
        {"function": partial(run, Model(2, Kind.other))},
        {"function": jnp.negative},
        {"function": jnp.abs},
        {"arguments": ({"w": form(), "scale": form()}, [form()])},
        {"arguments": ({"w": form(), "scale": None}, (form(),))},
        {"arguments": ({"w": form(), "scale": None}, Pair(form(), None))},
        {"arguments": ({"v": form(), "scale": None}, [form()])},
        {"arguments": ({"w": form((4, 8)), "scale": None}, [form()])},
        {"arguments": ({"w": form(dtype=jnp.bfloat16), "scale": None}, [form()])},
        {"arguments": ({"w": form(spec=P("tensor")), "scale": None}, [form()])},
        {"arguments": ({"w": form(spec=P(None, "tensor")), "scale": None}, [form()])},
        {"arguments": ({"w": form(axis="data"), "scale": None}, [form()])},
        {"donate": (0,)},
        {"out_shardings": NamedSharding(mesh(), P())},
        {"options": {"xla_cpu_enable_fast_math": True}},
    ],
)
def test_whatever_changes_a_program_changes_its_digest(changes: dict[str, Any]) -> None:
    assert fingerprint.program(replace(BASE, **changes)) != fingerprint.program(BASE)


def test_what_was_computed_since_changes_nothing() -> None:
    model = Model(2, Kind.one)
    before = fingerprint.program(replace(BASE, function=partial(run, model)))
    assert model.computed == 2
    assert fingerprint.program(replace(BASE, function=partial(run, model))) == before == fingerprint.program(BASE)


@pytest.mark.parametrize("value", [jnp.zeros(2), np.zeros(2), object(), iter([])])
def test_what_cannot_be_told_from_others_is_refused(value: Any) -> None:
    """A closed-over array above all: its values would be part of the program."""

    def closes_over(x: Any) -> Any:
        return x, value

    for function in (partial(run, value), closes_over):
        with pytest.raises(TypeError, match="cannot be told"):
            fingerprint.program(replace(BASE, function=function))


def test_a_closed_over_number_counts() -> None:
    def made(number: int) -> Any:
        return lambda x: x * number

    one, two = (fingerprint.program(replace(BASE, function=made(number))) for number in (1, 2))
    assert one != two


def test_the_sources_are_those_of_the_package(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arrays").mkdir()
    (tmp_path / "arrays" / "a.py").write_text("one = 1\n")
    monkeypatch.setattr(fingerprint.apps, "__path__", [str(tmp_path)])
    before = fingerprint.sources.__wrapped__("arrays")
    (tmp_path / "arrays" / "notes.txt").write_text("")
    assert fingerprint.sources.__wrapped__("arrays") == before
    (tmp_path / "arrays" / "a.py").write_text("one = 2\n")
    assert fingerprint.sources.__wrapped__("arrays") != before
