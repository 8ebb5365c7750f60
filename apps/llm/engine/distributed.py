"""One JAX program over several hosts: joining it, its mesh, and what its hosts must agree on.

Every function here is quiet in a program of one process, so that the executor is the same on one host and on many.
"""

import jax
import numpy as np
from jax.experimental import mesh_utils, multihost_utils
from jax.sharding import Mesh

from ray_configs.llm import EngineConfig

START_TIMEOUT_S = 300
"""For all hosts to come together: the slowest one's imports, and on TPU the start of the chips."""
HEARTBEAT_TIMEOUT_S = 20
"""After which JAX ends processes whose peer is gone. The replica notices sooner; this is for when it is gone too."""
SHUTDOWN_TIMEOUT_S = 5


def join(coordinator: str, rank: int, hosts: int) -> None:
    """Become host `rank` of `hosts`. Call before anything else of JAX: its backend must not have started.

    Args:
        coordinator: `address:port` on host 0, which listens there from now to the end of its process.

    Raises:
        RuntimeError: the hosts did not come together, or the port is taken.
    """
    # On CPU devices, which the tests use as chips; the default cannot cross processes.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        coordinator,
        num_processes=hosts,
        process_id=rank,
        cluster_detection_method="deactivate",  # all is known; a detection would ask metadata servers
        initialization_timeout=START_TIMEOUT_S,
        heartbeat_timeout_seconds=HEARTBEAT_TIMEOUT_S,
        shutdown_timeout_seconds=SHUTDOWN_TIMEOUT_S,
    )


def choose_mesh(config: EngineConfig) -> Mesh:
    """One axis, "tensor", over the devices that share the model: of this host, or of all hosts after `join`.

    On TPU neighbours on the axis are neighbours on the slice's torus, as far as its topology has a ring.

    Raises:
        ValueError: tensor_parallel is not a number of devices that can be had.
    """
    devices = jax.devices()
    platform, wanted = devices[0].platform, config.tensor_parallel
    if jax.process_count() > 1:
        if wanted not in (None, len(devices)):
            raise ValueError(
                f"tensor_parallel is {wanted} but the slice has {len(devices)} devices on {jax.process_count()} "
                "hosts, and each of them must take part; leave it unset"
            )
        wanted = len(devices)
    count = wanted or (1 if platform == "cpu" else len(devices))
    if count > len(devices):
        raise ValueError(f"tensor_parallel is {count} but this host has {len(devices)} {platform} devices")
    if platform == "tpu" and count == len(devices) > 1:
        return Mesh(mesh_utils.create_device_mesh((count,), devices), ("tensor",))
    ordered = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.array(ordered[:count]), ("tensor",))


def least_over_hosts(value: int) -> int:
    """The smallest of the hosts' values, on all of them: each host must call this, at the same point."""
    if jax.process_count() == 1:
        return value
    return int(multihost_utils.process_allgather(np.int64(value)).min())
