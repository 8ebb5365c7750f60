"""The TPU compiler's program of a layer's experts: one kernel, which alone reads the weights, and how long it takes."""

import os
from dataclasses import replace

import pytest

from apps.arrays.layout import Layout
from apps.plan import hlo, traffic
from apps.plan.llm import bundles, experts, search
from apps.plan.llm.planner import PlannedModel, Workload
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

QWEN = "Qwen/Qwen3-30B-A3B"
V5E, V5P, V6E = TpuSlice("v5e", "2x4", "ct5lp-hightpu-8t"), TpuSlice("v5p", "2x2x1"), TpuSlice("v6e", "2x2")


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
    ("slice", "fields", "tokens"),
    [
        (V5E, {"model": QWEN}, 64),
        (V5E, {"model": QWEN, "quantize_weights": "int8"}, 512),
        (V5P, {"model": QWEN, "quantize_weights": "int8"}, 64),
        (V5E, {"model": "openai/gpt-oss-20b", "quantize_weights": "int8"}, 64),
        (V6E, {"model": "mistralai/Mixtral-8x7B-v0.1", "quantize_weights": "int8"}, 64),
    ],
    ids=["v5e-decode", "v5e-int8-prefill", "v5p-int8-decode", "v5e-gpt-oss-int8-decode", "v6e-mixtral-int8-decode"],
)
def test_only_the_kernel_reads_the_experts(slice: TpuSlice, fields: dict, tokens: int) -> None:
    pytest.importorskip("libtpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    sized = PlannedModel.of(Workload(EngineConfig(max_model_len=2048, max_batch_size=64, **fields), slice))
    programs = replace(sized.programs, arch=sized.programs.arch.only([0]))
    mixture = experts.in_kernel(programs.decoder)
    assert mixture is not None
    kernel = bundles.ExpertsKernel(slice, programs.mesh.size, programs.config, programs.arch, tokens)
    module = hlo.parse(kernel.compiled().as_text())
    counted = traffic.count(module)
    own = experts.weights(programs.arch, mixture, programs.mesh.size, 1 if "quantize_weights" in fields else 2)
    assert counted.kernels == 1
    assert counted.hbm < own / 20, "nothing else copies or reads them"

    loops = bundles.of_experts(programs, slice, tokens)
    cost = experts.kernel(programs.decoder, "quantize_weights" in fields, tokens, loops)
    assert own * 0.9 < cost.hbm_bytes < own * 1.1, "nearly all are picked, and each is read once"
    assert cost.useful_flops < cost.flops
    # Bytes of HBM in each cycle: more means that the instructions take longer than the weights.
    bandwidth = {"v5e": 546, "v5p": 1580, "v6e": 936}[slice.generation]
    assert 0 < cost.cycles < 1.25 * cost.hbm_bytes / bandwidth


@pytest.mark.tpu_compile
@pytest.mark.parametrize(("requests", "billions"), [(8, 12.9), (64, 29.8)])
def test_a_search_asks_for_no_longer_than_the_experts_that_are_read(requests: int, billions: float) -> None:
    """A token picks 8 of 128 experts: 8 requests all but 60 % of them, 64 requests nearly all. The rest is 1.2."""
    pytest.importorskip("libtpu")
    config = EngineConfig(model=QWEN, max_model_len=2048, max_batch_size=requests)
    found = search.by_arithmetic(
        Workload(config, V6E, context=16), search.Criteria(("v6e",), 4, None, {}), Layout(1, 4), search.Devices(4, 1)
    )
    assert found is not None
    assert found.least_ms == pytest.approx(billions * 1e9 * 2 / 4 / 1638e9 * 1e3, rel=0.02)
