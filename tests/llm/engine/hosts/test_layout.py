"""Copies of a model side by side: which layout a config means, and that copies answer as one engine does."""

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from apps.arrays.layout import Devices, Layout, misfit
from apps.llm.engine.execute.layout_choice import Cost, choose, possible, shortest_step
from apps.llm.engine.executor_protocol import token_buckets
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.plan.llm.known import MODELS
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice
from tests.llm.engine import tiny_models

LARGE = lm_cloud.find("lm_cloud.LmCloudSpmd175B32Test")
V5E_8 = TpuSlice("v5e", "2x4", "ct5lp-hightpu-8t")


def known(model: str) -> Architecture:
    return from_hf_config(MODELS[model])


LLAMA = known("meta-llama/Meta-Llama-3-8B")


def config(**settings: Any) -> EngineConfig:
    return EngineConfig(**({"max_batch_size": 64, "max_model_len": 2048} | settings))


@pytest.mark.parametrize(
    ("settings", "devices", "slice", "layout"),
    [
        # Without a slice: all of an accelerator, one of a CPU.
        ({}, Devices(8), None, Layout(1, 8)),
        ({}, Devices(8, platform="cpu"), None, Layout(1, 1)),
        ({"tensor_parallel": 4}, Devices(8), None, Layout(1, 4)),
        ({"data_parallel": 2}, Devices(8), None, Layout(2, 4)),
        ({"data_parallel": 2}, Devices(8, platform="cpu"), None, Layout(2, 1)),
        ({"data_parallel": 2, "tensor_parallel": 2}, Devices(8, platform="cpu"), None, Layout(2, 2)),
        # Several hosts, and slices: every device takes part.
        ({"tensor_parallel": 4}, Devices(8, 2, "cpu"), None, Layout(2, 4)),
        ({}, Devices(8, 2, "cpu"), None, Layout(1, 8)),
        ({"tensor_parallel": 2}, Devices(8, 2, "cpu"), None, Layout(4, 2)),
        ({"tensor_parallel": 4}, Devices(8), V5E_8, Layout(2, 4)),
        ({"tensor_parallel": 4, "data_parallel": 1}, Devices(8), V5E_8, Layout(1, 4)),
    ],
)
def test_what_a_config_asks_for(settings: dict, devices: Devices, slice: TpuSlice | None, layout: Layout) -> None:
    assert choose(config(**settings), LLAMA, devices, slice) == layout


