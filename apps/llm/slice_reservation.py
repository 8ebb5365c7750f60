"""Reserves a whole multi-host TPU slice in a Ray cluster, and gives it back.

Worker 0 of a slice has a resource that no other host has, `TPU-<pod type>-head`. The process that holds it owns the
slice. A placement group for that resource and one for the chips of all hosts last as long as the reservation; Ray
removes them with the actor that created them, however it ends.

While no slice is free, each waiting process asks Ray's autoscaler for one with a request: a placement group of as many
hosts and chips as a slice has, each bundle on its own host. The autoscaler adds all hosts of a group at once, which is
how slices must be provisioned. Once Ray has placed the group there are enough hosts, though not necessarily all of one
slice: so the request is removed, and one of the whole slices is taken.
"""

import logging
import os
import random
import time
import uuid
from collections import defaultdict
from dataclasses import dataclass

from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.tpu import SlicePlacementGroup, slice_placement_group

from apps.serving import private_ray
from apps.serving.private_ray import RayNode
from ray_configs.cluster.labels import TPU_POD_TYPE, TPU_SLICE_NAME, TPU_WORKER_ID
from ray_configs.cluster.workers import SLICES_KEPT
from ray_configs.tpu import TpuSlice

log = logging.getLogger("podslice")

PLACING_S = 30
"""Timeout for Ray to place groups on a slice that looked free. After that, another process has taken the slice."""
LOOK_PERIOD_S = 1.0
REQUEST_PAUSE_S = 10.0
"""Time between a placed request and the next one. Meanwhile others remove theirs, and slices become whole."""
REPLACED_S = 900.0
"""Time within which a lost slice's hosts are back, or at least requested: covers grace periods of Pods and machines."""


@dataclass(frozen=True)
class Slices:
    """The slices of one kind in the cluster, by name."""

    free: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Slices that lack hosts which nobody gave back: the operator or autoscaler replaces these on its own."""


def slices(wanted: TpuSlice) -> Slices:
    """The cluster's slices of this kind. A slice that lacks a host is neither free nor busy.

    Ray's own count, get_num_ready_tpu_slices, treats a host without a single free chip as free.
    """
    there: dict[str, list[RayNode]] = defaultdict(list)
    gone: dict[str, dict[str, RayNode]] = defaultdict(dict)
    draining = private_ray.draining_nodes()
    for host in _hosts(wanted):
        name = host.labels.get(TPU_SLICE_NAME, "")
        if host.alive and host.id not in draining:
            there[name].append(host)
        else:
            gone[name][host.labels.get(TPU_WORKER_ID, "")] = host  # the latest one, if several
    left = private_ray.free_resources()
    free, busy = list[str](), list[str]()
    for name, hosts in there.items():
        if not name or len(hosts) != wanted.hosts:
            continue
        idle = all(left.get(host.id, {}).get("TPU", 0) >= wanted.chips_per_host for host in hosts)
        head = sum(left.get(host.id, {}).get(wanted.ray_head_resource, 0) for host in hosts)
        (free if idle and head >= 1 else busy).append(name)
    lost = [name for name, workers in gone.items() if _is_lost(list(workers.values()), there[name], wanted)]
    return Slices(tuple(sorted(free)), tuple(sorted(busy)), tuple(sorted(lost)))


def _is_lost(gone: list[RayNode], there: list[RayNode], wanted: TpuSlice) -> bool:
    """Whether a slice that lost the hosts `gone` will be replaced on its own and no host of its successor is up."""
    end = max(host.ended for host in gone)
    return (
        len(there) != wanted.hosts
        and end > time.time() - REPLACED_S
        and not any(host.given_back for host in gone)
        and not any(host.began >= end for host in there)
    )


def _hosts(wanted: TpuSlice) -> list[RayNode]:
    """Hosts of such slices, including the dead ones that Ray remembers, in the order in which they ended."""
    ours = [node for node in private_ray.nodes() if node.labels.get(TPU_POD_TYPE) == wanted.ray_pod_type]
    fitting = (node for node in ours if not node.alive or node.tpus == wanted.chips_per_host)
    return sorted(fitting, key=lambda node: node.ended)


@dataclass(frozen=True)
class ReservedSlice:
    """One slice. Bundle i of `group` is all chips of the host with TPU_WORKER_ID i."""

    slice_name: str
    group: PlacementGroup
    _slice: SlicePlacementGroup
    _head: PlacementGroup

    def release(self) -> None:
        """Give the slice back, which kills whatever runs on its chips. Idempotent."""
        self._slice.shutdown()
        remove_placement_group(self._head)


def reserve(wanted: TpuSlice, owner: str) -> ReservedSlice:
    """Wait, for as long as it takes, until a whole slice is free, and reserve it.

    Args:
        owner: identifies the deployment in the groups' names, in Ray's state and dashboard.
    """
    waiting = Waiting(wanted, owner)
    try:
        while (taken := waiting.look()) is None:
            time.sleep(LOOK_PERIOD_S)
        return taken
    finally:
        waiting.end()


class Waiting:
    """A process's wait for a slice, with its request to the autoscaler, if it has made one."""

    def __init__(self, wanted: TpuSlice, owner: str):
        self._wanted, self._owner = wanted, owner
        self._may_request = os.environ.get(SLICES_KEPT) != "1"
        self._request: PlacementGroup | None = None
        self._request_from = self._told = 0.0

    def look(self) -> ReservedSlice | None:
        """Take a slice if one is free; otherwise request one, unless a lost one is being replaced."""
        if self._request is not None and placement_group_table(self._request)["state"] == "CREATED":
            self.end()
            self._request_from = time.monotonic() + REQUEST_PAUSE_S
        now = slices(self._wanted)
        if now.free:
            # Prefer the slice that this process is on: then no other slice's failure can kill this replica.
            own = os.environ.get("TPU_NAME", "")
            return _take(self._wanted, own if own in now.free else random.choice(now.free), self._owner)
        # A lost slice is replaced on its own. A request in the meantime would add a second one.
        if self._may_request and self._request is None and not now.lost and time.monotonic() >= self._request_from:
            self._request = _request_slice(self._wanted, self._owner)
        if time.monotonic() - self._told > 60:
            self._told = time.monotonic()
            busy, lost = len(now.busy), len(now.lost)
            log.warning("no free slice %s (%d in use, %d being replaced); waiting for one", self._wanted, busy, lost)
        return None

    def end(self) -> None:
        """Remove the request, if there is one."""
        if self._request is not None:
            remove_placement_group(self._request)
            self._request = None


