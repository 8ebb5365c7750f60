"""The nodes that a Pod may run on: the slice's selectors, and what each kind of capacity adds."""

from typing import Any

from ray_configs.base import Kind
from ray_configs.capacity import Capacity, FlexStart, Queued, Reservation, Spot
from ray_configs.cluster.labels import (
    FLEX_START,
    QUEUED,
    RESERVATION,
    RESERVATION_PROJECT,
    SPOT,
    TPU,
)
from ray_configs.cluster.workers import pool_binding
from ray_configs.tpu import TpuSlice

TAINTS: dict[type[Kind], str] = {Spot: SPOT, Queued: QUEUED}
"""Taint of the nodes of a kind of capacity."""


def node_selector(slice: TpuSlice | None, capacity: Capacity) -> dict[str, str]:
    """Labels that the node must have. Queued capacity adds none: Kueue pins the Pods to the nodes that it gets."""
    labels = slice.node_selectors if slice else {}
    match capacity:
        case Spot():
            return labels | {SPOT: "true"}
        case Reservation(name=name, project=project):
            return labels | {RESERVATION: name} | ({RESERVATION_PROJECT: project} if project else {})
        case FlexStart():
            return labels | {FLEX_START: "true"}
    return labels


def tolerations(slice: TpuSlice | None, capacity: Capacity, owner: str) -> list[dict[str, Any]]:
    """Tolerations of the Pod, for the taints of its capacity and of its owner's node pools (`pool_binding`)."""
    taints = [] if slice is None else [TPU]
    taints += [taint for kind, taint in TAINTS.items() if isinstance(capacity, kind)]
    tolerated = [{"key": taint, "operator": "Exists", "effect": "NoSchedule"} for taint in taints]
    return tolerated + [
        {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
        for key, value in pool_binding(owner, capacity).items()
    ]
