"""The compiler's figures of a config's programs.

One program after another: libtpu 0.0.42.1 has died with SIGSEGV while two threads compiled Mixtral 8x7B's steps of 256
and 384 tokens, each of which it compiles alone. It has threads of its own for each program.
"""

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from apps.llm.engine.execute.step import StepShape
from apps.plan import topology
from apps.plan.measured import KernelCost, Measured, run_time
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import TpuSlice
from ray_configs.tpu.peaks import Peaks
from tools.plan_check.cases import Case, pictured, sized
from tools.plan_check.expectations import TIMED, Figures


def compiled(config: Case, only: slice = slice(None)) -> Iterator[tuple[str, Figures]]:
    """Compiles each program, or only some of the list; yields its name and figures, with the CPU's seconds."""
    programs = _steps(config, only) if isinstance(config, LLMConfig) else _pictures(config, only)
    began = time.process_time()
    for name, figures in programs:
        yield name, {**figures, TIMED: float(f"{time.process_time() - began:.4g}")}
        began = time.process_time()


def _tell(line: str) -> None:
    print(f"  {line}", file=sys.stderr)


def _steps(config: LLMConfig, only: slice) -> Iterator[tuple[str, Figures]]:
    model, slice = sized(config), config.slice
    assert slice is not None
    for shape in model.shapes[only]:
        _tell(f"compiling a step of {shape.tokens} tokens")
        measured = model.programs.measure(shape)
        sequences = _sequences(shape, model.context)
        costs = model.kernels(shape, sequences)
        tokens, length = sequences[0]
        name = f"decode {len(sequences)} x {length}" if tokens == 1 else f"prefill {len(sequences)} x {tokens}"
        asked = {"kcycles_all_options": measured.cycles_everything / 1e3}  # sampling, penalties, log probabilities
        yield f"{shape.tokens} tokens: {name}", numbers(measured, costs, slice, asked)


def _sequences(shape: StepShape, context: int) -> list[tuple[int, int]]:
    """The step's workload: as many decoding sequences of full length as it can have, or prompts that fill it."""
    if shape.tokens == shape.seqs:
        return [(1, context)] * shape.seqs
    prompt = min(shape.tokens, context)
    return [(prompt, prompt)] * (shape.tokens // prompt)


def _pictures(config: StableDiffusionConfig, only: slice) -> Iterator[tuple[str, Figures]]:
    programs, slice = pictured(config), config.slice
    assert slice is not None
    for key in list(programs.specs)[only]:
        _tell(f"compiling {_name(key)}")
        measured, kernel = programs.measured(key)
        yield _name(key), numbers(measured, [kernel], slice)


def _name(key: tuple[object, ...]) -> str:
    """Of a program of pictures, such as `denoise 512x512 x 4`."""
    kind, *size = key
    sides = ["x".join(map(str, part)) if isinstance(part, tuple) else f"x {part}" for part in size]
    return " ".join((str(kind), *sides))


def numbers(
    measured: Measured, kernels: Sequence[KernelCost], slice: TpuSlice, more: Figures | None = None
) -> dict[str, float]:
    """Figures for one run on one device, to four digits. The kernels' bytes and operations are analytic."""
    peaks = Peaks.of(slice, len(topology.devices(slice)))
    by_hand = [replace(kernel, cycles=0) for kernel in kernels]
    exact = {
        "estimate_ms": run_time(measured, kernels, peaks).estimate * 1e3,
        "estimate_by_hand_ms": run_time(measured, by_hand, peaks).estimate * 1e3,
        "kcycles": measured.cycles / 1e3,
        **(more or {}),
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
    }
    return {name: float(f"{value:.4g}") for name, value in exact.items()}
