"""Pages go to host memory and come back in place, by TPU's compiler: nothing of a cache's size is held beside it."""

from dataclasses import replace

import pytest

from apps.plan.llm.planner import PlannedModel, Workload
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

LLAMA, GPT_OSS = "meta-llama/Meta-Llama-3-8B", "openai/gpt-oss-20b"


@pytest.mark.tpu_compile
@pytest.mark.parametrize(
    ("slice", "fields"),
    [
        (TpuSlice("v5e", "2x4", "8t"), {"model": LLAMA}),
        (TpuSlice("v5e", "4x8"), {"model": LLAMA, "quantize_kv_cache": "int8", "tensor_parallel": 32}),
        (TpuSlice("v6e", "2x2"), {"model": LLAMA, "quantize_kv_cache": "fp8"}),
        (TpuSlice("v6e", "2x4", "8t"), {"model": GPT_OSS}),
        (TpuSlice("v5p", "2x2x1"), {"model": LLAMA, "data_parallel": 2, "tensor_parallel": 2}),
    ],
    ids=["v5e", "v5e-hosts-int8", "v6e-fp8", "v6e-window", "v5p-ranks"],
)
def test_copies_are_in_place(slice: TpuSlice, fields: dict) -> None:
    pytest.importorskip("libtpu")
    config = EngineConfig(max_model_len=8192, max_batch_size=8, prefix_cache_host_gib=64, **fields)
    sized = PlannedModel.of(Workload(config, slice))
    programs = replace(sized.programs, arch=sized.programs.arch.only([0, 1]))
    specs = {spec.key: spec for spec in programs.listed() if spec.key in (("keep",), ("bring back",))}
    assert programs.host_pages > 1000
    page = programs.page_bytes()
    for key, spec in specs.items():
        sizes = spec.compiled().memory_analysis()
        on_host = sizes.host_argument_size_in_bytes
        assert on_host == pytest.approx(page * (programs.host_pages + 1), rel=0.01)
        assert sizes.host_temp_size_in_bytes == 0
        assert sizes.temp_size_in_bytes < 16 * page + 2**20, "a few pages"
        if key == ("keep",):
            assert sizes.host_alias_size_in_bytes == on_host
        else:
            assert sizes.alias_size_in_bytes == pytest.approx(page * programs.pages, rel=0.01)
    assert len(specs) == 2
