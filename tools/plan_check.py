"""Compares the TPU compiler's figures for our programs with those committed: `python -m tools.plan_check [NAME ...]`.

Compiles every step of the catalog's language models for its slice, without a TPU; a model of many layers is
extrapolated from two short ones. tests/plan/expected/ has the memory, traffic and cost of one run of each step on a
device; less is better. A number that grew by more than 2 % fails. --write regenerates the expectations; their diff
shows the effect of a change.
"""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"  # before JAX is imported, so that it does not take a local TPU
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from apps.llm.engine.step import StepShape
from apps.plan import topology
from apps.plan.llm import planner
from apps.plan.llm.program import MeasuredStep
from apps.plan.measured import KernelCost, run_time
from ray_configs.catalog import gemma_7b_it_v5e, llama3_8b_v5e, spmd_175b, whole_graph
from ray_configs.llm import EngineConfig, LLMConfig
from ray_configs.loading import changed
from ray_configs.tpu import TpuSlice
from ray_configs.tpu.peaks import Peaks

EXPECTED = Path(__file__).parents[1] / "tests" / "plan" / "expected"
SPARE = 1.02
TIMED = "compile_s"
"""Depends on the machine, so it is shown but not compared."""
Program = Mapping[str, float]
Tell = Callable[[str], None]


class NotComparable(Exception):
    """The figures cannot be compared; the message says why and what to do."""


def cases() -> dict[str, LLMConfig]:
    """The configs to check, by name. No Stable Diffusion: its UNets take up to ten minutes each to compile."""
    llama = llama3_8b_v5e.service.applications[0].config
    int8 = {"quantize_weights": "int8", "quantize_kv_cache": "int8"}
    return {
        "llama3_8b_v5e": llama,
        "llama3_8b_v5e_int8": changed(llama, int8, "llama3_8b_v5e"),
        "gemma_7b_it_v5e": gemma_7b_it_v5e.service.applications[0].config,
        "spmd_175b": spmd_175b.service.applications[0].config,
        "whole_graph_llm": whole_graph.llm,
    }


def compiled(config: LLMConfig, tell: Tell, quick: bool = False) -> Iterator[tuple[str, Program]]:
    """Compile each step, or quickly the full decode step and the largest prefill; yields its name and figures."""
    slice = config.slice
    assert slice is not None
    engine = EngineConfig(**{field: getattr(config, field) for field in EngineConfig.model_fields})
    sized = planner.Sized.of(planner.Workload(engine, slice))

    def measure(shape: StepShape) -> MeasuredStep:
        tell(f"compiling a step of {shape.tokens} tokens")
        return sized.programs.measure(shape)

    shapes = [sized.decode_shape, sized.shapes[-1]] if quick else sized.shapes
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        every = list(pool.map(measure, shapes))
    for shape, measured in zip(shapes, every):
        sequences = _sequences(shape, sized.context)
        costs = sized.kernels(shape, sequences)
        tokens, length = sequences[0]
        name = f"decode {len(sequences)} x {length}" if tokens == 1 else f"prefill {len(sequences)} x {tokens}"
        yield f"{shape.tokens} tokens: {name}", numbers(measured, costs, slice)


