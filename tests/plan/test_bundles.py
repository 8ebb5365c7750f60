"""The attention kernel's instructions are found, by the loop that they are in."""

import os

import pytest

from apps.llm.engine.execute.step import StepShape
from apps.plan.llm import bundles, experts
from apps.plan.llm.kernel import Loops
from apps.plan.llm.planner import PlannedModel, Workload
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice


def kernel(loops: list[int]) -> str:
    """As libtpu writes one, with so many bundles at each depth."""
    lines = ["= control target key start", "LB: loop body", ""]
    for depth, count in enumerate(loops):
        for i in range(count):
            lines.append(f"  0x{len(lines):x} {'LB' if depth and not i else '  '}: {'>' * depth} {{ %s1 = smov 0 }}")
    return "\n".join(lines)


@pytest.mark.parametrize("loops", [[5, 40, 3, 90], [40, 3, 90]], ids=["blocks of queries", "one block"])
def test_bundles_are_counted_by_depth(loops: list[int]) -> None:
    assert bundles.attention_loops(kernel(loops)) == Loops(40, 3, 90)


EXPERTS = """
     0   :  { %s1 = smov 0 }
  0x10 LB: > { %s1 = smov 0  ;;  %37 = sbr.rel (%p1) target = $region10 }
  0x11   : > { %s1 = smov 0 }
  0x12   : > { %s1 = smov 0 }
  0x13 PF: > { %38 = sbr.rel (%p2) target = $region12 }
  0x14 LB: >> { %s1 = smov 0 }
  0x15   : >> { %39 = sbr.rel (%p3) target = $region13 }
  0x16   : >> { %s1 = smov 0 }
  0x17   : >> { %s1 = smov 0 }
  0x18   : >> { %s1 = smov 0 }
  0x19 PF: >> { %s1 = smov 0 }
  0x1a   : >> { %s1 = smov 0 }
  0x1b PF: > { %s1 = smov 0 }
  0x1c PF:  { %s1 = smov 0 }
"""
"""Two tiles' loop, and in it a loop over blocks of tokens; each has a branch."""


def test_branches_of_the_experts_kernel_are_counted_apart() -> None:
    assert bundles.experts_loops(EXPERTS, gathers=True) == experts.ExpertsLoops(layer=2 + 2, tile=3, block=4, rows=3)
    assert bundles.experts_loops(EXPERTS, gathers=False) == experts.ExpertsLoops(layer=2, tile=5 + 7, block=0, rows=0)


def test_other_loops_are_refused() -> None:
    with pytest.raises(ValueError, match="depth 1"):
        bundles.attention_loops(kernel([5, 40]))


@pytest.mark.slow
def test_a_decode_step_takes_fewer_than_a_prefill() -> None:
    pytest.importorskip("libtpu")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    slice = TpuSlice("v5e", "2x2")
    sized = PlannedModel.of(Workload(EngineConfig(model="meta-llama/Meta-Llama-3-8B", max_model_len=2048), slice))

    def loops(tokens: int) -> Loops | None:
        shape = StepShape(tokens, 64, sized.shapes[0].max_pages)
        decoder = sized.programs.decoder
        return bundles.of_attention(
            decoder, decoder.mixers[0].of_kernel(decoder.page_size), sized.programs.kv_dtype, slice, shape
        )

    decode, prefill = loops(64), loops(512)
    assert decode is not None and prefill is not None
    assert 0 < decode.positions < 0.8 * prefill.positions
