"""Taking one whole TPU slice of several hosts out of a Ray cluster, and giving it back.

Worker 0 of a slice has a resource that no other host has, `TPU-<pod type>-head`. Whoever holds it has the slice: a
placement group for that, and one for the chips of all hosts, last as long as the reservation, and go with the actor
that made them, however it ends.

While no slice is free, a wish is all that Ray's autoscaler sees of who waits: one placement group of so many hosts with
so many chips, each on its own. The autoscaler adds hosts for a group all at once, which is how a slice must be asked
for, and everyone who waits has one, whatever others wait for. As soon as Ray has placed it there are hosts enough, if
not all of one slice: then it is removed, and one of the whole slices taken.
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
from ray_configs.cluster.workers import SLICES_KEPT
from ray_configs.labels import TPU_POD_TYPE, TPU_SLICE_NAME, TPU_WORKER_ID
from ray_configs.tpu import TpuSlice

log = logging.getLogger("podslice")

PLACING_S = 30
"""For Ray to place groups on a slice that looked free; longer than that, somebody else was quicker."""
LOOK_PERIOD_S = 1.0
CONTENT_S = 10.0
"""After a wish was placed, until there is another: others remove theirs meanwhile, and slices become whole."""
REPLACED_S = 900.0
"""Within which a lost slice's hosts are there again, or at least asked for: their Pods' grace, and a dead machine's."""


@dataclass(frozen=True)
class Slices:
    """The slices of one kind in the cluster, by name."""

    free: tuple[str, ...] = ()
    busy: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    """Miss hosts that were not given back: whoever keeps the slices makes these anew without being asked."""


def slices(wanted: TpuSlice) -> Slices:
    """What there is now. A slice that misses a host is neither free nor busy.

    Ray's own count, get_num_ready_tpu_slices, takes a host without a single free chip for a free one.
    """
    there: dict[str, list[RayNode]] = defaultdict(list)
    gone: dict[str, dict[str, RayNode]] = defaultdict(dict)
    draining = private_ray.draining_nodes()
    for host in _hosts(wanted):
        name = host.labels.get(TPU_SLICE_NAME, "")
        if host.alive and host.id not in draining:
            there[name].append(host)
        else:
            gone[name][host.labels.get(TPU_WORKER_ID, "")] = host  # the last one of many
    left = private_ray.free_resources()
    free, busy = [], []
    for name, hosts in there.items():
        if not name or len(hosts) != wanted.hosts:
            continue
        idle = all(left.get(host.id, {}).get("TPU", 0) >= wanted.chips_per_host for host in hosts)
        head = sum(left.get(host.id, {}).get(wanted.ray_head_resource, 0) for host in hosts)
        (free if idle and head >= 1 else busy).append(name)
    lost = [name for name, workers in gone.items() if _is_lost(list(workers.values()), there[name], wanted)]
    return Slices(tuple(sorted(free)), tuple(sorted(busy)), tuple(sorted(lost)))


def _is_lost(gone: list[RayNode], there: list[RayNode], wanted: TpuSlice) -> bool:
    """Whether a slice whose last hosts are `gone` will come again by itself, and none of the next one's is there."""
    end = max(host.ended for host in gone)
    return (
        len(there) != wanted.hosts
        and end > time.time() - REPLACED_S
        and not any(host.given_back for host in gone)
        and not any(host.began >= end for host in there)
    )


def _hosts(wanted: TpuSlice) -> list[RayNode]:
    """Those of such slices, also dead ones, as far as Ray remembers them: in the order in which they ended."""
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
        """Whatever runs on the slice's chips is killed. Safe more than once."""
        self._slice.shutdown()
        remove_placement_group(self._head)


def reserve(wanted: TpuSlice, owner: str) -> ReservedSlice:
    """Waits, for as long as it takes, until a whole slice is free, and takes it.

    Args:
        owner: marks the groups, in Ray's state and dashboard, as one replica's of many that want such slices.
    """
    waiting = Waiting(wanted, owner)
    try:
        while (taken := waiting.look()) is None:
            time.sleep(LOOK_PERIOD_S)
        return taken
    finally:
        waiting.end()


class Waiting:
    """One who waits for a slice, and perhaps has a wish."""

    def __init__(self, wanted: TpuSlice, owner: str):
        self._wanted, self._owner = wanted, owner
        self._asks = os.environ.get(SLICES_KEPT) != "1"
        self._wish: PlacementGroup | None = None
        self._asks_from = self._told = 0.0

    def look(self) -> ReservedSlice | None:
        """Takes a slice if one is free; else asks for one, unless it comes anyway."""
        if self._wish is not None and placement_group_table(self._wish)["state"] == "CREATED":
            self.end()
            self._asks_from = time.monotonic() + CONTENT_S
        now = slices(self._wanted)
        if now.free:
            # The slice that this process is on, if it is free: then nothing else's death is this replica's.
            own = os.environ.get("TPU_NAME", "")
            return _take(self._wanted, own if own in now.free else random.choice(now.free), self._owner)
        # A lost slice comes back by itself. Asked for meanwhile, there would be two.
        if self._asks and self._wish is None and not now.lost and time.monotonic() >= self._asks_from:
            self._wish = _wish(self._wanted, self._owner)
        if time.monotonic() - self._told > 60:
            self._told = time.monotonic()
            busy, lost = len(now.busy), len(now.lost)
            log.warning("no free slice %s (%d in use, %d being replaced); waiting for one", self._wanted, busy, lost)
        return None

    def end(self) -> None:
        """Takes the wish back, if there is one."""
        if self._wish is not None:
            remove_placement_group(self._wish)
            self._wish = None


def _wish(wanted: TpuSlice, owner: str) -> PlacementGroup:
    return placement_group(
        [{"TPU": wanted.chips_per_host}] * wanted.hosts,
        strategy="STRICT_SPREAD",
        name=f"podslice:{owner}:{uuid.uuid4().hex[:8]}:wish",
        bundle_label_selector=[{TPU_POD_TYPE: wanted.ray_pod_type}] * wanted.hosts,
    )


def give_back_all(owner: str) -> None:
    """Gives back all that was reserved in this owner's name.

    For an actor that Ray restarts under the same id: Ray removes an actor's groups when it is dead for good, so what
    its last process held would stay held, and a restarted one could wait for its own slice for ever.
    """
    private_ray.remove_placement_groups(f"podslice:{owner}:")


def _take(wanted: TpuSlice, name: str, owner: str) -> ReservedSlice | None:
    """That very slice; None: it could not be had in time."""
    label = f"podslice:{owner}:{uuid.uuid4().hex[:8]}"
    head = placement_group(
        [{wanted.ray_head_resource: 1}],
        name=f"{label}:head",
        bundle_label_selector=[{TPU_SLICE_NAME: name, TPU_WORKER_ID: "0"}],
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
        bundle_label_selector=[{TPU_SLICE_NAME: name, TPU_WORKER_ID: str(i)} for i in range(wanted.hosts)],
    )
    reservation = ReservedSlice(name, whole.placement_group, whole, head)
    if not whole.placement_group.wait(PLACING_S):
        reservation.release()
        return None
    return reservation
