"""The TPU compiler's program of linear attention over single tokens: each memory is read once and written once."""

import os
from dataclasses import replace

import pytest

from apps.plan import hlo, traffic
from apps.plan.llm import bundles
from apps.plan.llm.planner import PlannedModel, Workload
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

V5E, V5P, V6E = TpuSlice("v5e", "2x4", "ct5lp-hightpu-8t"), TpuSlice("v5p", "2x2x1"), TpuSlice("v6e", "2x2")


@pytest.mark.tpu_compile
@pytest.mark.parametrize("slice", [V5E, V5P, V6E], ids=["v5e", "v5p", "v6e"])
def test_each_memory_is_read_and_written_once(slice: TpuSlice) -> None:
    """By the compiler's own program of the kernel alone, and of one layer. The sizes are those of Qwen3.5-27B."""
    pytest.importorskip("libtpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    config = EngineConfig(model="Qwen/Qwen3.5-27B", max_model_len=2048, max_batch_size=64, quantize_weights="int8")
    sized = PlannedModel.of(Workload(config, slice))
    programs, heads = replace(sized.programs, arch=sized.programs.arch.only([0])), 48 // slice.chips
    memories = 64 * heads * 128 * 128 * 4
    alone = traffic.count(hlo.parse(bundles.DeltaKernel(slice, heads, 128, 128, 64).compiled().as_text()))
    assert alone.kernels == 1
    assert memories * 1.98 < alone.hbm < memories * 2.6, "the rest is keys, values and queries"

    cycles = bundles.of_linear_attention(programs, slice, 64)
    # Bytes of HBM in each cycle: more means that the instructions take longer than the memories.
    bandwidth = {"v5e": 546, "v5p": 1580, "v6e": 936}[slice.generation]
    assert 0 < cycles < 1.25 * 2 * memories / bandwidth
