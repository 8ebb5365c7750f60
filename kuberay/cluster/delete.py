"""Deletes what podslice applied and nobody else uses, in reverse order, and waits until it is gone."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress

from kuberay.cluster.connection import MANAGER, Cluster
from kuberay.cluster.errors import Absent, ClusterError, Conflict, Interrupted, Refused, UnknownKind
from kuberay.cluster.manifests import Manifest, annotations, labels, managers, title
from kuberay.cluster.references import references
from kuberay.cluster.users import WAS_THERE, Users, is_there, is_workload, noted_users, shown, users_among
from ray_configs.cluster.labels import RAY_CLUSTER, RAY_NODE_TYPE

LOOK_AGAIN_S = 0.5
MAX_NAMED = 5
"""Objects that a message names."""
MAX_CHANGES = 20
"""Changes by others during the deletion of one object, after which it fails."""


def delete(
    cluster: Cluster,
    objects: Sequence[Manifest],
    wait: bool = True,
    timeout_s: float | None = 600.0,
    force: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Deletes the objects in reverse order with foreground propagation: dependents first, then their owner.

    What workloads of other configs use stays, also with `force`; so does what was there before podslice applied it.
    `progress` receives a line at each change. Raises Refused, with nothing deleted, if podslice did not apply one of
    the objects (unless `force`); ClusterError if something is still there after timeout_s (None: wait forever);
    Interrupted on Ctrl-C.
    """
    found: list[Manifest] = []
    deleted: list[Manifest] = []
    try:
        for manifest in reversed(objects):
            with suppress(UnknownKind):  # without the kind there are no objects of it
                if (live := cluster.get(manifest)) is not None:
                    found.append(live)
                    continue
            progress(f"{title(manifest)}: already gone")
        if not force:
            _refuse_foreign(found)
        users = {} if all(map(is_workload, found)) else users_among(cluster, objects)
        leaving = {live["metadata"]["uid"] for live in found if is_workload(live)}
        for live in found:
            stays = ""
            if is_workload(live):
                there = cluster.delete(live)
            else:
                there, stays = _delete_unless_used(cluster, live, users, leaving, force)
            deleted += [live] * there
            progress(f"{title(live)}: {stays or ('deleting' if there else 'already gone')}")
        if wait:
            wait_until_gone(cluster, deleted, timeout_s, progress)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted. Deletion continues in the cluster: {_names(deleted)}. "
            f"Not deleted: {_names(live for live in found if live not in deleted)}. Deleting again is safe."
        ) from None


def _refuse_foreign(found: Sequence[Manifest]) -> None:
    # An object that sets nothing but its name has no field manager.
    foreign = [live for live in found if managers(live) and MANAGER not in managers(live)]
    if foreign:
        owners = "; ".join(f"{title(live)} is managed by {', '.join(managers(live))}" for live in foreign)
        raise Refused(
            f"Not applied by podslice: {owners}. Nothing was deleted. Is this the right cluster and namespace? "
            "If so: python -m kuberay delete --force."
        )


def _delete_unless_used(
    cluster: Cluster, found: Manifest, users: Users, leaving: Collection[str], force: bool
) -> tuple[bool, str]:
    """(whether it is being deleted, why it stays).

    Every write holds only for the object as it was read, so that of two deletes at once the last one deletes it, and
    an apply at the same time keeps it: `apply` looks again, after its workload exists, whether its note is still there.
    """
    for _ in range(MAX_CHANGES):
        live = cluster.get(found)
        if live is None or live["metadata"]["uid"] != found["metadata"]["uid"]:
            return False, ""
        if "deletionTimestamp" in live["metadata"]:
            return True, ""
        noted = noted_users(live)
        others = {key: user for key, user in noted.items() if key not in users}
        why = _why_it_stays(cluster, live, others, leaving, force)
        try:
            if removed := [key for key in noted if key in users or not why]:
                change = {"resourceVersion": live["metadata"]["resourceVersion"]}
                live = cluster.patch(live, {"metadata": change | {"annotations": dict.fromkeys(removed)}})
            if why:
                return False, why
            if any(is_there(cluster, user) for user in others.values()):  # applied again meanwhile
                cluster.patch(live, {"metadata": {"annotations": others}})
            else:
                return cluster.delete(live, unchanged=True), ""
        except Absent:
            return False, ""
        except Conflict:
            time.sleep(LOOK_AGAIN_S / 10)
    raise ClusterError(f"deleting {title(found)}: others change it all the time. Run the command again.")


