"""Loads models and what was prepared from them over several pretended devices: prints what differs.

Run by test_prepare_loading.py: python prepared_load.py FOLDER... , each a model; writes beside them.
"""

import json
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.jobs.preparation import PrepareArguments, prepare
from apps.llm.engine.execute.local import LocalExecutor
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model import params
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.weights import prepared_shards
from apps.llm.engine.weights.checkpoint import Checkpoint
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import Prepared, open_checkpoint
from ray_configs.llm import EngineConfig

SETTINGS = {"pages": 8, "page_size": 16, "max_model_len": 64, "max_batch_size": 8, "max_step_tokens": 16}
CASES = (("none", "bfloat16", 4), ("int8", "bfloat16", 2), ("int8", "float32", 1))
"""How the weights are prepared: quantization, type, for how many devices."""
DEVICES = (1, 2)


def differences(one: dict, other: dict) -> list[str]:
    """Names of the arrays that are not the same, bit by bit, or not split in the same way."""
    assert jax.tree.structure(one) == jax.tree.structure(other)
    pairs = zip(jax.tree_util.tree_leaves_with_path(one), jax.tree.leaves(other))
    return [
        jax.tree_util.keystr(path)
        for (path, leaf), same in pairs
        if leaf.dtype != same.dtype
        or not leaf.sharding.is_equivalent_to(same.sharding, leaf.ndim)
        or np.asarray(leaf).tobytes() != np.asarray(same).tobytes()
    ]


def load(checkpoint: Checkpoint, int8: bool, **to: Any) -> params.Params:
    module = prepared_shards if isinstance(checkpoint, Prepared) else params
    return module.load(checkpoint=checkpoint, int8=int8, **to)


def logits(configs: list[EngineConfig], devices: int) -> list[np.ndarray]:
    """Of each config's weights, by one program."""
    mesh = Mesh(np.array(jax.devices()[:devices]), ("tensor",))
    models = [Model.open(config) for config in configs]
    executors = [LocalExecutor(mesh, model.settle(config), model) for config, model in zip(configs, models)]
    executor = executors[0]
    executor.make_cache([])
    shape = StepShape(16, 8, executor.max_pages)
    step = shape.host()
    step.add([9, 8, 7, 6, 5, 30, 31, 32, 33, 34], 10, [1], False)

    @jax.jit
    def run(weights, caches, packed):
        batch = shape.unpack(packed)
        hidden, _ = executor.decoder.hidden(weights, batch, batch.tokens, caches, None)
        return executor.decoder.logits(weights, hidden)

    return [np.asarray(run(each.params, executor.caches, step.packed))[:10] for each in executors]


read: Counter[str] = Counter()
whole_read = Checkpoint.stored


def counting(self, name, rows=slice(None), shape=None):
    found = whole_read(self, name, rows, shape)
    read[name] += found.nbytes
    return found


found = {"params": {}, "logits": {}, "more than once": {}}
for folder in sys.argv[1:]:
    source = Checkpoint(folder)
    arch = from_hf_config(source.json("config.json"))
    for kind, dtype, blocks in CASES:
        output = f"{folder}-{kind}-{dtype}-{blocks}"
        prepare(PrepareArguments(folder, output, dtype, kind, tensor_parallel=blocks))
        checkpoint = open_checkpoint(output)
        config = EngineConfig(model=folder, dtype=dtype, quantize_weights=kind, **SETTINGS)
        for devices in DEVICES:
            case = f"{Path(output).name} on {devices}"
            mesh = Mesh(np.array(jax.devices()[:devices]), ("tensor",))
            tree = declare(arch, arch.split(devices))
            loads = partial(load, tree=tree, mesh=mesh, dtype=jnp.dtype(dtype))
            expected = loads(source, int8=kind == "int8")
            Checkpoint.stored = counting
            read.clear()
            found["params"][case] = differences(expected, loads(checkpoint, int8=False))
            Checkpoint.stored = whole_read
            if kind == "none":  # left to the engine to quantize: the same as quantized beforehand
                later = loads(source, int8=True), loads(checkpoint, int8=True)
                found["params"][f"{case}, quantized by the engine"] = differences(*later)
            if blocks % devices == 0:
                sizes = {name: entry.stop - entry.start for name, entry in checkpoint.tensors.items()}
                split = [name for name, size in sizes.items() if name.endswith(("gate_up", "down", "out", "embed"))]
                found["more than once"][case] = [name for name in split if read[name] != sizes[name]]
        if kind == "int8" and dtype == "bfloat16":
            ready = config.model_copy(update={"model": output, "quantize_weights": "none"})
            found["logits"][Path(output).name] = bool(np.array_equal(*logits([config, ready], devices=2)))
print(json.dumps(found))
