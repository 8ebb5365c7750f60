"""Worker groups: slices of one kind, bought one way, running one image. A Ray cluster has a group for each kind.

A group of multi-host slices comes with a group of small CPU Pods. A replica that owns such a slice is a process on one
of them, which reserves the slice's hosts and drives them. On a TPU host it could die with another replica's slice, and
the autoscaler would mistake a busy slice for an idle one, or the reverse.
"""

from dataclasses import dataclass, field
from typing import Any

from ray_configs.capacity import Capacity, FlexStart, Queued
from ray_configs.cluster.labels import POOL_CAPACITY, POOL_OWNER
from ray_configs.tpu import TpuSlice

PROCESS_SCRATCH_GB = 10
"""Local disk of a Pod that loads no weights, 10^9 bytes: for its logs."""
CPU_POD_MEMORY_GB = 8
"""Memory of a Pod without chips, 10^9 bytes."""
GROUP_LABEL = "podslice/group"
"""Ray label of a service's CPU Pods: their group's name."""
ROUTERS = "routers"
"""The group of CPU Pods for routers: no slice's death ends one, and no machine with chips stays for one."""
GROUPS_LABELLED = "PODSLICE_GROUPS_LABELLED"
"""Environment variable, `1` in every Pod of a service: processes without chips then request that label.

In all services, so that routers can come later: the head's environment is fixed when the cluster starts."""

SLICES_KEPT = "PODSLICE_SLICES_KEPT"
"""Environment variable, `1` in CPU Pods whose slices are fixed in number: those are provisioned without a request."""


@dataclass(frozen=True)
class WorkerGroup:
    """`minimum` to `maximum` replicas of a slice (of one CPU Pod where `slice` is None)."""

    name: str
    slice: TpuSlice | None
    capacity: Capacity
    image: str
    minimum: int
    maximum: int
    cpus: float
    """CPUs that one replica and the processes beside it request from Ray; sizes the Pod where no machine type does."""
    scratch_gb: int
    """Local disk, 10^9 bytes, that a Pod may fill."""
    leads: str | None = None
    """For CPU Pods: the group of multi-host slices whose replica processes they run."""
    pod: dict[str, Any] = field(default_factory=dict)
    """Merged into its Pod template last."""
    container: dict[str, Any] = field(default_factory=dict)
    """Merged into its container last."""
    zones: tuple[str, ...] = ()
    """Zones of its node pools; empty: those of the whole config."""

    @property
    def hosts(self) -> int:
        """Pods of one replica: KubeRay's numOfHosts."""
        return self.slice.hosts if self.slice else 1

    @property
    def cpu_pod_cpus(self) -> int:
        """CPUs of its Pods, where no machine type of a slice sizes them."""
        return max(2, round(self.cpus + 0.5))


def group_name(slice: TpuSlice | None) -> str:
    """`tpu-v5e-4x8`; with the host's size where a topology comes in two: `tpu-v5e-2x4-8t`."""
    return "cpu" if slice is None else f"tpu-{_dashed(slice)}"


def process_group_name(slice: TpuSlice | None) -> str:
    """Name of the group of CPU Pods whose processes drive such slices: `cpu-v5e-4x8`. Without a slice, `cpu`."""
    return "cpu" if slice is None else f"cpu-{_dashed(slice)}"


def pool_binding(owner: str, capacity: Capacity) -> dict[str, str]:
    """Labels and taints by which a node pool takes the Pods of one config and one kind of capacity alone.

    Labels that Pods select by would not do: an on-demand Pod selects none, so it would fit the Spot, flex-start and
    reserved nodes of every other config.
    """
    return {POOL_OWNER: owner, POOL_CAPACITY: capacity.kind}


def _dashed(slice: TpuSlice) -> str:
    return str(slice).replace(":", "-")


def refuse_unsold(slice: TpuSlice | None, capacity: Capacity) -> None:
    """Raise ValueError if the Dynamic Workload Scheduler does not sell the slice's machines."""
    if not isinstance(capacity, FlexStart | Queued):
        return
    if slice is None:
        raise ValueError(f"capacity {capacity.kind} buys TPU slices; without a slice use on-demand or spot")
    if not slice.machine.dynamic_workload_scheduler:
        raise ValueError(
            f"capacity {capacity.kind} is not sold for {slice.machine_type} ({slice}); "
            "use on-demand, spot or reservation"
        )
