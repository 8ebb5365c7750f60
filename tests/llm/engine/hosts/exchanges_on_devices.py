"""Exchanges by doubling against XLA's own, on eight pretended devices (XLA_FLAGS): python exchanges_on_devices.py"""

import json
from collections.abc import Callable

import jax
import numpy as np
from jax.sharding import Mesh
from jax.sharding import PartitionSpec as P

from apps.arrays import collectives
from apps.arrays.collectives import AXIS

mesh = Mesh(np.array(jax.devices()), (AXIS,))
own = np.random.default_rng(0).integers(-99, 99, (mesh.size, 4 * mesh.size, 3)).astype(np.float32)  # sums are exact


def run(exchange: Callable[[jax.Array, Mesh], jax.Array], out: P) -> np.ndarray:
    body = jax.shard_map(lambda x: exchange(x[0], mesh), mesh=mesh, in_specs=P(AXIS), out_specs=out, check_vma=False)
    return np.asarray(jax.jit(body)(own))


same = {}
for doubling in (False, True):
    collectives._by_doubling = lambda mesh, doubling=doubling: doubling
    found = {
        "total": np.array_equal(run(collectives.total, P()), own.sum(0)),
        "scattered": np.array_equal(run(collectives.scattered, P(AXIS)), own.sum(0)),
        "gathered": np.array_equal(run(collectives.gathered, P()), own.reshape(-1, 3)),
    }
    same["by doubling" if doubling else "XLA's"] = found
print(json.dumps(same))
