"""Counts cycles of the kernels' loops in the instructions that the TPU compiler generated for them.

The compiler's cost analysis does not look into a Pallas kernel. But libtpu can dump a kernel's instruction bundles, one
a cycle, with the depth of the loop that each is in. `kernel` and `experts` derive how often each loop runs from the
step. Waits for memory are not counted. libtpu reads the dump option when it is loaded, so a separate process compiles
the kernel alone.
"""

import logging
import os
import pickle
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.programs import ProgramSpec
from apps.llm.engine import kernels
from apps.llm.engine.attention.pallas import PallasAttention
from apps.llm.engine.attention.sharded import attend
from apps.llm.engine.attention.spec import QKV, AttentionSpec, LayerCache
from apps.llm.engine.execute.programs import EnginePrograms
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.experts import kernel as experts_kernel
from apps.llm.engine.model.experts.mixture import feed_forward
from apps.llm.engine.model.experts.weights import ExpertWeights
from apps.llm.engine.model.feed_forward.experts import expert_weights
from apps.llm.engine.model.layers import DeltaNet
from apps.llm.engine.model.mixers import delta_kernel
from apps.llm.engine.model.mixers.delta_rule import DeltaTokens
from apps.llm.engine.model.pointwise import gated
from apps.plan import topology
from apps.plan.llm import experts
from apps.plan.llm.kernel import Loops
from apps.plan.llm.program import StepPrograms
from ray_configs.llm import EngineConfig
from ray_configs.tpu import TpuSlice

log = logging.getLogger("podslice")

