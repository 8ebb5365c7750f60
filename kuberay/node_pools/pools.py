"""Plans the node pools of a config, besides the default one.

Each multi-host slice is a node pool, created and scaled as a whole. Single-host slices share a pool, which the
autoscaler scales host by host. Pods without TPUs run in the default pool, unless they need other capacity than
on-demand, or larger disks. Several zones get slices in turn.
"""

import hashlib
from dataclasses import dataclass

from ray_configs.capacity import Capacity, FlexStart, OnDemand, Queued
from ray_configs.cluster.workers import WorkerGroup, pool_binding
from ray_configs.job import Job
from ray_configs.loading import ConfigError
from ray_configs.service import Service
from ray_configs.tpu import TpuSlice

MAX_NAME = 40
"""GKE's limit on the characters in the name of a cluster or node pool."""

DEFAULT_DISK_GB = 100
"""GKE's default boot disk."""
DAEMONS_GB = 2
"""Ephemeral storage that GKE's own Pods on a node request."""
SIDECAR_GB = 5 * 2**30 / 1e9
"""Ephemeral storage that GKE's Cloud Storage FUSE sidecar requests in each Pod that mounts a bucket, by default."""


@dataclass(frozen=True)
class Pool:
    """One node pool. A TPU pool is in one zone, so GKE's numbers of nodes per zone are its numbers of nodes."""

    name: str
    slice: TpuSlice | None
    """None: machines without TPUs."""
    machine_type: str
    capacity: Capacity
    zone: str | None
    """None: the cluster's own zone."""
    nodes: int
    """Initial nodes, and the autoscaler's minimum."""
    max_nodes: int
    """The autoscaler's maximum; equal to `nodes` without autoscaling."""
    disk_gb: int
    """Size of the boot disk, as gcloud takes it."""
    binding: dict[str, str]
    """Labels and taints by which the pool takes Pods of this config and capacity alone."""
    workload_policy: str | None
    """Compute Engine's policy that places the hosts of a slice, if the generation needs one."""

    @property
    def autoscaled(self) -> bool:
        return self.max_nodes > self.nodes

    @property
    def topology(self) -> str | None:
        """The topology to pass to GKE; None if it follows from the machine type (single host) or from the policy."""
        if self.slice is None or self.slice.single_host or self.workload_policy:
            return None
        return self.slice.topology


def pools(config: Service | Job) -> tuple[Pool, ...]:
    """The node pools of a config, in the order of its groups. Raises ConfigError if fields of `cloud` do not fit."""
    cloud = config.cloud
    placed = all(group.zones or cloud.zones for group in config.worker_groups if group.slice)
    if not placed and not is_zone(cloud.location):
        raise ConfigError(  # gcloud would refuse it only after minutes
            f"cloud.location {cloud.location!r} is a region, and its TPU node pools need to know where the chips are: "
            f"set cloud.zones, such as ({cloud.location + '-a'!r},)"
        )
    return tuple(
        pool
        for group in config.worker_groups
        for pool in (_tpu_pools(config, group, group.slice) if group.slice else _cpu_pools(config, group))
    )


def in_default_pool(config: Service | Job, group: WorkerGroup) -> bool:
    """Whether its Pods run with the Ray heads. More scratch than that pool's disks offer needs a separate pool."""
    small = disk_gb(config, group) == DEFAULT_DISK_GB
    return group.slice is None and isinstance(group.capacity, OnDemand) and small


def disk_gb(config: Service | Job, group: WorkerGroup) -> int:
    """Boot disk of a node for a Pod of the group, with room for its scratch: in steps of 20, at least GKE's default."""
    size, mounts = DEFAULT_DISK_GB, config.bucket is not None and config.bucket.mount is not None
    while _left_on(size) < group.scratch_gb + DAEMONS_GB + SIDECAR_GB * mounts:
        size += 20
    return size


def _left_on(disk: int) -> float:
    """Allocatable storage of a boot disk, 10^9 bytes: without 10 % for eviction, and GKE's share for system and images.

    https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes#local_ephemeral_storage_reservation
    """
    gib = 2**30 / 1e9
    size = disk * gib
    return size - 0.1 * size - min(0.5 * size, 0.35 * size + 6 * gib, 100 * gib)


def is_zone(location: str) -> bool:
    """Whether it is a zone such as us-west4-a, which ends in a letter, not a region such as us-west4."""
    return location[-1:].isalpha()


def region(config: Service | Job) -> str:
    """The region of the cluster, its bucket and its workload policies."""
    location = config.cloud.location
    return location.rpartition("-")[0] if is_zone(location) else location


def _cpu_pools(config: Service | Job, group: WorkerGroup) -> list[Pool]:
    if in_default_pool(config, group):
        return []
    name, machine_type = _shortened(f"{config.name}-{group.name}"), config.cloud.head_machine_type
    zones = group.zones or config.cloud.zones
    zone = zones[0] if zones else None
    bound, disk = pool_binding(config.owner, group.capacity), disk_gb(config, group)
    return [Pool(name, None, machine_type, group.capacity, zone, 0, group.maximum, disk, bound, None)]


def _tpu_pools(config: Service | Job, group: WorkerGroup, slice: TpuSlice) -> list[Pool]:
    zones = group.zones or config.cloud.zones or (None,)
    maximum = group.maximum * config.clusters_at_once
    minimum = 0 if isinstance(group.capacity, FlexStart | Queued) else group.minimum
    base = f"{config.name}-{group.name.removeprefix('tpu-')}"
    policy = _shortened(base) if slice.facts.workload_policy and not slice.single_host else None

    def pool(index: int | None, zone: str | None, nodes: int, max_nodes: int) -> Pool:
        name = _shortened(base, "" if index is None else f"-{index}")
        disk = disk_gb(config, group)
        bound = pool_binding(config.owner, group.capacity)
        return Pool(name, slice, slice.machine.name, group.capacity, zone, nodes, max_nodes, disk, bound, policy)

    if not slice.single_host:
        return [pool(i, zones[i % len(zones)], slice.hosts if i < minimum else 0, slice.hosts) for i in range(maximum)]
    # The zones take slices in turn.
    shares = [(len(range(i, minimum, len(zones))), len(range(i, maximum, len(zones)))) for i in range(len(zones))]
    return [
        pool(i if len(zones) > 1 else None, zone, least, most)
        for i, (zone, (least, most)) in enumerate(zip(zones, shares))
        if most
    ]


def _shortened(base: str, suffix: str = "") -> str:
    """The name, shortened to GKE's limit with a hash, which keeps long names distinct."""
    room = MAX_NAME - len(suffix)
    if len(base) > room:
        base = base[: room - 7].rstrip("-") + "-" + hashlib.sha256(base.encode()).hexdigest()[:6]
    return base + suffix