def _request_slice(wanted: TpuSlice, owner: str) -> PlacementGroup:
    return placement_group(
        [{"TPU": wanted.chips_per_host}] * wanted.hosts,
        strategy="STRICT_SPREAD",
        name=f"podslice:{owner}:{uuid.uuid4().hex[:8]}:wish",
        bundle_label_selector=[{TPU_POD_TYPE: wanted.ray_pod_type}] * wanted.hosts,
    )


def give_back_all(owner: str) -> None:
    """Give back everything that was reserved in this owner's name.

    For an actor that Ray restarts under the same id: Ray removes an actor's groups only when it is dead for good, so a
    restarted actor could wait forever for the slice that its previous process reserved.
    """
    private_ray.remove_placement_groups(f"podslice:{owner}:")


def _take(wanted: TpuSlice, name: str, owner: str) -> ReservedSlice | None:
    """Reserve this slice; None if Ray could not place the groups in time."""
    label = f"podslice:{owner}:{uuid.uuid4().hex[:8]}"
    head = placement_group(
        [{wanted.ray_head_resource: 1}],
        name=f"{label}:head",
        bundle_label_selector=[{TPU_SLICE_NAME: name, TPU_WORKER_ID: "0"}],
    )
    if not head.wait(PLACING_S):
        remove_placement_group(head)
        return None
    # Given the slice's name, Ray does not pick a head itself: it might pick one of a broken slice.
    whole = slice_placement_group(
        topology=wanted.topology,
        accelerator_version=wanted.facts.ray_name,
        chips_per_vm=wanted.chips_per_host,
        resources_per_bundle={"CPU": 0, "TPU": wanted.chips_per_host},  # Ray would ask for a CPU, which may be in use
        strategy="STRICT_SPREAD",
        name=label,
        bundle_label_selector=[{TPU_SLICE_NAME: name, TPU_WORKER_ID: str(i)} for i in range(wanted.hosts)],
    )
    reservation = ReservedSlice(name, whole.placement_group, whole, head)
    if not whole.placement_group.wait(PLACING_S):
        reservation.release()
        return None
    return reservation
