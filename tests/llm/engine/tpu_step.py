"""Compiles the whole step of a Llama 3 8B (or a registered model) for a slice that is not there; prints its memory.

Two layers stand for all.

A process of its own, with the environment that test_compiled_step.py gives it:
python tpu_step.py v5e:2x4 decode:bfloat16 prefill:int8:lm_cloud.LmCloudSpmd2B
"""

import json
import sys
from dataclasses import replace

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from apps.llm.engine import EngineConfig
from apps.llm.engine.model import lm_cloud
from apps.llm.engine.model.architecture import Architecture, from_hf_config
from apps.llm.engine.step import StepShape
from apps.plan.llm.program import StepPrograms

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
SHAPES = {"decode": StepShape(64, BATCH, 64), "prefill": StepShape(512, BATCH, 64)}


def memory(arch: Architecture, mesh: Mesh, attention: str, int8: bool, shape: StepShape) -> dict[str, int]:
    """Bytes on each device of the compiled step, and of the KV cache among its arguments."""
    kind = "int8" if int8 else "none"
    sizes = {"page_size": PAGE, "max_batch_size": BATCH, "attention": attention}
    config = EngineConfig(quantize_weights=kind, quantize_kv_cache=kind, **sizes)
    programs = StepPrograms(config, arch, mesh, PAGES)
    found = programs.lowered(shape).compile().memory_analysis()
    return {
        "cache": int(programs.page_bytes() * PAGES),
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
        found = memory(arch, mesh, "auto", dtype == "int8", SHAPES[step])
        print(json.dumps(found | {"step": wanted, "devices": mesh.size}), flush=True)
