"""What of a changed RayService comes about, and by whom: the operator does less than its manifest suggests.

It sends serveConfigV2 to Serve at once. Of rayClusterConfig, with `upgradeStrategy: None`, it rolls out only groups
added at the end; `replicas` and their bounds it never passes on, under any strategy; and NAME-serve-svc it makes once.
So the running Ray cluster and the Service are compared here with what is asked for: numbers are patched, the Service
is made anew, the rest is said, and a change that Serve would begin and could not finish is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kuberay.cluster.manifests import Manifest, labels
from kuberay.cluster.rollout.exposure import RolloutStep, made_anew
from kuberay.cluster.rollout.sameness import differences, short
from kuberay.cluster.rollout.serve_config import ServeApplication, applications
from kuberay.render.ray.ray_cluster import NEVER_S
from ray_configs.labels import QUEUE

NUMBERS = ("replicas", "minReplicas", "maxReplicas")
SKIPPED = frozenset({*NUMBERS, "scaleStrategy", "suspend"})
KUEUES = frozenset({"nodeSelector", "tolerations", "labels", "annotations", "schedulingGates"})


@dataclass(frozen=True)
class Rollout:
    steps: tuple[RolloutStep, ...] = ()
    said: tuple[str, ...] = ()  # what else comes about, or does not
    stops: tuple[str, ...] = ()  # why Serve would begin and could not finish


def ray_cluster_of(ray_service: Manifest, get: Callable[[str, str], Manifest | None]) -> Manifest | None:
    """The live Ray cluster that a RayService's changes meet: the pending one, if there is one."""
    status = ray_service.get("status") or {}
    for side in ("pendingServiceStatus", "activeServiceStatus"):
        name = (status.get(side) or {}).get("rayClusterName")
        if name and (found := get("RayCluster", name)) is not None:
            return found
    return None


def plan(before: Manifest | None, after: Manifest, get: Callable[[str, str], Manifest | None]) -> Rollout:
    """For a RayService as it is and as it will be. `get` finds live objects of its namespace by kind and name."""
    cluster = None if before is None else ray_cluster_of(before, get)
    if before is None or cluster is None:
        return Rollout()
    live, asked = cluster["spec"], after["spec"]["rayClusterConfig"]
    steps = _numbers(cluster, asked)
    service = get("Service", f"{after['metadata']['name']}-serve-svc")
    if service is not None and "Incremental" not in _strategy(after):
        steps += made_anew(service, after)
    name, changes, stops = cluster["metadata"]["name"], not_rolled_out(after, cluster), list[str]()
    said = [f"not rolled out: {change}" for change in changes]
    if changes and new_cluster(after):
        said = [
            f"the operator makes a new Ray cluster beside {name} and deletes that one when the new one serves; until "
            "then every slice is needed twice"
        ]
    elif added := _added(live, asked, changes):
        said = [f"the operator adds {', '.join(added)} to {name}"]
    elif changes:
        stops = _stops(before, after, live, asked)
    return Rollout(tuple(steps), tuple(said), tuple(stops))


def new_cluster(ray_service: Manifest) -> bool:
    """Whether the operator answers a changed rayClusterConfig with a new Ray cluster; it does unless told not to."""
    return _strategy(ray_service) != "None"


def _strategy(ray_service: Manifest) -> str:
    return (ray_service["spec"].get("upgradeStrategy") or {}).get("type") or "NewCluster"


def not_rolled_out(ray_service: Manifest, cluster: Manifest) -> list[str]:
    """`group tpu-v5e-4x8 containers[ray-worker].image: a -> b` for each field that the Ray cluster has otherwise."""
    queued = QUEUE in labels(ray_service) or QUEUE in labels(cluster)
    skip = SKIPPED | KUEUES if queued else SKIPPED
    found = differences(cluster["spec"], ray_service["spec"]["rayClusterConfig"], skip, zeros=True)
    return [f"{_readable(path)}: {short(old)} -> {short(new)}" for path, old, new in found]


