"""Plans the node pools of a config, beside the default one.

A pool of slices of several hosts is one slice, created and scaled as a whole: so many slices, so many pools. Hosts that
are a slice each share a pool, which the autoscaler grows and shrinks one by one. Pods without TPUs run in the default
pool, unless their machines are bought in a special way. Several zones get the slices dealt in turn.
"""

import hashlib
from dataclasses import dataclass

from ray_configs.capacity import Capacity, FlexStart, OnDemand, Queued
from ray_configs.cluster.workers import WorkerGroup
from ray_configs.job import Job
from ray_configs.loading import ConfigError
from ray_configs.service import Service
from ray_configs.tpu import TpuSlice

MAX_NAME = 40
"""Characters that GKE allows in the name of a cluster or node pool."""

DEFAULT_DISK_GB = 100
"""GKE's boot disk."""
DAEMONS_GB = 2
"""Scratch that GKE's own Pods on a node ask for."""


@dataclass(frozen=True)
class Pool:
    """One node pool. Those with TPUs are in one zone: there, nodes "per zone", as GKE counts, are simply nodes."""

    name: str
    slice: TpuSlice | None
    """None: machines without TPUs."""
    machine_type: str
    capacity: Capacity
    zone: str | None
    """None: the cluster's own zone."""
    nodes: int
    """Nodes when it is made, and the fewest that the autoscaler leaves."""
    max_nodes: int
    """Nodes that the autoscaler may reach; equal to `nodes`: no autoscaling."""
    disk_gb: int
    """Boot disk, as gcloud counts."""
    workload_policy: str | None
    """Compute Engine's policy that places the hosts of a slice, where the generation needs one."""

    @property
    def autoscaled(self) -> bool:
        return self.max_nodes > self.nodes

    @property
    def topology(self) -> str | None:
        """What GKE must be told. A single host's follows from its machine type, and a policy has its own."""
        if self.slice is None or self.slice.single_host or self.workload_policy:
            return None
        return self.slice.topology


def pools(config: Service | Job) -> tuple[Pool, ...]:
    """The node pools of a config, in its groups' order. Raises ConfigError where the cloud's fields do not fit."""
    refuse_unfit_cloud(config)
    return tuple(
        pool
        for group in config.worker_groups
        for pool in (_tpu_pools(config, group, group.slice) if group.slice else _cpu_pools(config, group))
    )


def in_default_pool(group: WorkerGroup) -> bool:
    """Whether its Pods run where Ray heads do. More scratch than that pool's disks leave takes a pool of its own."""
    small = disk_gb(group.scratch_gb) == DEFAULT_DISK_GB
    return group.slice is None and isinstance(group.capacity, OnDemand) and small


def disk_gb(scratch_gb: int) -> int:
    """The boot disk of a node on which a Pod may fill so much of it: in steps of 20, at least GKE's own default."""
    size = DEFAULT_DISK_GB
    while _left_on(size) < scratch_gb + DAEMONS_GB:
        size += 20
    return size


def _left_on(disk: int) -> float:
    """What GKE leaves Pods of a boot disk, 10^9 bytes: less 10 % for eviction, and what the system and images take.

    https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes#local_ephemeral_storage_reservation
    """
    gib = 2**30 / 1e9
    size = disk * gib
    return size - 0.1 * size - min(0.5 * size, 0.35 * size + 6 * gib, 100 * gib)


def is_zone(location: str) -> bool:
    """us-west4-a, as against the region us-west4: a zone's last part ends in a letter."""
    return location[-1:].isalpha()


def region(config: Service | Job) -> str:
    """The region of the cluster, where its bucket and its workload policies go too."""
    location = config.cloud.location
    return location.rpartition("-")[0] if is_zone(location) else location


def refuse_unfit_cloud(config: Service | Job) -> None:
    """Raises ConfigError for what gcloud would only refuse after minutes."""
    cloud = config.cloud
    if not cloud.zones and not is_zone(cloud.location) and any(group.slice for group in config.worker_groups):
        raise ConfigError(
            f"cloud.location {cloud.location!r} is a region, and its TPU node pools need to know where the chips are: "
            f"set cloud.zones, such as ({cloud.location + '-a'!r},)"
        )


def _cpu_pools(config: Service | Job, group: WorkerGroup) -> list[Pool]:
    if in_default_pool(group):
        return []
    name, machine_type = _shortened(f"{config.name}-{group.name}"), config.cloud.head_machine_type
    zone = config.cloud.zones[0] if config.cloud.zones else None
    return [Pool(name, None, machine_type, group.capacity, zone, 0, group.maximum, disk_gb(group.scratch_gb), None)]


def _tpu_pools(config: Service | Job, group: WorkerGroup, slice: TpuSlice) -> list[Pool]:
    zones = config.cloud.zones or (None,)
    maximum = group.maximum * config.clusters_at_once
    minimum = 0 if isinstance(group.capacity, FlexStart | Queued) else group.minimum
    base = f"{config.name}-{group.name.removeprefix('tpu-')}"
    policy = _shortened(base) if slice.facts.workload_policy and not slice.single_host else None

    def pool(index: int | None, zone: str | None, nodes: int, max_nodes: int) -> Pool:
        name = _shortened(base, "" if index is None else f"-{index}")
        disk = disk_gb(group.scratch_gb)
        return Pool(name, slice, slice.machine.name, group.capacity, zone, nodes, max_nodes, disk, policy)

    if not slice.single_host:
        return [pool(i, zones[i % len(zones)], slice.hosts if i < minimum else 0, slice.hosts) for i in range(maximum)]
    shares = [(_share(minimum, i, len(zones)), _share(maximum, i, len(zones))) for i in range(len(zones))]
    return [
        pool(i if len(zones) > 1 else None, zone, least, most)
        for i, (zone, (least, most)) in enumerate(zip(zones, shares))
        if most
    ]


def _share(slices: int, zone: int, zones: int) -> int:
    """How many of the slices a zone gets when they are dealt to the zones in turn."""
    return (slices - zone + zones - 1) // zones


def _shortened(base: str, suffix: str = "") -> str:
    """The name, or as much of it as GKE allows with a hash of the whole: two long names stay two."""
    room = MAX_NAME - len(suffix)
    if len(base) > room:
        base = base[: room - 7].rstrip("-") + "-" + hashlib.sha256(base.encode()).hexdigest()[:6]
    return base + suffix
