"""Deletes what was applied, last first, and waits until it is gone; touches nothing that podslice did not apply."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from kuberay.cluster.connection import MANAGER, Cluster
from kuberay.cluster.errors import ClusterError, Interrupted, Refused, UnknownKind
from kuberay.cluster.manifests import Manifest, labels, managers, title
from ray_configs.labels import RAY_CLUSTER, RAY_NODE_TYPE

LOOK_AGAIN_S = 0.5


def delete(
    cluster: Cluster,
    objects: Sequence[Manifest],
    wait: bool = True,
    timeout_s: float | None = 600.0,
    force: bool = False,
    progress: Callable[[str], None] = lambda line: None,
) -> None:
    """Deletes these objects in reverse order, in the foreground: an object goes after everything that it owns.

    `progress` hears a line whenever there is news. Raises Refused, with nothing deleted, if an object is there that
    podslice has not applied (unless `force`); ClusterError if something is still there after timeout_s (None: wait for
    ever); Interrupted on Ctrl-C.
    """
    found: list[Manifest] = []
    deleted: list[Manifest] = []
    try:
        for manifest in reversed(objects):
            with suppress(UnknownKind):  # no such kind, so none of its objects
                if (live := cluster.get(manifest)) is not None:
                    found.append(live)
                    continue
            progress(f"{title(manifest)}: already gone")
        if not force:
            _refuse_foreign(found)
        for live in found:
            there = cluster.delete(live)
            deleted += [live] * there
            progress(f"{title(live)}: {'deleting' if there else 'already gone'}")
        if wait:
            wait_until_gone(cluster, deleted, timeout_s, progress)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Interrupted. The cluster goes on deleting: {_names(deleted)}. "
            f"Not deleted: {_names(live for live in found if live not in deleted)}. Deleting again is safe."
        ) from None


def _refuse_foreign(found: Sequence[Manifest]) -> None:
    # Of what sets nothing but its name nobody is told to be the manager.
    foreign = [live for live in found if managers(live) and MANAGER not in managers(live)]
    if foreign:
        owners = "; ".join(f"{title(live)} is managed by {', '.join(managers(live))}" for live in foreign)
        raise Refused(
            f"Not applied by podslice: {owners}. Nothing was deleted. Is this the right cluster and namespace? "
            "If so: python -m kuberay delete --force."
        )


def wait_until_gone(
    cluster: Cluster, deleted: Sequence[Manifest], timeout_s: float | None, progress: Callable[[str], None]
) -> None:
    """Blocks until the objects and the Pods of their Ray clusters are gone. Raises ClusterError after timeout_s."""
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    left = {live["metadata"]["uid"]: live for live in deleted}
    said: dict[str, str] = {}
    hastened: set[str] = set()
    while True:
        for uid, live in list(left.items()):
            name, now = title(live), cluster.get(live)
            made_again = now is not None and now["metadata"]["uid"] != uid
            # Kubernetes can let an object go before Pods that it had only just made.
            pods = [] if made_again else _ray_pods(cluster, now or live)
            if made_again or (now is None and not pods):
                progress(f"{name}: gone")
                del left[uid]
                continue
            if _hasten_head(cluster, pods, hastened):
                progress(f"{name}: its workers are gone, and its head goes now")
            left[uid] = now or live
            waits = _what_holds(now) if now else [f"Pod {pod['metadata']['name']}" for pod in pods]
            holds = f"waits for {', '.join(waits) or 'the cluster'}"
            if said.get(uid) != holds:
                said[uid] = holds
                progress(f"{name}: {holds}")
        if not left:
            return
        if time.monotonic() > deadline:
            reasons = "; ".join(f"{title(live)} {said[uid]}" for uid, live in left.items())
            raise ClusterError(
                f"Not gone after {timeout_s:g} s: {reasons}. The cluster goes on deleting. A finalizer that stays is "
                "held by a controller that is not running; is the operator up?"
            )
        time.sleep(LOOK_AGAIN_S)


def _ray_pods(cluster: Cluster, live: Manifest) -> list[Manifest]:
    """The Pods of the Ray clusters that go with a RayService, RayJob or RayCluster."""
    status = live.get("status") or {}
    holders = [status, status.get("activeServiceStatus") or {}, status.get("pendingServiceStatus") or {}]
    names = {holder["rayClusterName"] for holder in holders if holder.get("rayClusterName")}
    if live["kind"] == "RayCluster":
        names.add(live["metadata"]["name"])
    if not names or live.get("spec", {}).get("clusterSelector"):  # of a RayJob: a cluster that stays
        return []
    with suppress(Refused):  # who may delete a RayService may not always look at Pods
        return cluster.list("v1", "Pod", cluster.namespace_of(live), f"{RAY_CLUSTER} in ({','.join(sorted(names))})")
    return []


def _hasten_head(cluster: Cluster, pods: Sequence[Manifest], hastened: set[str]) -> bool:
    """Without a worker nothing runs on a Ray cluster: its head need not use up its grace period, which is minutes."""
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