def _sequences(shape: StepShape, context: int) -> list[tuple[int, int]]:
    """The step's workload: as many decoding sequences of full length as it can have, or prompts that fill it."""
    if shape.tokens == shape.seqs:
        return [(1, context)] * shape.seqs
    prompt = min(shape.tokens, context)
    return [(prompt, prompt)] * (shape.tokens // prompt)


def numbers(measured: MeasuredStep, kernels: Sequence[KernelCost], slice: TpuSlice) -> dict[str, float]:
    """Figures for one run on one device, to four digits. The kernels' bytes and operations are analytic."""
    peaks = Peaks.of(slice, len(topology.devices(slice)))
    by_hand = [replace(kernel, cycles=0) for kernel in kernels]
    exact = {
        "estimate_ms": run_time(measured, kernels, peaks).estimate * 1e3,
        "estimate_by_hand_ms": run_time(measured, by_hand, peaks).estimate * 1e3,
        "kcycles": measured.cycles / 1e3,
        "kcycles_all_options": measured.cycles_everything / 1e3,  # sampling, penalties, log probabilities
        "hbm_mb": (measured.hbm_read + measured.hbm_written) / 1e6,
        "kernels": measured.kernels,
        "kernel_kcycles": sum(kernel.cycles for kernel in kernels) / 1e3,
        "kernel_hbm_mb": sum(kernel.hbm_bytes for kernel in kernels) / 1e6,
        "kernel_gflop": sum(kernel.flops for kernel in kernels) / 1e9,
        "collectives": measured.collectives,
        "ici_mb": measured.ici_sent / 1e6,
        "temporaries_mib": measured.temporaries / 2**20,
        "peak_mib": measured.peak / 2**20,
        "code_mib": measured.code / 2**20,
        TIMED: measured.seconds,
    }
    return {name: float(f"{value:.4g}") for name, value in exact.items()}


def compare(expected: Mapping[str, Program], found: Mapping[str, Program]) -> tuple[list[str], bool]:
    """The changes, one a line, and whether anything got worse. Compile times are not compared."""
    lines, worse = [], False
    for name in sorted(expected.keys() ^ found.keys()):
        lines.append(f"{name}: {'is not expected' if name in found else 'is no longer compiled'}")
        worse = True
    for name in (name for name in found if name in expected):
        for quantity in sorted(expected[name].keys() | found[name].keys()):
            before, now = expected[name].get(quantity, 0), found[name].get(quantity, 0)
            if quantity == TIMED or before == now:
                continue
            is_worse = now > before * SPARE
            worse = worse or is_worse
            by = f", {(now / before - 1) * 100:+.1f} %" if before else ""
            lines.append(f"{name}: {quantity} {before:g} -> {now:g}{by}{'  WORSE' if is_worse else ''}")
    return lines, worse


def compiler() -> str:
    """The compiler's version. Raises NotComparable if it is not installed."""
    try:
        return f"jax {version('jax')}, libtpu {version('libtpu')}"
    except PackageNotFoundError as error:
        raise NotComparable(f"{error.name} is not installed: pip install 'jax[tpu]' has the compiler") from error


def expected(name: str) -> dict[str, Program]:
    """The committed figures. Raises NotComparable if there are none, or another compiler made them."""
    file = EXPECTED / f"{name}.json"
    if not file.exists():
        raise NotComparable(f"there is no {file}: make it with --write {name}")
    content = json.loads(file.read_text())
    if content["compiler"] != compiler():
        raise NotComparable(
            f"{file} is for {content['compiler']}, but this is {compiler()}: install those, or --write all first"
        )
    return content["programs"]


def main() -> int:
    every = cases()
    parser = argparse.ArgumentParser(prog="python -m tools.plan_check", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(every)}; default: all")
    parser.add_argument("--quick", action="store_true", help="only the full decode step and the largest prefill")
    parser.add_argument("--write", action="store_true", help="regenerate the expectations")
    parser.add_argument("--list", action="store_true", help="print the names")
    arguments = parser.parse_args()
    if arguments.quick and arguments.write:
        parser.error("--write needs every step: leave out --quick")
    if unknown := [name for name in arguments.names if name not in every]:
        parser.error(f"unknown: {', '.join(unknown)}; choose from {', '.join(every)}")

    if arguments.list:
        print("\n".join(every))
        return 0

    def tell(line: str) -> None:
        sys.stderr.write(f"  {line}\n")  # at once: two threads compile

    status = 0
    for name in arguments.names or every:
        print(f"== {name}", flush=True)
        try:
            before = {} if arguments.write else expected(name)
            made_by = compiler()
        except NotComparable as error:
            print(f"error: {error}", file=sys.stderr)
            status = 2
            continue
        found = dict(compiled(every[name], tell, arguments.quick))
        if arguments.write:
            EXPECTED.mkdir(exist_ok=True)
            text = json.dumps({"compiler": made_by, "programs": found}, indent=1)
            (EXPECTED / f"{name}.json").write_text(text + "\n")
            continue
        if arguments.quick:
            before = {step: program for step, program in before.items() if step in found}
        lines, worse = compare(before, found)
        status = max(status, int(worse))
        print("\n".join(lines) or f"as expected: {len(found)} programs", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
