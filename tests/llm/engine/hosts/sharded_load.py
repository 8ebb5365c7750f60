"""Loads a checkpoint over four pretended devices and over one: prints what each device read, and both logits.

Run by test_sharding.py as a process of its own: python sharded_load.py FOLDER float32|int8 [EXPERT_PARALLEL]
"""

import json
import sys
from collections import Counter

import jax
import numpy as np
from jax.sharding import Mesh

from apps.llm.engine.execute.local import LocalExecutor
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model import params
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.mixers.attention import AttentionMixer
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig

folder, kind, *expert_parallel = sys.argv[1:]
SETTINGS = {
    "model": folder,
    "dtype": "float32",
    "pages": 8,
    "page_size": 16,
    "max_model_len": 64,
    "max_batch_size": 8,
    "max_step_tokens": 16,
    "quantize_weights": "int8" if kind == "int8" else "none",
    "quantize_kv_cache": "int8" if kind == "int8" else "none",
    "attention": "auto",
}


class Counting(Checkpoint):
    """Notes the rows of every read."""

    def __init__(self, location: str):
        super().__init__(location)
        self.rows: Counter[str] = Counter()

    def read(self, name, shape, rows=slice(None)):
        self.rows[name] += len(range(*rows.indices(shape[0])))
        return super().read(name, shape, rows)


def logits(executor: LocalExecutor) -> np.ndarray:
    executor.make_cache(list(range(5, 40)))
    shape = StepShape(16, 8, executor.max_pages)
    step = shape.host()
    step.add([9, 8, 7, 6, 5, 30, 31, 32, 33, 34], 10, [1], False)
    step.add([11], 1, [2], False)

    def run(weights, caches, scales, packed):
        batch = shape.unpack(packed)
        hidden, _ = executor.decoder.hidden(weights, batch, batch.tokens, caches, scales)
        return executor.decoder.logits(weights, hidden)

    return np.asarray(jax.jit(run)(executor.params, executor.caches, executor.kv_scales, step.packed))[:11]


found, checkpoint = {}, Counting(folder)
arch = from_hf_config(checkpoint.json("config.json"))
for devices in (1, 4):
    mesh = Mesh(np.array(jax.devices()[:devices]), ("tensor",))
    checkpoint.rows.clear()
    more = {"expert_parallel": int(expert_parallel[0])} if expert_parallel and devices > 1 else {}
    executor = LocalExecutor(mesh, EngineConfig(**SETTINGS, **more), Model(arch, checkpoint, False))
    found[devices] = logits(executor)
    rows = dict(checkpoint.rows)
    layer = executor.params["layers"][0]
    shards = {
        name: jax.tree.leaves(layer[name])[0].addressable_shards[0].data.shape
        for name in ("qkv", "out", "down", "experts_in", "experts_out")
        if name in layer
    }
attention = next(mixer for mixer in executor.decoder.mixers if isinstance(mixer, AttentionMixer))
print(
    json.dumps(
        {
            "rows": rows,
            "shards": shards,
            "bytes": params.nbytes(executor.params),
            "heads": [attention.heads.kv_heads, attention.heads.repeat],
            "error": float(np.abs(found[4] - found[1]).max() / np.abs(found[1]).max()),
            "cache": jax.tree.leaves(executor.caches)[0].addressable_shards[0].data.shape,
        }
    )
)
