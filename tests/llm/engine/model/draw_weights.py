"""Draws random weights over four pretended devices, in one process or in two, and over one: prints what differs.

Run by test_random_weights.py: python draw_weights.py int8|none [COORDINATOR RANK HOSTS]
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.llm.engine.model import params
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.tiny import tiny

int8 = sys.argv[1] == "int8"
if len(sys.argv) > 2:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(sys.argv[2], process_id=int(sys.argv[3]), num_processes=int(sys.argv[4]))
compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, duration, **_: compiled.append(event) if "backend_compile_duration" in event else None
)
arch = tiny(lm_cloud.find("lm_cloud.LmCloudSpmd175B32Test"), 4, layers=6)
assert len(jax.devices()) == 4


def drawn(devices: list) -> tuple[params.Params, int]:
    """The weights, and how many programs drew them."""
    mesh = Mesh(np.array(devices), ("tensor",))
    compiled.clear()
    weights = params.random(declare(arch, arch.split(len(devices))), mesh, jnp.bfloat16, int8)
    jax.block_until_ready(weights)
    return weights, len(compiled)


split, programs = drawn(jax.devices())
whole, _ = drawn(jax.local_devices()[:1])
same, sizes = True, {}
for (path, leaf), one in zip(jax.tree_util.tree_leaves_with_path(split), jax.tree.leaves(whole), strict=True):
    sizes[jax.tree_util.keystr(path)] = [leaf.size, max(shard.data.size for shard in leaf.addressable_shards)]
    for shard in leaf.addressable_shards:
        same &= bool((np.asarray(shard.data) == np.asarray(one)[shard.index]).all())

mesh = Mesh(np.array(jax.devices()), ("tensor",))
gathered = []
for name, param in declare(arch, arch.split(4))["layers"][0].items():
    if param.matrix:
        program = params._drawing(params._abstract(param, mesh, jnp.bfloat16, int8), None)
        text = program.as_text()
        if "all-gather" in text or "[{},{}]".format(*param.shape) in text.split("ENTRY")[1]:
            gathered.append(name)
print(json.dumps({"same": same, "sizes": sizes, "programs": programs, "gathered": gathered}))
