"""Worker groups: slices of one kind, bought one way, running one image. A Ray cluster has a group for each kind."""

from dataclasses import dataclass

from ray_configs.capacity import Capacity, FlexStart, Queued
from ray_configs.tpu import TpuSlice


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

    @property
    def hosts(self) -> int:
        """Pods of one replica: KubeRay's numOfHosts."""
        return self.slice.hosts if self.slice else 1


def group_name(slice: TpuSlice | None) -> str:
    """`tpu-v5e-4x8`; with the host's size where a topology comes in two: `tpu-v5e-2x4-8t`."""
    return "cpu" if slice is None else "tpu-" + str(slice).replace(":", "-")


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
