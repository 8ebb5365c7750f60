"""One JAX program over several hosts: joins it, builds its meshes, and agrees on values between hosts.

In a program of one process these functions do no communication, so the executor is the same on one host and on many.
"""

from collections.abc import Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from apps.arrays.layout import Devices, Layout
from apps.arrays.programs import ProgramSet, ProgramSpec

T = TypeVar("T")

START_TIMEOUT_S = 300
"""Timeout for all hosts to join: covers the slowest one's imports, and on TPU the initialization of the chips."""
HEARTBEAT_TIMEOUT_S = 20
"""After this JAX ends processes whose peer is gone. The replica notices sooner; this is for when it is gone too."""
SHUTDOWN_TIMEOUT_S = 5


def join(coordinator: str, rank: int, hosts: int, start_timeout_s: float = START_TIMEOUT_S) -> None:
    """Join the program as host `rank` of `hosts`. Call before JAX's backend has started.

    Args:
        coordinator: `address:port` on host 0, which listens there until its process ends.
        start_timeout_s: for all hosts to join.

    Raises:
        RuntimeError: not all hosts joined, or the port is taken.
    """
    # For CPU devices, which the tests use as chips; the default cannot cross processes.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator,
        num_processes=hosts,
        process_id=rank,
        cluster_detection_method="deactivate",  # everything is known; detection would query metadata servers
        initialization_timeout=int(start_timeout_s),
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
    )


def here() -> Devices:
    """The devices of this process's JAX program: this host's, or after `join` all hosts'."""
    found = jax.devices()
    return Devices(len(found), jax.process_count(), found[0].platform)


def meshes(layout: Layout, devices: Sequence[jax.Device] = ()) -> list[Mesh]:
    """A mesh for each DP rank, with one axis, "tensor". Ranks take devices in the order of the hosts.

    On TPU, neighbours on the axis are neighbours on the slice's torus, if its topology has a ring.

    Args:
        devices: of the slice; default: those of this JAX program.
    """
    every = sorted(devices or jax.devices(), key=lambda device: (device.process_index, device.id))
    parts = [every[i * layout.tensor : (i + 1) * layout.tensor] for i in range(layout.data)]
    return [Mesh(_in_a_ring(part, of=len(every)), ("tensor",)) for part in parts]


def _in_a_ring(devices: list[jax.Device], of: int) -> np.ndarray:
    if devices[0].platform == "tpu" and len(devices) > 1:
        try:
            return mesh_utils.create_device_mesh((len(devices),), devices)
        except (AssertionError, NotImplementedError, ValueError):
            if len(devices) == of:
                raise
            # JAX has no layout for this part of a slice: keep the order of the hosts, which are neighbours.
    return np.array(devices)


def least(mesh: Mesh) -> ProgramSpec:
    """The program `("least",)`: the minimum of a number of each device."""
    form = jax.ShapeDtypeStruct((mesh.size,), jnp.int32, sharding=NamedSharding(mesh, P("tensor")))
    return ProgramSpec(("least",), jnp.min, (form,), out_shardings=NamedSharding(mesh, P()))


def least_over_hosts(value: int, mesh: Mesh, programs: ProgramSet | None = None) -> int:
    """The minimum of `value` over the mesh's hosts. A collective: every host must call it at the same point.

    Args:
        programs: those that have `least`; default: it is compiled.
    """
    if not spans_hosts(mesh):
        return value
    programs = programs or ProgramSet([least(mesh)])
    (form,) = programs.specs["least",].arguments
    own = np.array([min(value, 2**31 - 1)], np.int32)
    values = jax.make_array_from_callback(form.shape, form.sharding, lambda _: own)
    return int(programs["least",](values).addressable_data(0))


def takes_part(mesh: Mesh) -> bool:
    """Whether any of the mesh's devices belongs to this process."""
    return any(device.process_index == jax.process_index() for device in mesh.devices.flat)


def spans_hosts(mesh: Mesh) -> bool:
    """Whether the mesh's devices belong to more than one process."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


def replicated(host: T, everywhere: NamedSharding, spans_hosts: bool) -> T:
    """Arrays of the host, or a tree of them, on every device."""
    if not spans_hosts:
        return jax.device_put(host, everywhere)
    # device_put would run a collective to check that all hosts put the same value: 2 ms a step.
    return jax.tree.map(lambda part: jax.make_array_from_callback(part.shape, everywhere, lambda _: part), host)
