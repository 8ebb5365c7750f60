"""Counts what programs do as they are traced, before any compiler: seconds for a config, where compiling takes minutes.

That finds weights, caches, products, kernels and exchanges that a change has added. What the compiler makes of them
(fusions, copies, temporaries) only the full check knows.
"""

import math
from collections.abc import Iterable, Iterator
from typing import Any

import jax
from jax.extend import core

from apps.arrays.programs import ProgramSpec
from apps.plan.llm.planner import PlannedModel
from apps.plan.stable_diffusion.planner import PicturePrograms
from ray_configs.llm import LLMConfig
from tools.plan_check.cases import Case, pictured, sized
from tools.plan_check.expectations import Figures

EXCHANGES = {"psum", "psum_invariant", "reduce_scatter", "all_gather", "all_gather_invariant", "ppermute", "all_to_all"}
KERNELS = {"pallas_call", "ffi_call"}
PRODUCTS = {"dot_general", "conv_general_dilated"}


def traced(config: Case) -> Iterator[tuple[str, Figures]]:
    """Traces a model's decode step and its largest prefill, or a pipeline's smallest programs; yields their figures."""
    if isinstance(config, LLMConfig):
        model = sized(config)
        # Kernels ask the mesh in use what kind of chip they are for: see StepPrograms.lowered.
        with jax.sharding.use_abstract_mesh(model.programs.mesh.abstract_mesh):
            for spec in _largest(model):
                yield f"{spec.key[1]} tokens", figures(spec)
        return
    programs = pictured(config)
    for spec in _smallest(programs):
        yield str(spec.key[0]), figures(spec)


def _largest(model: PlannedModel) -> Iterable[ProgramSpec]:
    tokens = {model.decode_shape.tokens, model.shapes[-1].tokens}
    return [spec for spec in model.programs.listed() if spec.key[0] == "step" and spec.key[1] in tokens]


def _smallest(programs: PicturePrograms) -> Iterable[ProgramSpec]:
    few = programs.batches[0]
    return [spec for key, spec in programs.specs.items() if key[0] != "denoise" or key[2] == few]


def figures(spec: ProgramSpec) -> Figures:
    """Of one run, to four digits; a loop's body counts once. Arguments are those of one device."""
    found = {"operations": 0.0, "products": 0.0, "product_gflop": 0.0, "kernels": 0.0, "exchanges": 0.0}
    for equation in equations(spec.traced().jaxpr.jaxpr):
        name = equation.primitive.name
        found["operations"] += 1
        found["kernels"] += name in KERNELS
        found["exchanges"] += name in EXCHANGES
        if name in PRODUCTS:
            found["products"] += 1
            found["product_gflop"] += _flops(equation) / 1e9
    found["arguments_mib"] = sum(map(_nbytes, jax.tree.leaves(spec.arguments))) / 2**20
    return {name: float(f"{value:.4g}") for name, value in found.items()}


def equations(jaxpr: core.Jaxpr) -> Iterator[core.JaxprEqn]:
    """All of a program's equations, also those in the functions that it calls; a kernel's own are not looked into."""
    for equation in jaxpr.eqns:
        inner = [] if equation.primitive.name in KERNELS else list(_inside(equation.params.values()))
        if not inner:
            yield equation
        for each in inner:
            yield from equations(each)


def _inside(values: Iterable[Any]) -> Iterator[core.Jaxpr]:
    for value in values:
        if isinstance(value, core.ClosedJaxpr):
            yield value.jaxpr
        elif isinstance(value, core.Jaxpr):
            yield value
        elif isinstance(value, tuple | list):
            yield from _inside(value)


def _flops(equation: core.JaxprEqn) -> float:
    """Twice the multiplications of a product or convolution."""
    left, right = (variable.aval.shape for variable in equation.invars[:2])
    out = math.prod(equation.outvars[0].aval.shape)
    if equation.primitive.name == "dot_general":
        (contracted, _), _ = equation.params["dimension_numbers"]
        return 2.0 * out * math.prod(left[axis] for axis in contracted)
    return 2.0 * out * math.prod(right) / right[equation.params["dimension_numbers"].rhs_spec[0]]


def _nbytes(form: jax.ShapeDtypeStruct) -> int:
    shape = form.shape if form.sharding is None else form.sharding.shard_shape(form.shape)
    return math.prod(shape) * form.dtype.itemsize
