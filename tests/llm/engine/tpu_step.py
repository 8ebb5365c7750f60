"""Compiles the whole step of a Llama 3 8B (or a registered model) for a slice that is not there; prints its memory.

Two layers stand for all.

A process of its own, with the environment that test_compiled_step.py gives it:
python tpu_step.py v5e:2x4 decode:bfloat16 prefill:int8:lm_cloud.LmCloudSpmd2B
"""

import json
import sys
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.llm.engine import attention, lm_cloud, params
from apps.llm.engine.architecture import Architecture, from_hf_config
from apps.llm.engine.attention import KVScales
from apps.llm.engine.decoder import Decoder
from apps.llm.engine.executor import compiled_step
from apps.llm.engine.params import HeadLayout
from apps.llm.engine.sampling import MAX_BIAS, Extras, SamplingState
from apps.llm.engine.step import StepShape

LLAMA3 = {
    "model_type": "llama",
    "vocab_size": 32768,  # a quarter of the true one, to compile sooner
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
}
BATCH, PAGE, PAGES = 64, 32, 4096
EVERYWHERE = P()
SHAPES = {"decode": StepShape(64, BATCH, 64), "prefill": StepShape(512, BATCH, 64)}


def memory(arch: Architecture, mesh: Mesh, implementation: str, dtype: jnp.dtype, int8: bool, shape: StepShape) -> dict:
    """Bytes on each device of the compiled step, and of the KV cache among its arguments."""
    heads = HeadLayout.of(arch, mesh.size)
    decoder = Decoder(
        arch, heads, PAGE, dtype, attention.implementation(implementation, mesh, arch.head_dim, PAGE), mesh
    )

    def abstract(shape: tuple[int, ...], dtype: jnp.dtype, spec: P = EVERYWHERE) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    layer = decoder.impl.cache(decoder.attention_spec(0), PAGES, jnp.dtype(jnp.int8) if int8 else dtype)
    layer = jax.tree.map(lambda part, spec: abstract(part.shape, part.dtype, spec), layer, decoder.impl.partition())
    scale = abstract((heads.kv_heads, arch.head_dim), jnp.float32, P("tensor", None))
    words = -(-arch.vocab_size // 32)
    arguments = (
        params.abstract(params.declare(arch, heads), mesh, dtype, int8),
        [layer] * arch.num_layers,
        SamplingState(abstract((BATCH + 1,), jnp.int32), abstract((BATCH + 1, arch.vocab_size), jnp.int16)),
        [KVScales(scale, scale)] * arch.num_layers if int8 else None,
        abstract((shape.size,), jnp.int32),
        Extras(
            abstract((shape.seqs, words), jnp.uint32),
            abstract((shape.seqs, MAX_BIAS), jnp.int32),
            abstract((shape.seqs, MAX_BIAS), jnp.float32),
            abstract((2,), jnp.int32),
        ),
    )
    compiled = compiled_step(decoder).lower(*arguments, shape).compile()
    found = compiled.memory_analysis()
    cache = sum(np.prod(part.sharding.shard_shape(part.shape)) * part.dtype.itemsize for part in jax.tree.leaves(layer))
    return {
        "cache": int(cache) * arch.num_layers,
        "alias": found.alias_size_in_bytes,
        "temp": found.temp_size_in_bytes,
        "arguments": found.argument_size_in_bytes,
    }


if __name__ == "__main__":
    topology = topologies.get_topology_desc(platform="tpu", topology_name=sys.argv[1])
    mesh = Mesh(np.array(topology.devices), ("tensor",))
    for wanted in sys.argv[2:]:
        step, dtype, *model = wanted.split(":")
        arch = replace(lm_cloud.find(model[0]), num_layers=2, windows=(None, None)) if model else from_hf_config(LLAMA3)
        found = memory(arch, mesh, "auto", jnp.dtype(jnp.bfloat16), dtype == "int8", SHAPES[step])
        print(json.dumps(found | {"step": wanted, "devices": mesh.size}), flush=True)
