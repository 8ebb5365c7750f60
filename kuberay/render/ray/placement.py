"""Which nodes a Pod may run on: the slice's selectors and what each kind of capacity adds to them."""

from typing import Any

from ray_configs.capacity import Capacity, FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.labels import FLEX_START, QUEUED, RESERVATION, RESERVATION_PROJECT, SPOT, TPU
from ray_configs.tpu import TpuSlice


def node_selector(slice: TpuSlice | None, capacity: Capacity) -> dict[str, str]:
    """Labels that the node must have."""
    return (slice.node_selectors if slice else {}) | _selector_of(capacity)


def tolerations(slice: TpuSlice | None, capacity: Capacity) -> list[dict[str, Any]]:
    """Tolerations of the Pod, for the taints of its capacity."""
    tolerated = []
    if slice is not None:
        tolerated.append({"key": TPU, "operator": "Exists", "effect": "NoSchedule"})
    match capacity:
        case Spot():
            tolerated.append({"key": SPOT, "operator": "Exists", "effect": "NoSchedule"})
        case Queued():
            tolerated.append({"key": QUEUED, "operator": "Exists", "effect": "NoSchedule"})
    return tolerated


def _selector_of(capacity: Capacity) -> dict[str, str]:
    match capacity:
        case OnDemand():
            return {}
        case Spot():
            return {SPOT: "true"}
        case Reservation(name=name, project=project):
            return {RESERVATION: name} | ({RESERVATION_PROJECT: project} if project else {})
        case FlexStart():
            return {FLEX_START: "true"}
        case Queued():
            # Kueue's provisioning request pins the Pods to the nodes that it got.
            return {}