@pytest.mark.parametrize(
    ("settings", "devices", "said"),
    [
        ({"tensor_parallel": 16}, Devices(8), "is 1 x 16 = 16, but this host has 8 tpu devices"),
        ({"data_parallel": 3, "tensor_parallel": 2}, Devices(8, 2), "is 3 x 2 = 6, but the slice has 8 devices on 2"),
        (
            {"data_parallel": 4, "tensor_parallel": 3},
            Devices(12, 3),
            "does not fit hosts of 4 devices: a DP rank takes whole",
        ),
    ],
)
def test_what_devices_cannot_do_is_refused(settings: dict, devices: Devices, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        choose(config(**settings), LLAMA, devices, None)


@pytest.mark.parametrize(
    ("arch", "slice", "settings", "layout"),
    [
        # PromptTask the weights is most of the time: split them as far as they go.
        (LLAMA, V5E_8, {}, Layout(1, 8)),
        (known("google/gemma-7b"), V5E_8, {"max_batch_size": 32}, Layout(1, 8)),
        # One key/value head would lie on every device: half as many sequences on each read half as much.
        (known("google/gemma-2b"), TpuSlice("v5e", "4x4"), {"max_model_len": 8192}, Layout(4, 4)),
        # What does not split over all of the slice's devices.
        (LARGE, TpuSlice("v5e", "8x8"), {"max_batch_size": 8, "quantize_weights": "int8"}, Layout(2, 32)),
        (LARGE, TpuSlice("v5e", "4x8"), {"max_batch_size": 8, "max_model_len": 256}, Layout(1, 32)),
        # Too large for the slice whatever the layout: the one that leaves most room.
        (known("meta-llama/Llama-3.1-405B"), V5E_8, {}, Layout(1, 8)),
    ],
)
def test_the_default_on_a_slice(arch: Architecture, slice: TpuSlice, settings: dict, layout: Layout) -> None:
    assert shortest_step(config(**settings), arch, Devices(slice.chips, slice.hosts), slice) == layout


def test_a_model_that_splits_over_nothing_is_copied_to_each_device() -> None:
    slice = TpuSlice("v4", "2x2x4")
    assert [layout.tensor for layout in possible(LLAMA, Devices(16, 4))] == [16, 8, 4, 2, 1]
    odd = from_hf_config(MODELS["google/gemma-2b"] | {"intermediate_size": 16385, "num_attention_heads": 1})
    assert [layout.tensor for layout in possible(odd, Devices(16, 4))] == [1]
    assert shortest_step(config(), odd, Devices(16, 4), slice) == Layout(16, 1)


def test_costs_are_the_arithmetic_of_the_model() -> None:
    layouts = list(possible(LLAMA, Devices(8)))
    assert layouts == [Layout(1, 8), Layout(2, 4), Layout(4, 2), Layout(8, 1)]
    costs = [Cost.of(config(), LLAMA, layout, Devices(8), V5E_8) for layout in layouts]
    # 8.03 billion bf16 parameters and 64 x 2048 tokens of 128 KiB, on 8 chips of 16 GiB.
    held = (2 * LLAMA.num_params / 8 + 64 * 2048 * 2**17 / 8 / 0.85) / 2**34
    assert costs[0].share_of_hbm == pytest.approx(held, rel=0.01)
    assert costs[3].share_of_hbm == pytest.approx(held + 7 / 8 * 2 * LLAMA.num_params / 2**34, rel=0.01)
    assert all(one.step_s < other.step_s for one, other in pairwise(costs))


@pytest.mark.parametrize("devices", [Devices(8, 2), Devices(32, 8), Devices(12, 3), Devices(4)])
def test_each_device_is_in_one_copy(devices: Devices) -> None:
    for layout in (Layout(data, devices.count // data) for data in range(1, 33) if devices.count % data == 0):
        if misfit(layout, devices):
            continue
        shares = [0] * devices.hosts
        for copy in range(layout.data):
            hosts = layout.hosts_of(copy, devices)
            assert len(hosts) == max(1, layout.tensor // devices.of_host)
            for rank in hosts:
                shares[rank] += layout.tensor // len(hosts)
        assert shares == [devices.of_host] * devices.hosts


def test_copies_share_the_batch() -> None:
    assert Layout(3, 1).of_dp_rank(config(max_batch_size=64)).max_batch_size == 22
    of_copy = Layout(2, 4).of_dp_rank(config())
    assert (of_copy.max_batch_size, of_copy.tensor_parallel, of_copy.data_parallel) == (32, 4, 1)


@pytest.mark.slow
def test_copies_in_one_process_answer_as_one_engine(llama: Path, compile_cache: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("copies_on_devices.py")), str(llama), compile_cache]
    done = subprocess.run(
        command, env=tiny_models.environment(XLA_FLAGS=tiny_models.xla_flags(4)), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["devices"] == [[0, 1], [2, 3]]
    assert found["batches"] == [4, 4]
    assert found["same"], "greedy answers of two copies over two devices are those of one device"
    assert found["apart"] < 1e-4, "and so are scores and embeddings"
    assert all(steps >= 12 for steps in found["steps"]), "both copies worked"
    assert found["began"] == [0] * 4 and min(found["cached"]) >= 16, "each conversation goes on where it is cached"
    assert min(found["spread"]) > 100, "and they are not all in one place"
    assert found["compiles"] == 0
    assert found["pages"] == [2 * 63, 0]
    failed = "the engine failed: RuntimeError: this copy's chip is gone"
    assert found["ends"] == ["length", failed], "the first copy answers what it has"
    assert found["refused"] == found["checked"] == failed
    assert found["threads"] == []


@pytest.mark.parametrize(
    ("devices", "sizes"), [(1, [128, 192, 256, 384, 512]), (8, [128, 192, 256, 384, 512]), (32, [128, 256, 512])]
)
def test_step_sizes_are_such_as_the_devices_can_split(devices: int, sizes: list[int]) -> None:
    found = token_buckets(EngineConfig(tensor_parallel=devices, max_step_tokens=512))
    assert found == [8, 16, 32, 64, *sizes]
    assert token_buckets(EngineConfig(tensor_parallel=devices, max_step_tokens=300))[-1] == 300


def test_steps_that_skip_padding_have_fewer_sizes() -> None:
    assert token_buckets(EngineConfig(max_step_tokens=512), skips_padding=True) == [8, 32, 128, 256, 512]
    assert token_buckets(EngineConfig(max_step_tokens=40), skips_padding=True) == [8, 32, 40]
