"""Linear attention by the gated delta rule, over states that sequences keep by slot (Qwen3.5)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from apps.arrays.collectives import AXIS
from apps.arrays.row_ranges import Rows, Source
from apps.llm.engine import kernels
from apps.llm.engine.adapters.low_rank import AdaptedProduct
from apps.llm.engine.attention.spec import AttentionBackend
from apps.llm.engine.model.layers import DeltaNet
from apps.llm.engine.model.mixers import delta_rule
from apps.llm.engine.model.mixers.delta_rule import StepParts
from apps.llm.engine.model.mixers.interface import Capacity, Mixed, StateForm
from apps.llm.engine.model.param import Param, Params, norm_weight, tensor
from apps.llm.engine.model.pointwise import norm
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.step_context import StepContext


class DeltaState(NamedTuple):
    """What a layer keeps of each sequence, by slot."""

    inputs: Any  # [slots, key heads, channels, taps - 1] the convolution's last inputs, oldest first
    memory: Any  # [slots, value heads, key_dim, value_dim]


@dataclass(frozen=True)
class DeltaNetMixer:
    """The `LayerMixer`. Devices have whole key heads, with the value heads that belong to them."""

    spec: DeltaNet
    hidden_size: int
    split: Split

    @property
    def channels(self) -> int:
        """Of a key head: its query, its key, and the values of its value heads."""
        return 2 * self.spec.key_dim + self.spec.values_per_key * self.spec.value_dim

    # -- parameters ---------------------------------------------------------------------------------------------

    def declare(self, layer: str) -> Params:
        """Queries, keys, values and gates in one matrix, key head by key head; so are strengths and decays."""
        spec, hidden, name = self.spec, self.hidden_size, f"{layer}.linear_attn"
        values = spec.num_value_heads * spec.value_dim
        if spec.fused:
            into = tensor(f"{name}.in_proj_qkvz.weight", spec.num_key_heads * self.channels + values, hidden)
            strengths = tensor(f"{name}.in_proj_ba.weight", 2 * spec.num_value_heads, hidden)
        else:
            into = self._qkv(f"{name}.in_proj_qkv.weight", (hidden,), f"{name}.in_proj_z.weight")
            strengths = self._strengths(name)
        convolution = self._qkv(f"{name}.conv1d.weight", (1, spec.taps))
        rows = spec.num_key_heads * self.channels
        heads = (spec.num_value_heads,)
        out = tensor(f"{name}.out_proj.weight", hidden, values)
        return {
            "qkvz": Param((rows + values, hidden), ("kv_heads", "embed"), into, matrix=True),
            "ba": Param((2 * heads[0], hidden), ("kv_heads", "embed"), strengths),
            "taps": Param((rows, 1, spec.taps), ("kv_heads", None, None), convolution),
            "decay": Param(heads, ("kv_heads",), tensor(f"{name}.A_log", *heads), constant=0.0, wide=True),
            "decay_bias": Param(heads, ("kv_heads",), tensor(f"{name}.dt_bias", *heads), constant=1.0, wide=True),
            "values_norm": norm_weight(spec.norm, f"{name}.norm.weight", spec.value_dim),
            "out": Param((hidden, values), ("embed", "kv_heads"), out, matrix=True),
        }

    def _qkv(self, name: str, more: tuple[int, ...], gates: str = "") -> Source:
        """Of each key head its query's rows, its key's, its values'; then their gates' in another tensor."""
        spec = self.spec
        keys, own = spec.num_key_heads * spec.key_dim, spec.values_per_key * spec.value_dim
        values = spec.num_value_heads * spec.value_dim
        shape, parts = (2 * keys + values, *more), []
        for head in range(spec.num_key_heads):
            key, value = head * spec.key_dim, head * own
            for start, size in ((key, spec.key_dim), (keys + key, spec.key_dim), (2 * keys + value, own)):
                parts.append(Rows(name, shape, start, start + size))
            if gates:
                parts.append(Rows(gates, (values, *more), value, value + own))
        return tuple(parts)

    def _strengths(self, name: str) -> Source:
        """Of each key head the strengths' rows of its value heads, then the decays'."""
        spec, own = self.spec, self.spec.values_per_key
        shape = spec.num_value_heads, self.hidden_size
        return tuple(
            Rows(f"{name}.in_proj_{kind}.weight", shape, head * own, (head + 1) * own)
            for head in range(spec.num_key_heads)
            for kind in "ba"
        )

    def adapted(self) -> dict[str, AdaptedProduct]:
        return {}

    # -- state --------------------------------------------------------------------------------------------------

    def state(self, attention: AttentionBackend, room: Capacity) -> StateForm:
        spec = self.spec
        inputs = room.slots, spec.num_key_heads, self.channels, spec.taps - 1
        memory = room.slots, spec.num_value_heads, spec.key_dim, spec.value_dim
        arrays = DeltaState(*(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in (inputs, memory)))
        return StateForm(arrays, DeltaState(P(None, AXIS), P(None, AXIS)), held_by="slots")

    def scales(self) -> None:
        return None

    def calibrated(self, observed: None) -> None:
        return None

    # -- steps --------------------------------------------------------------------------------------------------

    def shared(self, step: StepContext) -> StepParts:
        return step.once(StepParts, lambda: delta_rule.parts_of(step.batch))

    def apply(
        self, x: jax.Array, layer: Params, state: DeltaState, shared: StepParts, scales: None, step: StepContext
    ) -> Mixed:
        spec, mesh = self.spec, step.machine.mesh
        qkvz = step.product(x, layer["qkvz"]).reshape(len(x), spec.num_key_heads, -1)
        ba = step.product(x, layer["ba"]).reshape(len(x), spec.num_key_heads, 2, -1)
        weights = layer["taps"].astype(jnp.float32).reshape(spec.num_key_heads, -1, spec.taps)
        decay = layer["decay"].reshape(spec.num_key_heads, -1), layer["decay_bias"].reshape(spec.num_key_heads, -1)
        mix = partial(delta_rule.mixed, spec, kernel=kernels.one_token(mesh, spec.key_dim, spec.value_dim))
        if mesh.size > 1:
            heads, first = P(None, AXIS), P(AXIS)
            kept = DeltaState(heads, heads)
            given = (heads, heads, first, (first, first), kept, P())
            mix = jax.shard_map(mix, mesh=mesh, in_specs=given, out_specs=(heads, kept), check_vma=False)
        y, state = mix(qkvz[:, :, : self.channels], ba, weights, decay, state, shared)
        gates = jax.nn.silu(qkvz[:, :, self.channels :].reshape(len(x), -1, spec.value_dim))
        y = norm(spec.norm, y.astype(x.dtype), layer["values_norm"]) * gates
        y = step.row_parallel(y.astype(x.dtype).reshape(len(x), -1), layer["out"], None, None)
        return Mixed(y, state)
