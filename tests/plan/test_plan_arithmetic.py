"""Sizes of public models, peaks and rings of slices, and what is worked out from them."""

import dataclasses

import pytest

from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.plan.llm import architectures, capacity, experts, known
from apps.plan.llm.kernel import _seen
from apps.plan.llm.program import MeasuredStep, extrapolated
from apps.plan.llm.report import ServingRates
from apps.plan.measured import KernelCost, run_time
from ray_configs.llm import EngineConfig
from ray_configs.tpu import GENERATIONS, TpuSlice, every_slice
from ray_configs.tpu.peaks import Peaks, fewest_links


def measured(**values: float) -> MeasuredStep:
    return MeasuredStep(**({field.name: 0.0 for field in dataclasses.fields(MeasuredStep)} | values))


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Meta-Llama-3-8B", 8.03),
        ("meta-llama/Meta-Llama-3-70B", 70.55),
        ("meta-llama/Llama-3.1-405B", 405.85),
        ("meta-llama/Llama-3.2-1B", 1.236),
        ("google/gemma-2b", 2.506),
        ("google/gemma-7b", 8.538),
        ("google/gemma-2-9b", 9.241),
        ("google/gemma-2-27b", 27.227),
        ("google/gemma-3-1b", 1.000),  # Gemma 3 without its vision tower
        ("google/gemma-3-4b", 3.88),
        ("google/gemma-3-12b", 11.77),
        ("google/gemma-3-27b", 27.01),
        ("google/gemma-4-26B-A4B", 25.23),
        ("google/gemma-4-31B", 30.7),
        ("meta-models/Muse-Glimmer-30B", 27.85),  # without its vision tower: its card's 29.6 with one of 1.8
        ("mistralai/Mistral-7B-v0.3", 7.248),
        ("microsoft/Phi-3-mini-128k-instruct", 3.82),
        ("microsoft/Phi-4-mini-instruct", 3.836),
        ("Qwen/Qwen2.5-7B", 7.615),
        ("Qwen/Qwen2.5-0.5B", 0.494),
        ("Qwen/Qwen3-8B", 8.19),
        ("Qwen/Qwen3-32B", 32.76),
        ("Qwen/Qwen3.5-35B-A3B", 34.66),
        ("Qwen/Qwen3.5-27B", 26.89),  # without its vision tower and its head for drafts
        ("Qwen/Qwen1.5-MoE-A2.7B", 14.315),
        ("Qwen/Qwen3-30B-A3B", 30.53),
        ("Qwen/Qwen3-235B-A22B", 235.09),
        ("Qwen/Qwen3-Coder-480B-A35B", 480.15),
        ("mistralai/Mixtral-8x7B-v0.1", 46.70),
        ("mistralai/Mixtral-8x22B-v0.1", 140.62),
        ("openai/gpt-oss-20b", 20.91),
        ("openai/gpt-oss-120b", 116.83),
    ],
)
def test_public_models_have_the_size_that_their_cards_state(name: str, billions: float) -> None:
    assert from_hf_config(known.MODELS[name]).num_params / 1e9 == pytest.approx(billions, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen1.5-MoE-A2.7B", 2.689),
        ("Qwen/Qwen3-30B-A3B", 3.35),
        ("Qwen/Qwen3.5-35B-A3B", 3.45),
        ("Qwen/Qwen3-235B-A22B", 22.19),
        ("google/gemma-4-26B-A4B", 3.82),
        ("mistralai/Mixtral-8x7B-v0.1", 12.88),
    ],
)
def test_active_parameters(name: str, billions: float) -> None:
    assert from_hf_config(known.MODELS[name]).active_params / 1e9 == pytest.approx(billions, rel=2e-3)


def test_what_a_step_takes_of_its_experts() -> None:
    mixture = from_hf_config(known.MODELS["Qwen/Qwen3-30B-A3B"]).experts
    assert mixture is not None
    one, few, many = (experts.load(mixture, tokens, 8) for tokens in (1, 64, 4096))
    assert one.read == pytest.approx(8 / 128, rel=0.05) and one.even_blocks == pytest.approx(1, rel=0.05)
    assert few.read == pytest.approx(1 - (1 - 8 / 128) ** 64, rel=0.01) and 16 < few.blocks < 19
    assert 16 * few.read < few.busiest <= 16
    assert many.read == 1 and 32 <= many.even_blocks <= many.blocks <= 50  # 256 tokens an expert, 128 a block
    assert experts.load(mixture, 64, 1).blocks == pytest.approx(8 * few.even_blocks, rel=0.02)
    assert experts.batch_of_all(mixture) == 72


def test_popular_experts_make_a_device_busy() -> None:
    mixture = from_hf_config(known.MODELS["Qwen/Qwen3-30B-A3B"]).experts
    assert mixture is not None
    likely = experts.popularity(mixture, 0.5)
    assert likely.sum() == pytest.approx(8) and likely[0] / likely.mean() > 5 and likely[-1] < 0.6 * likely.mean()
    even, uneven = (experts.load(mixture, 2048, 8, skew=skew) for skew in (0.0, 0.5))
    assert 1 < even.uneven < 1.05 < 1.25 < uneven.uneven < 1.35
    assert experts.load(mixture, 64, 8, skew=0.5).read < experts.load(mixture, 64, 8).read
    assert experts.load(mixture, 64, 1, skew=0.5).uneven == 1, "all experts are on one device"