def _why_it_stays(cluster: Cluster, live: Manifest, others: Users, leaving: Collection[str], force: bool) -> str:
    name = title(live)
    if using := {key: user for key, user in others.items() if is_there(cluster, user)}:
        return f"stays: used by {shown(using)}"
    if WAS_THERE in annotations(live) and not force:
        return f"stays: it was there before podslice applied it (--force deletes {name} nevertheless)"
    naming, unseen = references(cluster, live, leaving)
    if naming:
        more = f" and {len(naming) - MAX_NAMED} more" if len(naming) > MAX_NAMED else ""
        return f"stays: named by {', '.join(naming[:MAX_NAMED])}{more}"
    if unseen and not others and not noted_users(live):
        kinds = ", ".join(f"{kind}s" for kind in unseen)
        return f"stays: nothing says who uses it, and this role may not list {kinds}. Delete it yourself if nobody does"
    return ""


def wait_until_gone(
    cluster: Cluster, deleted: Sequence[Manifest], timeout_s: float | None, progress: Callable[[str], None]
) -> None:
    """Blocks until the objects and their Ray clusters' Pods are gone. Raises ClusterError after timeout_s."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    left = {live["metadata"]["uid"]: live for live in deleted}
    reported: dict[str, str] = {}
    hastened: set[str] = set()
    while True:
        for uid, live in list(left.items()):
            name, now = title(live), cluster.get(live)
            recreated = now is not None and now["metadata"]["uid"] != uid
            # Pods created just before the delete can outlive their owner.
            pods = [] if recreated else _ray_pods(cluster, now or live)
            if recreated or (now is None and not pods):
                progress(f"{name}: gone")
                del left[uid]
                continue
            if _hasten_head(cluster, pods, hastened):
                progress(f"{name}: its workers are gone; terminating its head now")
            left[uid] = now or live
            waits = _what_holds(now) if now else [f"Pod {pod['metadata']['name']}" for pod in pods]
            holds = f"waits for {', '.join(waits) or 'the cluster'}"
            if reported.get(uid) != holds:
                reported[uid] = holds
                progress(f"{name}: {holds}")
        if not left:
            return
        if time.monotonic() > deadline:
            reasons = "; ".join(f"{title(live)} {reported[uid]}" for uid, live in left.items())
            raise ClusterError(
                f"Not gone after {timeout_s:g} s: {reasons}. Deletion continues in the cluster. A finalizer that stays "
                "usually means that its controller is not running: is the operator up?"
            )
        time.sleep(LOOK_AGAIN_S)


def _ray_pods(cluster: Cluster, live: Manifest) -> list[Manifest]:
    """The Pods of the Ray clusters that are deleted with a RayService, RayJob or RayCluster."""
    status = live.get("status") or {}
    holders = [status, status.get("activeServiceStatus") or {}, status.get("pendingServiceStatus") or {}]
    names = {holder["rayClusterName"] for holder in holders if holder.get("rayClusterName")}
    if live["kind"] == "RayCluster":
        names.add(live["metadata"]["name"])
    if not names or live.get("spec", {}).get("clusterSelector"):  # a RayJob on an existing cluster, which stays
        return []
    with suppress(Refused):  # the role may allow deleting a RayService but not listing Pods
        return cluster.list("v1", "Pod", cluster.namespace_of(live), f"{RAY_CLUSTER} in ({','.join(sorted(names))})")
    return []


def _hasten_head(cluster: Cluster, pods: Sequence[Manifest], hastened: set[str]) -> bool:
    """Cuts short the head's grace period of minutes once no worker is left: nothing runs on it any more."""
    kinds = [labels(pod).get(RAY_NODE_TYPE) for pod in pods]
    if "worker" in kinds:
        return False
    heads = [pod for pod, kind in zip(pods, kinds) if kind == "head" and "deletionTimestamp" in pod["metadata"]]
    late = [pod for pod in heads if pod["metadata"]["uid"] not in hastened]
    for pod in late:
        hastened.add(pod["metadata"]["uid"])
        cluster.delete(pod, "Background", grace_s=1)
    return bool(late)


def _what_holds(live: Manifest) -> list[str]:
    finalizers = live["metadata"].get("finalizers") or []
    return [name for name in finalizers if name != "foregroundDeletion"] or ["what it owns"] * bool(finalizers)


def _names(objects: Iterable[Manifest]) -> str:
    return ", ".join(title(item) for item in objects) or "nothing"
