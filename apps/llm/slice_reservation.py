"""Taking one whole TPU slice of several hosts out of a Ray cluster, and giving it back.

Worker 0 of a slice has a resource that no other host has, `TPU-<pod type>-head`. Whoever holds it has the slice: a
placement group for that, and one for the chips of all hosts, last as long as the reservation, and go with the actor
that made them, however it ends.
"""

import logging
import os
import random
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass

import ray
from ray import PlacementGroupID
from ray._private.state import available_resources_per_node
from ray.autoscaler.sdk import request_resources
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.tpu import SlicePlacementGroup, slice_placement_group

from ray_configs.tpu import TpuSlice

log = logging.getLogger("podslice")

NAME_LABEL, WORKER_LABEL, TYPE_LABEL = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id", "ray.io/tpu-pod-type"
PLACING_S = 30
"""For Ray to place groups on a slice that looked free; longer than that, somebody else was quicker."""
LOOK_PERIOD_S = 1.0


@dataclass(frozen=True)
class Slices:
    """The whole slices of one kind in the cluster, by name."""

    free: tuple[str, ...]
    busy: tuple[str, ...]


def slices(wanted: TpuSlice) -> Slices:
    """What there is now. A slice that misses a host counts as none at all.

    Ray's own count, get_num_ready_tpu_slices, takes a host without a single free chip for a free one.
    """
    hosts: dict[str, list[str]] = defaultdict(list)
    for node in ray.nodes():
        labels, chips = node["Labels"], node["Resources"].get("TPU", 0)
        if node["Alive"] and labels.get(TYPE_LABEL) == wanted.ray_pod_type and chips == wanted.chips_per_host:
            hosts[labels.get(NAME_LABEL, "")].append(node["NodeID"])
    left = available_resources_per_node()
    free, busy = [], []
    for name, nodes in hosts.items():
        if not name or len(nodes) != wanted.hosts:
            continue
        idle = all(left.get(node, {}).get("TPU", 0) >= wanted.chips_per_host for node in nodes)
        head = sum(left.get(node, {}).get(wanted.ray_head_resource, 0) for node in nodes)
        (free if idle and head >= 1 else busy).append(name)
    return Slices(tuple(sorted(free)), tuple(sorted(busy)))


@dataclass(frozen=True)
class Reservation:
    """One slice. Bundle i of `group` is all chips of the host with TPU_WORKER_ID i."""

    slice_name: str
    group: PlacementGroup
    _slice: SlicePlacementGroup
    _head: PlacementGroup

    def release(self) -> None:
        """Whatever runs on the slice's chips is killed. Safe more than once."""
        self._slice.shutdown()
        remove_placement_group(self._head)


def reserve(wanted: TpuSlice, owner: str) -> Reservation:
    """Waits, for as long as it takes, until a whole slice is free, and takes it.

    Args:
        owner: marks the groups, in Ray's state and dashboard, as one replica's of many that want such slices.
    """
    told = 0.0
    asked = False
    while True:
        now = slices(wanted)
        if now.free:
            # The slice that this process is on, if it is free: then nothing else's death is this replica's.
            own = os.environ.get("TPU_NAME", "")
            taken = _take(wanted, own if own in now.free else random.choice(now.free), owner)
            if taken is not None:
                if asked:
                    request_resources(bundles=[])  # those who still wait ask again
                return taken
        else:
            # Ray's autoscaler does not understand the groups below: it would buy a single host for the head.
            asked = True
            _request(wanted, len(now.busy) + _waiting(owner))
            if time.monotonic() - told > 60:
                told = time.monotonic()
                log.warning("no free slice %s (%d in use); waiting for one", wanted, len(now.busy))
        time.sleep(LOOK_PERIOD_S)


def give_back_all(owner: str) -> None:
    """Gives back all that was reserved in this owner's name.

    For an actor that Ray restarts under the same id: Ray removes an actor's groups when it is dead for good, so what
    its last process held would stay held, and a restarted one could wait for its own slice for ever.
    """
    for group in placement_group_table().values():
        if group["name"].startswith(f"podslice:{owner}:") and group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group["placement_group_id"])))


def _take(wanted: TpuSlice, name: str, owner: str) -> Reservation | None:
    """That very slice; None: it could not be had in time."""
    label = f"podslice:{owner}:{uuid.uuid4().hex[:8]}"
    head = placement_group(
        [{wanted.ray_head_resource: 1}],
        name=f"{label}:head",
        bundle_label_selector=[{NAME_LABEL: name, WORKER_LABEL: "0"}],
    )
    if not head.wait(PLACING_S):
        remove_placement_group(head)
        return None
    # With the slice's name given, Ray looks for no head by itself: it would take any, one of a broken slice too.
    whole = slice_placement_group(
        topology=wanted.topology,
        accelerator_version=wanted.facts.ray_name,
        chips_per_vm=wanted.chips_per_host,
        resources_per_bundle={"CPU": 0, "TPU": wanted.chips_per_host},  # Ray would ask for a CPU, which may be in use
        strategy="STRICT_SPREAD",
        name=label,
        bundle_label_selector=[{NAME_LABEL: name, WORKER_LABEL: str(i)} for i in range(wanted.hosts)],
    )
    reservation = Reservation(name, whole.placement_group, whole, head)
    if not whole.placement_group.wait(PLACING_S):
        reservation.release()
        return None
    return reservation


def _request(wanted: TpuSlice, count: int) -> None:
    """Ask the autoscaler, if there is one, that the cluster have so many slices in all, used ones included."""
    bundles = [{"TPU": wanted.chips_per_host}] * (wanted.hosts * count)
    request_resources(bundles=bundles, bundle_label_selectors=[{TYPE_LABEL: wanted.ray_pod_type}] * len(bundles))


def _waiting(owner: str) -> int:
    """Replicas of this owner that have no slice yet, this one included.

    Counted from what Ray knows, so that a replica that dies while it waits is not waited for. (A Serve replica's
    actor has a name that begins with its deployment's.)
    """
    replicas = sum(owner in actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True))
    prefix = f"podslice:{owner}:"
    holding = sum(
        group["name"].startswith(prefix) and not group["name"].endswith(":head") and group["state"] == "CREATED"
        for group in placement_group_table().values()
    )
    return max(1, replicas - holding)
