"""Compiles the whole step of a Llama 3 8B (or another model) for a slice that is not there; prints its memory.

Two layers stand for all, or two of each kind. Other models are those registered, and those that the plan knows.

A process of its own, with the environment that test_compiled_step.py gives it:
python tpu_step.py v5e:2x4 decode:bfloat16 prefill:int8:lm_cloud.LmCloudSpmd2B decode:fp8 decode:int8:google/gemma-4-31B
"""

import json
import sys
from dataclasses import replace

import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh

from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.text import EngineConfig
from apps.plan.llm import known
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
FAMILIES = (
    "meta-llama/Llama-3.1-8B", "mistralai/Mistral-Small-3.1-24B-Base-2503", "mistralai/Mixtral-8x7B-v0.1",
    "microsoft/Phi-3-mini-4k-instruct", "Qwen/Qwen2.5-14B", "Qwen/Qwen3-8B", "Qwen/Qwen1.5-MoE-A2.7B",
    "Qwen/Qwen3-30B-A3B", "openai/gpt-oss-20b", "google/gemma-2b", "google/gemma-2-9b",
    "google/gemma-3-27b", "google/gemma-4-12B", "meta-models/Muse-Glimmer-30B", "Qwen/Qwen3.5-27B",
    "Qwen/Qwen3.5-35B-A3B",
)  # fmt: skip
"""Of each family in `apps.plan.llm.known`, one size that eight devices can split."""
BATCH, PAGE, PAGES = 64, 32, 4096
SHAPES = {
    "decode": StepShape(64, BATCH, 64),
    "prefill": StepShape(512, BATCH, 64),
    "images": StepShape(512, BATCH, 64, images=True, spans=True),
}


def few_layers(model: str) -> Architecture:
    arch = lm_cloud.find(model)
    if arch is not None:
        return arch.only([0, 1])
    arch = from_hf_config(known.MODELS[model])
    forms = {spec.form for spec in arch.layers}
    return replace(arch.only(arch.few(2 * len(forms))), vocab_size=LLAMA3["vocab_size"])


def memory(arch: Architecture, mesh: Mesh, attention: str, kv_cache: str, shape: StepShape) -> dict[str, int]:
    """Bytes on each device of the compiled step, and of the KV cache among its arguments. Quantized: weights too."""
    weights = "none" if kv_cache == "none" else "int8"
    sizes = {"page_size": PAGE, "max_batch_size": BATCH, "attention": attention, "image_tokens": 4096 * shape.images}
    config = EngineConfig(quantize_weights=weights, quantize_kv_cache=kv_cache, **sizes)
    programs = StepPrograms(config, arch, mesh, (shape,), PAGES)
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
        arch = few_layers(model[0]) if model else from_hf_config(LLAMA3)
        arch = replace(arch, tower=known.TOWERS[model[0]] if SHAPES[step].images else None)
        found = memory(arch, mesh, "auto", {"bfloat16": "none"}.get(dtype, dtype), SHAPES[step])
        print(json.dumps(found | {"step": wanted, "devices": mesh.size}), flush=True)
