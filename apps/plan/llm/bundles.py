"""Counts cycles of the attention kernel's loops in the instructions that the TPU compiler generated for it.

The compiler's cost analysis does not look into a Pallas kernel. But libtpu can dump a kernel's instruction bundles, one
a cycle, with the depth of the loop that each is in. `kernel` derives how often each loop runs from the sequences. Waits
for memory are not counted. libtpu reads the dump option when it is loaded, so a separate process compiles the kernel
alone: `python -m apps.plan.llm.bundles`.
"""

import json
import logging
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import asdict
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from apps.llm.engine.attention.pallas import PallasAttention
from apps.llm.engine.attention.sharded import attend
from apps.llm.engine.attention.spec import QKV, AttentionSpec, LayerCache
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.step import StepShape
from apps.plan import topology
from apps.plan.llm.kernel import Loops
from ray_configs.tpu import TpuSlice

log = logging.getLogger("podslice")

DUMP = "--xla_jf_dump_to={} --xla_jf_dump_llo_text=true"
BUNDLE = re.compile(r"\s*(?:0x[0-9a-f]+|0)\s+(?:[A-Z]{2})?\s*:\s*(>*)\s*\{")
PAGES = 64
"""Pages of the cache; their number does not change the instructions."""
TIMEOUT_S = 300


def of_kernel(
    decoder: Decoder, spec: AttentionSpec, kv_dtype: jnp.dtype, slice: TpuSlice, shape: StepShape
) -> Loops | None:
    """The kernel's loops in a step of this shape; None without a kernel, or with a warning if there is no dump."""
    if not isinstance(decoder.impl, PallasAttention):
        return None
    types = json.dumps([decoder.dtype.name, kv_dtype.name])
    given = json.dumps(asdict(spec)), types, json.dumps(asdict(shape))
    return _loops(slice.model_dump_json(), decoder.mesh.size, *given)


@cache
def _loops(slice: str, devices: int, spec: str, types: str, shape: str) -> Loops | None:
    with tempfile.TemporaryDirectory() as folder:
        options = f"{os.environ.get('LIBTPU_INIT_ARGS', '')} {DUMP.format(folder)}"
        command = [sys.executable, "-m", __name__, slice, str(devices), spec, types, shape]
        environment = os.environ | {"LIBTPU_INIT_ARGS": options, "JAX_PLATFORMS": "cpu"}
        try:
            subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
            files = Path(folder).glob("*ragged_paged_attention*final_bundles.txt")
            (file,) = (file for file in files if "kernel" in file.name and "schedule" not in file.name)
            return parsed(file.read_text())
        except (subprocess.SubprocessError, ValueError) as error:
            said = getattr(error, "stderr", None) or str(error)
            log.warning("the attention kernel's instructions are not counted: %s", said.strip().splitlines()[-1])
            return None


def parsed(text: str) -> Loops:
    """The loops in a kernel's `final_bundles`. A single block of queries has no loop around it.

    Raises:
        ValueError: the kernel has other loops.
    """
    depths = Counter(len(found[1]) for found in map(BUNDLE.match, text.splitlines()) if found)
    deepest = max(depths, default=0)
    if deepest not in (2, 3):
        raise ValueError(f"its deepest loop has depth {deepest}, not 2 or 3")
    return Loops(*(depths[depth] for depth in range(deepest - 2, deepest + 1)))


def compile_kernel(slice: TpuSlice, devices: int, spec: AttentionSpec, types: list[str], shape: StepShape) -> None:
    """Compile the attention of one layer, for libtpu's dump."""
    mesh = topology.mesh(slice, "tensor", devices)
    impl = PallasAttention(devices, on_tpu=True)
    dtype, kv_dtype = map(jnp.dtype, types)

    def abstract(shape: tuple[int, ...], dtype: jnp.dtype, spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    def run(q: jax.Array, kv: jax.Array, cache: LayerCache, packed: jax.Array) -> tuple[jax.Array, LayerCache]:
        batch = shape.unpack(packed)
        return attend(impl, QKV(q, kv, kv), cache, impl.plan(batch, spec), batch, spec, mesh, None)

    heads = P(None, "tensor")
    kv = abstract((shape.tokens, spec.kv_heads, spec.head_dim), dtype, heads)
    q = abstract((shape.tokens, spec.kv_heads, spec.group, spec.head_dim), dtype, heads)
    cache = jax.tree.map(
        lambda part: abstract(part.shape, part.dtype, impl.partition()), impl.cache(spec, PAGES, kv_dtype)
    )
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):  # see StepPrograms.lowered
        jax.jit(run).lower(q, kv, cache, abstract((shape.size,), jnp.dtype(jnp.int32), P())).compile()


if __name__ == "__main__":
    compile_kernel(
        TpuSlice.model_validate_json(sys.argv[1]),
        int(sys.argv[2]),
        AttentionSpec(**json.loads(sys.argv[3])),
        json.loads(sys.argv[4]),
        StepShape(**json.loads(sys.argv[5])),
    )
