"""Worker groups: slices of one kind, bought one way, running one image. A Ray cluster has a group for each kind.

Beside a group of slices of several hosts there is one of small CPU Pods. A replica that owns such a slice is a process
on one of them, which reserves the hosts and leads them. On a host of some slice it would die with that slice, and the
autoscaler would take a busy slice for one that nothing needs, or the reverse.
"""

from dataclasses import dataclass

from ray_configs.capacity import Capacity, FlexStart, Queued
from ray_configs.tpu import TpuSlice

PROCESS_SCRATCH_GB = 10
"""Local disk of a Pod that loads no weights, 10^9 bytes: for its logs."""
GROUP_LABEL = "podslice/group"
"""Ray label of the CPU Pods of a service with slices of several hosts: their group's name."""
GROUPS_LABELLED = "PODSLICE_GROUPS_LABELLED"
"""Environment variable, `1` in every Pod of a cluster whose CPU Pods have that label: processes then ask for it."""

SLICES_KEPT = "PODSLICE_SLICES_KEPT"
"""Environment variable, `1` in CPU Pods beside slices of a fixed number: those come without being asked for."""


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
    """CPUs that one application replica, and what runs beside it, ask of Ray; sizes the Pod where there is no machine
    type to fill."""
    scratch_gb: int
    """Local disk, 10^9 bytes, that a Pod may fill."""
    leads: str | None = None
    """Of CPU Pods: the group of slices of several hosts whose replicas' processes they are for."""

    @property
    def hosts(self) -> int:
        """Pods of one replica: KubeRay's numOfHosts."""
        return self.slice.hosts if self.slice else 1


def group_name(slice: TpuSlice | None) -> str:
    """`tpu-v5e-4x8`; with the host's size where a topology comes in two: `tpu-v5e-2x4-8t`."""
    return "cpu" if slice is None else f"tpu-{_dashed(slice)}"


def process_group_name(slice: TpuSlice | None) -> str:
    """The group of CPU Pods for the processes that lead such slices: `cpu-v5e-4x8`. Without a slice, `cpu` itself."""
    return "cpu" if slice is None else f"cpu-{_dashed(slice)}"


def _dashed(slice: TpuSlice) -> str:
    return str(slice).replace(":", "-")


def refuse_unsold(slice: TpuSlice | None, capacity: Capacity) -> None:
    """Raises ValueError where the Dynamic Workload Scheduler does not sell the slice's machines."""
    if not isinstance(capacity, FlexStart | Queued):
        return
    if slice is None:
        raise ValueError(f"capacity {capacity.kind} buys TPU slices; without a slice use on-demand or spot")
    if not slice.machine.dynamic_workload_scheduler:
        raise ValueError(
            f"capacity {capacity.kind} is not sold for {slice.machine_type} ({slice}); "
            "use on-demand, spot or reservation"
        )