DUMP = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true"
BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s*([A-Z]{2}|)\s*:\s*(>*)\s*\{(.*)")
PAGES = 64
"""Pages of the cache; their number does not change the instructions."""
TIMEOUT_S = 300


class Bundles(NamedTuple):
    """Bundles of a kernel at one depth of its loops."""

    always: int
    at_times: int
    """Of branches: most in a condition such as 'the first tile'."""

    @property
    def all(self) -> int:
        return self.always + self.at_times


def of_attention(
    decoder: Decoder, spec: AttentionSpec, kv_dtype: jnp.dtype, slice: TpuSlice, shape: StepShape
) -> Loops | None:
    """The attention kernel's loops in a step of this shape; None without one, or with a warning if there is no dump."""
    if not isinstance(decoder.impl, PallasAttention):
        return None
    kernel = AttentionKernel(slice, decoder.mesh.size, spec, decoder.dtype, kv_dtype, shape)
    text = _dumped(pickle.dumps(kernel))
    return None if text is None else attention_loops(text)


def of_experts(programs: StepPrograms, slice: TpuSlice, tokens: int) -> experts.ExpertsLoops | None:
    """The same of the experts' kernel in a step of `tokens` tokens."""
    mixture = experts.in_kernel(programs.decoder)
    if mixture is None:
        return None
    arch = programs.arch.only(programs.arch.layers_of_experts[:1])
    text = _dumped(pickle.dumps(ExpertsKernel(slice, programs.mesh.size, programs.config, arch, tokens)))
    return None if text is None else experts_loops(text, gathers=tokens > experts_kernel.FEW_TOKENS)


def of_linear_attention(programs: StepPrograms, slice: TpuSlice, seqs: int) -> float:
    """Cycles of the kernels of all layers with linear attention in a step of so many sequences; 0 without one, or with
    a warning if there is no dump."""
    cycles, devices = 0.0, programs.mesh.size
    for mixer in (layer.mixer for layer in programs.arch.layers if isinstance(layer.mixer, DeltaNet)):
        if kernels.one_token(programs.mesh, mixer.key_dim, mixer.value_dim) is None:
            continue
        heads = mixer.num_value_heads // devices
        text = _dumped(pickle.dumps(DeltaKernel(slice, heads, mixer.key_dim, mixer.value_dim, seqs)))
        if text is not None:
            once, each = (bundles.all for bundles in parsed(text).values())
            groups = heads // delta_kernel.heads_together(heads, mixer.key_dim, mixer.value_dim)
            cycles += once + seqs * groups * each
    return cycles


def attention_loops(text: str) -> Loops:
    """The loops in the attention kernel's `final_bundles`. A single block of queries has no loop around it.

    Raises:
        ValueError: the kernel has other loops.
    """
    depths = parsed(text)
    deepest = max(depths, default=0)
    if deepest not in (2, 3):
        raise ValueError(f"its deepest loop has depth {deepest}, not 2 or 3")
    return Loops(*(depths[depth].all for depth in range(deepest - 2, deepest + 1)))


def experts_loops(text: str, gathers: bool) -> experts.ExpertsLoops:
    """The loops in the experts' kernel's `final_bundles`.

    Args:
        gathers: the kernel gathers each expert's tokens, and loops over blocks of them.
    """
    none = Bundles(0, 0)
    once, tile, block = (parsed(text).get(depth, none) for depth in range(3))
    if not gathers:
        return experts.ExpertsLoops(once.all, tile.all + block.all, 0, 0)
    # Conditions of the outer loop hold in a layer's first or last tile, those of the inner one in an expert's.
    return experts.ExpertsLoops(once.all + tile.at_times, tile.always, block.always, block.at_times)


def parsed(text: str) -> dict[int, Bundles]:
    """The bundles of a kernel's `final_bundles` by the depth of their loop."""
    counts: Counter[tuple[int, bool]] = Counter()
    branched: dict[int, bool] = {}
    for label, loops, content in (found.groups() for found in map(BUNDLE.match, text.splitlines()) if found):
        depth = len(loops)
        if label in ("LB", "LE", "PF", "CT"):
            branched[depth] = False
        counts[depth, branched.get(depth, False)] += 1
        if "sbr.rel" in content:
            branched[depth] = True
    return {depth: Bundles(counts[depth, False], counts[depth, True]) for depth in sorted({at for at, _ in counts})}


@cache
def _dumped(kernel: bytes) -> str | None:
    """The `final_bundles` of a pickled AttentionKernel, ExpertsKernel or DeltaKernel."""
    with tempfile.TemporaryDirectory() as folder:
        options = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {DUMP.format(folder)}"
        environment = os.environ | {"LIBTPU_INIT_ARGS": options, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", __name__]
        try:
            subprocess.run(command, env=environment, input=kernel, capture_output=True, timeout=TIMEOUT_S, check=True)
            files = sorted(Path(folder).glob(f"*{pickle.loads(kernel).file}*final_bundles.txt"))
            return next(file for file in files if "schedule" not in file.name).read_text()
        except (subprocess.SubprocessError, StopIteration) as error:
            said = (getattr(error, "stderr", None) or b"there is no dump").decode()
            log.warning("a kernel's instructions are not counted: %s", said.strip().splitlines()[-1])
            return None


@dataclass(frozen=True)
class AttentionKernel:
    """The attention of one layer, for a step of this shape."""

    slice: TpuSlice
    devices: int
    spec: AttentionSpec
    dtype: jnp.dtype
    kv_dtype: jnp.dtype
    shape: StepShape

    file = "ragged_paged_attention*kernel"

    def compiled(self) -> jax.stages.Compiled:
        mesh, spec = topology.mesh(self.slice, "tensor", self.devices), self.spec
        impl = PallasAttention(self.devices, on_tpu=True)

        def abstract(shape: tuple[int, ...], dtype: jnp.dtype, spec: P) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

        def run(q: jax.Array, kv: jax.Array, cache: LayerCache, packed: jax.Array) -> tuple[jax.Array, LayerCache]:
            batch = self.shape.unpack(packed)
            return attend(impl, QKV(q, kv, kv), cache, impl.plan(batch, spec), batch, spec, mesh, None)

        heads = P(None, "tensor")
        kv = abstract((self.shape.tokens, spec.kv_heads, spec.head_dim), self.dtype, heads)
        q = abstract((self.shape.tokens, spec.kv_heads, spec.group, spec.head_dim), self.dtype, heads)
        cache = jax.tree.map(
            lambda part: abstract(part.shape, part.dtype, impl.partition()), impl.cache(spec, PAGES, self.kv_dtype)
        )
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # see StepPrograms.lowered
            packed = abstract((self.shape.size,), jnp.dtype(jnp.int32), P())
            return ProgramSpec(("attention",), run, (q, kv, cache, packed)).compiled()


@dataclass(frozen=True)
class ExpertsKernel:
    """The experts of one layer, in a step of `tokens` tokens."""

    slice: TpuSlice
    devices: int
    config: EngineConfig
    arch: Architecture
    tokens: int

    file = f"-{experts_kernel.NAME}."

    def compiled(self) -> jax.stages.Compiled:
        mesh = topology.mesh(self.slice, "tensor", self.devices)
        programs, mixture = EnginePrograms(self.config, self.arch, mesh, shapes=()), self.arch.experts
        assert mixture is not None
        decoder, weights = programs.decoder, expert_weights(programs.weights["layers"][0])

        def abstract(width: int, dtype: jnp.dtype) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((self.tokens, width), dtype, sharding=NamedSharding(mesh, P()))

        def run(x: jax.Array, shares: jax.Array, picked: jax.Array, weights: ExpertWeights) -> jax.Array:
            of_experts = partial(gated, mixture.activation)
            return feed_forward(x, shares, picked, weights, of_experts, mixture, mesh, by_token=False)

        picks = (abstract(mixture.per_token, jnp.dtype(dtype)) for dtype in (jnp.float32, jnp.int32))
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            arguments = abstract(self.arch.hidden_size, decoder.dtype), *picks, weights
            return ProgramSpec(("experts",), run, arguments).compiled()


@dataclass(frozen=True)
class DeltaKernel:
    """Linear attention over one token of each of `seqs` sequences, on one device."""

    slice: TpuSlice
    heads: int
    key_dim: int
    value_dim: int
    seqs: int

    file = f"-{delta_kernel.NAME}."

    def compiled(self) -> jax.stages.Compiled:
        mesh, heads = topology.mesh(self.slice, "tensor", 1), (self.seqs, self.heads)

        def abstract(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, P()))

        keys, values = abstract(*heads, self.key_dim), abstract(*heads, self.value_dim)
        tokens = DeltaTokens._make([keys, keys, values, abstract(*heads), abstract(*heads)])
        memory = abstract(self.seqs + 1, self.heads, self.key_dim, self.value_dim)
        flags = abstract(self.seqs, dtype=jnp.int32)
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            arguments = tokens, memory, flags, flags
            return ProgramSpec(("delta",), delta_kernel.one_token, arguments, donate=(1,)).compiled()


if __name__ == "__main__":
    pickle.load(sys.stdin.buffer).compiled()
