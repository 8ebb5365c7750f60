"""Compiled programs are read as they are, and what they move is counted where it lies."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import Mesh

from apps.llm.engine.model.experts.mixture import feed_forward
from apps.llm.engine.model.experts.weights import ExpertWeights
from apps.llm.engine.model.layers import Activation, Experts
from apps.plan import hlo, traffic
from apps.plan.traffic import Collective

STEP = """HloModule jit_step, is_scheduled=true

%fused_gather (table: bf16[16032,4096], ids: s32[64]) -> bf16[64,4096] {
  %table = bf16[16032,4096]{1,0:T(8,128)(2,1)} parameter(0)
  %ids = s32[64]{0:T(128)S(1)} parameter(1)
  ROOT %gather = bf16[64,4096]{1,0:T(8,128)(2,1)S(1)} gather(%table, %ids), offset_dims={1}
}

%fused_scatter (cache: s8[131104,4,128], slots: s32[64], new: s8[64,4,128]) -> s8[131104,4,128] {
  %cache = s8[131104,4,128]{2,1,0:T(4,128)(4,1)} parameter(0)
  %slots = s32[64]{0:T(128)S(1)} parameter(1)
  %new = s8[64,4,128]{2,1,0:T(4,128)(4,1)S(1)} parameter(2)
  ROOT %scatter = s8[131104,4,128]{2,1,0:T(4,128)(4,1)} scatter(%cache, %slots, %new), update_window_dims={1,2}
}

%unwrap (w: bf16[512,256]) -> bf16[512,256] {
  %w = bf16[512,256]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %bitcast = bf16[512,256]{1,0:T(8,128)(2,1)} bitcast(%w)
}

%fused_dot (w: bf16[512,256], x: bf16[64,256]) -> f32[64,512] {
  %w = bf16[512,256]{1,0:T(8,128)(2,1)} parameter(0)
  %x = bf16[64,256]{1,0:T(8,128)(2,1)S(1)} parameter(1)
  %inner = bf16[512,256]{1,0:T(8,128)(2,1)} fusion(%w), kind=kLoop, calls=%unwrap
  ROOT %dot = f32[64,512]{1,0:T(8,128)S(1)} convolution(%x, %inner), dim_labels=bf_oi->bf
}

%skip (same: f32[64,128]) -> f32[64,128] {
  ROOT %same = f32[64,128]{1,0:T(8,128)} parameter(0)
}

%work (logits: f32[64,128]) -> f32[64,128] {
  %logits = f32[64,128]{1,0:T(8,128)} parameter(0)
  ROOT %neg = f32[64,128]{1,0:T(8,128)} negate(%logits), backend_config={"window_config":{"estimated_cycles":"900"}}
}

ENTRY %main (table: bf16[16032,4096], ids: s32[64], cache: s8[131104,4,128], w: bf16[512,256]) -> f32[64,128] {
  %table = bf16[16032,4096]{1,0:T(8,128)(2,1)} parameter(0), metadata={op_name="weights[\\'embed\\']"}
  %ids = s32[64]{0:T(128)S(1)} parameter(1)
  %cache = s8[131104,4,128]{2,1,0:T(4,128)(4,1)} parameter(2), metadata={op_name="caches[0]"}
  %w = bf16[512,256]{1,0:T(8,128)(2,1)} parameter(3), metadata={op_name="weights[\\'lm_head\\']"}
  %x = bf16[64,4096]{1,0:T(8,128)(2,1)S(1)} fusion(%table, %ids), kind=kCustom, calls=%fused_gather
  %copy-start = (bf16[512,256]{1,0:T(8,128)(2,1)S(1)}, bf16[512,256]{1,0:T(8,128)(2,1)}, u32[]{:S(2)}) copy-start(%w)
  %w.vmem = bf16[512,256]{1,0:T(8,128)(2,1)S(1)} copy-done(%copy-start)
  %y = f32[64,512]{1,0:T(8,128)S(1)} fusion(%w, %x), kind=kOutput, calls=%fused_dot, backend_config={"window_config":{"estimated_cycles":"100","iteration_bounds":["1"]}}
  %sum = f32[64,512]{1,0:T(8,128)S(1)} all-reduce(%y), channel_id=1, replica_groups=mesh['a'=1,'b'=8] {'b'}, to_apply=%add
  %new = s8[64,4,128]{2,1,0:T(4,128)(4,1)S(1)} convert(%sum)
  %cache.1 = s8[131104,4,128]{2,1,0:T(4,128)(4,1)} fusion(%cache, %ids, /*index=2*/%new), kind=kCustom, calls=%fused_scatter
  %attention = bf16[64,8,128]{2,1,0:T(8,128)(2,1)S(1)} custom-call(%ids, %cache.1), custom_call_target="tpu_custom_call"
  %logits = f32[64,128]{1,0:T(8,128)} copy(%attention)
  ROOT %out = f32[64,128]{1,0:T(8,128)} conditional(%ids, %logits, %logits), branch_computations={%skip, %work}
}
"""  # noqa: E501
ON_SPARSE_CORES = """
HloModule jit_step, is_scheduled=true

