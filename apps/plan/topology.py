"""Compile-only devices of a slice, and how much HBM the compiler may use on each.

The compiler is libtpu's own, which runs on any Linux machine (see jax.experimental.topologies).
"""

import os
import re
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ray_configs.tpu import TpuSlice

HOST_SHAPES = {1: [1, 1, 1], 4: [2, 2, 1], 8: [2, 4, 1]}
"""Chips of a host -> their arrangement along each axis."""
COMPILER_NAMES = {"7x": "tpu7x"}
"""Generations for which libtpu and Google Cloud have different names."""
WITHOUT_TPU = {
    "TPU_SKIP_MDS_QUERY": "1",  # there is no Google metadata server to ask which slice this is
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # a lock file would let one process at a time compile
}


class NoCompiler(RuntimeError):
    """libtpu is not installed, or does not know the slice."""


@cache
def devices(slice: TpuSlice) -> tuple[jax.Device, ...]:
    """The slice's devices, to compile for. v3, v4 and 7x have two per chip, one for each TensorCore.

    Raises:
        NoCompiler: libtpu is not installed, or does not know the slice.
    """
    for name, value in WITHOUT_TPU.items():
        os.environ.setdefault(name, value)
    generation = COMPILER_NAMES.get(slice.generation, slice.generation)
    try:
        found = topologies.get_topology_desc(
            platform="tpu",
            topology_name=f"{generation}:{slice.topology}",
            chips_per_host_bounds=HOST_SHAPES[slice.chips_per_host],
        )
    except Exception as error:  # jax raises what libtpu and its loader raise
        text = str(error).strip().splitlines()[0]
        if "not installed" in text or "libtpu" in text.lower():
            text = f"{text} (pip install 'jax[tpu]' has the compiler; it needs no TPU)"
        raise NoCompiler(f"cannot compile for {slice}: {text}") from error
    return tuple(found.devices)


def mesh(slice: TpuSlice, axis: str, count: int) -> Mesh:
    """A one-axis mesh of the slice's first `count` devices; if all, in the order that JAX would choose."""
    every = devices(slice)
    # JAX lays no mesh over a v4's TensorCores apart: there they stay in the compiler's order.
    if count == len(every) > 1 and not (slice.generation == "v4" and count > slice.chips):
        return Mesh(mesh_utils.create_device_mesh((count,), list(every)), (axis,))
    return Mesh(np.array(every[:count]), (axis,))


@cache
def usable_hbm(slice: TpuSlice) -> int:
    """Bytes of HBM that the compiler lets a program use on each device, which is less than the device has.

    Read from the compiler's error for a program that fits no chip; if the error does not say, the published figure.
    """
    every = devices(slice)
    everywhere = NamedSharding(Mesh(np.array(every), ("all",)), P())
    huge = jax.ShapeDtypeStruct((2**22, 2**16), jnp.float32, sharding=everywhere)
    try:
        jax.jit(lambda x: x + 1).lower(huge).compile()
    except jax.errors.JaxRuntimeError as error:
        if found := re.search(r"available HBM \(([\d.]+)G\)", str(error)):
            return int(float(found.group(1)) * 2**30)
    return slice.hbm_gib * 2**30 // len(every)