def other_numbers(ray_service: Manifest, cluster: Manifest) -> list[str]:
    """Replicas that the Ray cluster was not told of."""
    return [step.words for step in _numbers(cluster, ray_service["spec"]["rayClusterConfig"])]


def _readable(path: str) -> str:
    for long, brief in ((".template.spec.", " "), (".template.", " "), ("workerGroupSpecs[", "group ")):
        path = path.replace(long, brief, 1)
    if path.startswith("group "):
        path = path.replace("]", "", 1)
    return path.replace("headGroupSpec", "head", 1).replace(". ", " ")


def _numbers(cluster: Manifest, asked: Manifest) -> list[RolloutStep]:
    """JSON patches: the list of groups is one field to server-side apply, and the autoscaler writes into it too."""
    wanted = {group["groupName"]: group for group in asked.get("workerGroupSpecs") or []}
    autoscaled = bool(cluster["spec"].get("enableInTreeAutoscaling"))
    patch: list[dict[str, Any]] = []
    words: list[str] = []
    for index, group in enumerate(cluster["spec"].get("workerGroupSpecs") or []):
        new = wanted.get(group["groupName"], group)
        changed = {}
        for field in NUMBERS:
            value = new.get(field)
            fixed = (new.get("idleTimeoutSeconds") or 0) >= NEVER_S
            if field == "replicas" and autoscaled and not fixed:  # the autoscaler's own number, within its bounds
                least, most = new.get("minReplicas") or 0, new.get("maxReplicas")
                value = max(least, group.get(field) or 0)
                value = value if most is None else min(value, most)
            if value is not None and value != (group.get(field) or 0):
                changed[field] = value
        if changed:
            path = f"/spec/workerGroupSpecs/{index}"
            patch.append({"op": "test", "path": f"{path}/groupName", "value": group["groupName"]})
            patch += [{"op": "add", "path": f"{path}/{field}", "value": value} for field, value in changed.items()]
            told = ", ".join(f"{field} {group.get(field) or 0} -> {value}" for field, value in changed.items())
            words.append(f"group {group['groupName']}: {told}")
    name = f"RayCluster {cluster['metadata']['name']}"
    return [RolloutStep(name, "; ".join(words), cluster, tuple(patch))] if patch else []


def _added(live: Manifest, asked: Manifest, changes: Sequence[str]) -> list[str]:
    """Groups at the end, if they are all that is new: those the operator adds to a running Ray cluster."""
    before, after = ([g["groupName"] for g in spec.get("workerGroupSpecs") or []] for spec in (live, asked))
    added = after[len(before) :]
    only = {f"group {name}: not there -> there" for name in added}
    return [f"group {name}" for name in added] if after[: len(before)] == before and set(changes) == only else []


def _stops(before: Manifest, after: Manifest, live: Manifest, asked: Manifest) -> list[str]:
    """Applications that are new or changed, and need a slice that the running Ray cluster does not have."""
    known = applications(before)
    there = live.get("workerGroupSpecs") or []
    stops: list[str] = []
    for name, app in applications(after).items():
        if app.slice is None or (name in known and known[name].entry == app.entry):
            continue
        new = name not in known or known[name].slice != app.slice
        if not _offered(app, there) and (new or _offered(app, asked.get("workerGroupSpecs") or [])):
            groups = ", ".join(group["groupName"] for group in there) or "no group"
            stopped = "would stop its replicas, and the new ones" if name in known else "would start replicas that"
            stops.append(
                f"application {name} needs slices {app.slice}, and the running Ray cluster has {groups}: Serve "
                f"{stopped} would wait for ever"
            )
    return stops


def _offered(app: ServeApplication, groups: Sequence[Manifest]) -> bool:
    assert app.slice is not None
    return any(
        app.slice.ray_labels.items() <= (group.get("labels") or {}).items()
        or app.slice.node_selectors.items() <= (group["template"]["spec"].get("nodeSelector") or {}).items()
        for group in groups
    )