%sum (x: bf16[128,2048]) -> bf16[16,2048] {
  %x = bf16[128,2048]{1,0:T(8,128)(2,1)} parameter(0)
  ROOT %reduce-scatter = bf16[16,2048]{1,0:T(8,128)(2,1)} reduce-scatter(%x), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}, to_apply=%add
}

ENTRY %main (x: bf16[128,2048]) -> bf16[16,2048] {
  %x = bf16[128,2048]{1,0:T(8,128)(2,1)} parameter(0)
  %start = ((bf16[128,2048]{1,0:T(8,128)(2,1)}), bf16[16,2048]{1,0:T(8,128)(2,1)}) call-start(%x), async_execution_thread="sparsecore", to_apply=%sum
  ROOT %done = bf16[16,2048]{1,0:T(8,128)(2,1)} call-done(%start)
}
"""  # noqa: E501
SLICE_OF_A_VIEW = """
HloModule jit_step, is_scheduled=true

%view (w: s8[16,1536,2048]) -> s8[16,1536,2048] {
  %w = s8[16,1536,2048]{2,1,0:T(32,128)(4,1)} parameter(0)
  ROOT %copy = s8[16,1536,2048]{2,1,0:T(8,128)(4,1)} copy(%w)
}

%fused_slice (w: s8[16,1536,2048], expert: s32[]) -> s8[1536,2048] {
  %w = s8[16,1536,2048]{2,1,0:T(32,128)(4,1)} parameter(0)
  %tiles = s8[16,1536,2048]{2,1,0:T(8,128)(4,1)} fusion(%w), kind=kLoop, output_to_operand_aliasing={{}: (0, {})}, calls=%view
  %expert = s32[]{:T(128)S(6)} parameter(1)
  %zero = s32[]{:T(128)} constant(0)
  %one = s8[1,1536,2048]{2,1,0:T(8,128)(4,1)} dynamic-slice(%tiles, %expert, %zero, %zero), dynamic_slice_sizes={1,1536,2048}
  ROOT %bitcast = s8[1536,2048]{1,0:T(8,128)(4,1)} bitcast(%one)
}