@pytest.mark.parametrize("name", known.MODELS)
def test_every_known_model_is_one_that_the_decoder_has(name: str) -> None:
    config = known.MODELS[name]
    assert len(from_hf_config(config).layers) == config.get("text_config", config)["num_hidden_layers"]


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("google/gemma-7b-it", "google/gemma-7b"),
        ("/gcs/gemma-7b-it/", "google/gemma-7b"),
        ("gs://bucket/Llama-3.2-1B-Instruct", "meta-llama/Llama-3.2-1B"),
        ("meta-llama/Llama-2-7b-chat-hf", "meta-llama/Llama-2-7b-hf"),
        ("mistralai/Mistral-7B-Instruct-v0.3", "mistralai/Mistral-7B-v0.3"),
        ("someone/else", None),
    ],
)
def test_tuned_models_are_known_by_their_base(model: str, name: str | None) -> None:
    assert known.find(model) == name


@pytest.mark.parametrize(
    ("slice", "links"),
    [
        ("v5e:1x1", 1),
        ("v5e:2x4:8t", 2),
        ("v5e:4x8", 2),
        ("v5e:8x16", 3),
        ("v5e:16x16", 4),
        ("v4:2x2x1", 2),
        ("v4:2x2x4", 3),
        ("v5p:4x4x4", 6),
    ],
)
def test_links_of_the_corner_chip(slice: str, links: int) -> None:
    assert fewest_links(TpuSlice(*slice.split(":"))) == links


def test_no_slice_can_send_more_than_its_chips_have_links() -> None:
    for slice in every_slice():
        peaks = Peaks.of(slice, slice.chips)
        assert 0 < peaks.ici_bytes_per_s <= GENERATIONS[slice.generation].ici_gb_per_s * 1e9


def test_two_devices_on_a_chip_share_it() -> None:
    chip, core = (Peaks.of(TpuSlice("7x", "2x2x1"), devices) for devices in (4, 8))
    assert core.hbm_bytes_per_s == chip.hbm_bytes_per_s / 2
    assert core.flops_per_s == chip.flops_per_s / 2
    assert chip.cycles_per_s is None


def test_the_floor_is_the_longest_and_the_estimate_the_sum() -> None:
    step = measured(flops=197e12 * 0.002, hbm_read=819e9 * 0.004, ici_sent=100e9 * 0.003, cycles=1.5e9 * 0.005)
    time = run_time(step, [KernelCost(819e9 * 0.001, 0, 0, 0)], Peaks.of(TpuSlice("v5e", "4x8"), 32))
    assert time.floor == pytest.approx(0.005)  # HBM, with the kernel's millisecond
    assert time.estimate == pytest.approx(0.005 + 0.001 + 0.003)  # cycles outlast the reads, then kernel and ring


def test_rates() -> None:
    rates = ServingRates.of((0.0051, 0.01), 0.1, 2000, batch=50, chips=8)
    assert rates.tokens_per_s_per_slice == 5000
    assert rates.chips_per_million_tokens_an_hour == pytest.approx(8 / 18)
    assert rates.sequence_in_prompt_tokens == pytest.approx(4.9e-3 / 49 * 2000)


def test_extrapolation_is_linear_in_the_layers() -> None:
    short, longer = measured(weights=10, cycles=7, seconds=1), measured(weights=14, cycles=7, seconds=2)
    whole = extrapolated(short, (longer, 4.0))
    assert (whole.weights, whole.cycles, whole.seconds) == (26, 7, 3)


@pytest.mark.parametrize(("first", "last", "window"), [(0, 5, None), (3, 4, None), (0, 9, 4), (7, 9, 4), (2, 7, 5)])
def test_positions_seen(first: int, last: int, window: int | None) -> None:
    assert _seen(first, last, window) == sum(min(i + 1, window or last) for i in range(first, last))


def test_batches_fill_the_room() -> None:
    found = capacity.batches(1000.0, 10.0, 16, 64, capacity.BatchMemory(batch=20, each=5.0))
    assert [length for length, _ in found] == [64, 32, 16]
    for length, batch in found:
        pages = -(-length // 16) * batch
        assert (1 + pages) * 10 + max(0, batch - 20) * 5 <= 1000
        assert (1 + pages + -(-length // 16)) * 10 + max(0, batch + 1 - 20) * 5 > 1000


def test_states_are_planned_and_no_drafts_for_a_model_with_linear_attention() -> None:
    linear, softmax = (architectures.find(EngineConfig(model=name)).config for name in ("Qwen/Qwen3.5-27B", "gemma-7b"))
    assert (linear.prefix_states, linear.speculation) == (linear.max_batch_size, "off")
    assert softmax.prefix_states is None and softmax.speculation != "off"