ENTRY %main (w: s8[16,1536,2048], expert: s32[]) -> s8[1536,2048] {
  %w = s8[16,1536,2048]{2,1,0:T(32,128)(4,1)} parameter(0)
  %expert = s32[]{:T(128)S(6)} parameter(1)
  ROOT %weight = s8[1536,2048]{1,0:T(8,128)(4,1)S(1)} fusion(%w, %expert), kind=kLoop, calls=%fused_slice
}
"""  # noqa: E501
TABLE_ROWS, MATRIX, CACHE_ROWS, LOGITS = 64 * 4096 * 2, 512 * 256 * 2, 64 * 4 * 128, 64 * 128 * 4


def test_a_step_is_counted_where_it_lies() -> None:
    counted = traffic.count(hlo.parse(STEP))
    # Rows of the table, the matrix once into VMEM and once by the product (as written here); nothing of the cache.
    assert counted.hbm_read == TABLE_ROWS + 2 * MATRIX
    assert counted.hbm_written == CACHE_ROWS + LOGITS
    assert counted.cycles == 100
    assert counted.kernels == 1
    assert counted.collectives == {Collective("all-reduce", 8, 64 * 512 * 4): 1}
    assert counted.ici_sent == 2 * 7 / 8 * 64 * 512 * 4


def test_a_branch_that_requests_ask_for_counts_when_asked_for() -> None:
    least, most = (traffic.count(hlo.parse(STEP), branch) for branch in (0, 1))
    assert most.cycles == least.cycles + 900
    assert most.hbm == least.hbm + 2 * LOGITS


def test_cycles_that_the_compiler_does_not_know_are_not_counted() -> None:
    unknown = hlo.parse(STEP.replace('"900"', f'"{2**63 - 1}"'))
    assert traffic.count(unknown, branch=1).cycles == traffic.count(unknown).cycles


@pytest.mark.parametrize(
    ("shape", "nbytes", "space"),
    [
        ("f32[3,100]{1,0}", 1200, 0),
        ("f32[3,100]{1,0:T(8,128)}", 8 * 128 * 4, 0),
        ("bf16[5,2,64]{2,0,1:T(8,128)(2,1)S(1)}", 8 * 2 * 128 * 2, 1),
        ("s8[]{:T(128)S(6)}", 1, 6),
        ("pred[64]{0:T(512)(128)(4,1)S(1)}", 512, 1),
        ("u4[16]{0}", 8, 0),
    ],
)
def test_layouts_pad_and_place(shape: str, nbytes: int, space: int) -> None:
    (array,) = hlo.arrays(shape)
    assert (array.nbytes, array.space) == (nbytes, space)


@pytest.mark.parametrize(
    ("groups", "size"),
    [
        ("{{0,1,2,3},{4,5,6,7}}", 4),
        ("[2,16]<=[32]", 16),
        ("[4,2]<=[2,4]T(1,0)", 2),
        ("mesh['x'=4,'y'=8] {'x','y'}", 32),
    ],
)
def test_groups_in_every_spelling(groups: str, size: int) -> None:
    line = f"  %a = f32[8]{{0}} all-gather(%b), channel_id=1, replica_groups={groups}, dimensions={{0}}"
    (instruction,) = hlo.parse(f"ENTRY %main (b: f32[1]) -> f32[8] {{\n{line}\n}}").entry.instructions
    assert traffic.group_size(instruction) == size


@pytest.mark.parametrize(
    ("kind", "sent"), [("all-reduce", 1.5), ("all-gather", 0.75), ("reduce-scatter", 0.75), ("collective-permute", 1)]
)
def test_rings(kind: str, sent: float) -> None:
    assert Collective(kind, 4, 1000).sent == sent * 1000


def test_a_real_program_is_read_whole() -> None:
    def program(x: jax.Array, w: jax.Array, deep: jax.Array) -> jax.Array:
        x = jax.lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x @ w), x)
        return jax.lax.cond(deep > 0, lambda: jnp.sort(x, axis=0), lambda: x)

    compiled = jax.jit(program).lower(jnp.ones((16, 32)), jnp.ones((32, 32)), jnp.int32(1)).compile()
    module = hlo.parse(compiled.as_text())
    assert [sum(array.nbytes for array in p.arrays) for _, p in sorted(module.entry.parameters.items())] == [
        2048,
        4096,
        4,
    ]
    assert all(computation.instructions for computation in module.computations.values())
    # Every operand is an instruction of the same computation.
    for computation in module.computations.values():
        for instruction in computation.instructions:
            assert set(instruction.operands) <= set(computation.by_name), instruction.line
    counted = traffic.count(module)
    assert counted.hbm_read >= 3 * 4096, "the loop reads the matrix three times"
    assert not counted.collectives


def test_experts_are_read_once_for_each_block() -> None:
    mixture = Experts(count=16, per_token=2, width=256, renormalized=True, activation=Activation("silu"))
    mesh = Mesh(jax.devices()[:1], ("tensor",))
    into, down = jnp.ones((16 * 512, 128)), jnp.ones((16 * 128, 256))
    given = jnp.ones((8, 128)), jnp.ones((8, 2)), jnp.ones((8, 2), jnp.int32), ExpertWeights(into, down)
    step = jax.jit(lambda *given: feed_forward(*given, lambda gate, up: jnp.tanh(gate) * up, mixture, mesh, False))
    module = hlo.parse(step.lower(*given).compile().as_text())
    one, five = (traffic.count(module, blocks=blocks).hbm_read for blocks in (1, 5))
    expert = (512 * 128 + 128 * 256) * 4
    assert expert <= (five - one) / 4 <= 2.5 * expert, "and what XLA:CPU copies of it"


def test_collectives_on_sparse_cores_count() -> None:
    """As the compiler offloads them on 7x."""
    counted = traffic.count(hlo.parse(ON_SPARSE_CORES))
    assert counted.ici_sent == 7 / 8 * 128 * 2048 * 2
    assert (counted.hbm_read, counted.hbm_written) == (128 * 2048 * 2, 16 * 2048 * 2)


def test_a_slice_of_a_view_is_what_it_takes() -> None:
    """As the compiler slices an int8 weight in a loop: it calls the weight another's tiles first, and moves nothing."""
    module = hlo.parse(SLICE_OF_A_VIEW)
    assert traffic.count(module).hbm_read == 1536 * 2048
    copied = hlo.parse(SLICE_OF_A_VIEW.replace("output_to_operand_aliasing={{}: (0, {})}, ", ""))
    assert traffic.count(copied).hbm_read == 16 * 1536 * 2048


def test_text_that_is_no_module_is_refused() -> None:
    with pytest.raises(ValueError, match="no ENTRY"):
        hlo.parse("error: no such file")
