"""Plans the rollout of a changed RayService: the operator does less than the manifest suggests.

The operator sends serveConfigV2 to Serve at once. With `upgradeStrategy: None` it rolls out nothing of
rayClusterConfig but groups appended at the end. It never passes on `replicas` and their bounds, under any strategy, and
creates NAME-serve-svc only once. So `plan` compares the running Ray cluster and the Service with the manifest: it
patches numbers, recreates the Service, reports the rest, and refuses a change that Serve would start and never finish.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kuberay.cluster.manifests import Manifest, labels
from kuberay.cluster.rollout.exposure import RolloutStep, recreation
from kuberay.cluster.rollout.sameness import differences, short
from kuberay.cluster.rollout.serve_config import ServeApplication, applications
from kuberay.render.ray.ray_cluster import NEVER_S
from ray_configs.cluster.labels import QUEUE

NUMBERS = ("replicas", "minReplicas", "maxReplicas")
SKIPPED = frozenset({*NUMBERS, "scaleStrategy", "suspend"})
KUEUES = frozenset({"nodeSelector", "tolerations", "labels", "annotations", "schedulingGates"})


@dataclass(frozen=True)
class Rollout:
    steps: tuple[RolloutStep, ...] = ()
    messages: tuple[str, ...] = ()  # what else is rolled out, or not
    stops: tuple[str, ...] = ()  # why Serve would start the change and never finish it


def ray_cluster_of(ray_service: Manifest, get: Callable[[str, str], Manifest | None]) -> Manifest | None:
    """The live Ray cluster that changes of a RayService apply to: the pending one if there is one."""
    status = ray_service.get("status") or {}
    for side in ("pendingServiceStatus", "activeServiceStatus"):
        name = (status.get(side) or {}).get("rayClusterName")
        if name and (found := get("RayCluster", name)) is not None:
            return found
    return None


def plan(before: Manifest | None, after: Manifest, get: Callable[[str, str], Manifest | None]) -> Rollout:
    """Compares a live RayService with the one to apply. `get` finds live objects of its namespace by kind and name."""
    cluster = None if before is None else ray_cluster_of(before, get)
    if before is None or cluster is None:
        return Rollout()
    live, asked = cluster["spec"], after["spec"]["rayClusterConfig"]
    steps = _numbers(cluster, asked)
    service = get("Service", f"{after['metadata']['name']}-serve-svc")
    if service is not None and "Incremental" not in _strategy(after):
        steps += recreation(service, after)
    name, changes, stops = cluster["metadata"]["name"], not_rolled_out(after, cluster), list[str]()
    messages = [f"not rolled out: {change}" for change in changes]
    if changes and new_cluster(after):
        messages = [
            f"the operator starts a new Ray cluster beside {name} and deletes {name} when the new one serves; until "
            "then every slice is needed twice"
        ]
    elif added := _added(live, asked, changes):
        messages = [f"the operator adds {', '.join(added)} to {name}"]
    elif changes:
        stops = _stops(before, after, live, asked)
    return Rollout(tuple(steps), tuple(messages), tuple(stops))


def new_cluster(ray_service: Manifest) -> bool:
    """Whether a changed rayClusterConfig makes the operator start a new Ray cluster, which is the default."""
    return _strategy(ray_service) != "None"


def _strategy(ray_service: Manifest) -> str:
    return (ray_service["spec"].get("upgradeStrategy") or {}).get("type") or "NewCluster"


def not_rolled_out(ray_service: Manifest, cluster: Manifest) -> list[str]:
    """`group tpu-v5e-4x8 containers[ray-worker].image: a -> b` for each field that differs in the live Ray cluster."""
    queued = QUEUE in labels(ray_service) or QUEUE in labels(cluster)
    skip = SKIPPED | KUEUES if queued else SKIPPED
    found = differences(cluster["spec"], ray_service["spec"]["rayClusterConfig"], skip, zeros=True)
    return [f"{_readable(path)}: {short(old)} -> {short(new)}" for path, old, new in found]


def other_numbers(ray_service: Manifest, cluster: Manifest) -> list[str]:
    """Replica numbers and bounds that differ in the live Ray cluster."""
    return [step.words for step in _numbers(cluster, ray_service["spec"]["rayClusterConfig"])]


def _readable(path: str) -> str:
    for long, brief in ((".template.spec.", " "), (".template.", " "), ("workerGroupSpecs[", "group ")):
        path = path.replace(long, brief, 1)
    if path.startswith("group "):
        path = path.replace("]", "", 1)
    return path.replace("headGroupSpec", "head", 1).replace(". ", " ")


def _numbers(cluster: Manifest, asked: Manifest) -> list[RolloutStep]:
    """JSON patches: server-side apply treats the list of groups, which the autoscaler edits too, as one field."""
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
            if field == "replicas" and autoscaled and not fixed:  # keep the autoscaler's number, within the new bounds
                least, most = new.get("minReplicas") or 0, new.get("maxReplicas")
                value = max(least, group.get(field) or 0)
                value = value if most is None else min(value, most)
            if value is not None and value != (group.get(field) or 0):
                changed[field] = value
        if changed:
            path = f"/spec/workerGroupSpecs/{index}"
            patch.append({"op": "test", "path": f"{path}/groupName", "value": group["groupName"]})
            patch += [{"op": "add", "path": f"{path}/{field}", "value": value} for field, value in changed.items()]
            text = ", ".join(f"{field} {group.get(field) or 0} -> {value}" for field, value in changed.items())
            words.append(f"group {group['groupName']}: {text}")
    name = f"RayCluster {cluster['metadata']['name']}"
    return [RolloutStep(name, "; ".join(words), cluster, tuple(patch))] if patch else []


def _added(live: Manifest, asked: Manifest, changes: Sequence[str]) -> list[str]:
    """Groups appended at the end, if nothing else changed: the operator adds these to a running Ray cluster."""
    before, after = ([g["groupName"] for g in spec.get("workerGroupSpecs") or []] for spec in (live, asked))
    added = after[len(before) :]
    only = {f"group {name}: not there -> there" for name in added}
    return [f"group {name}" for name in added] if after[: len(before)] == before and set(changes) == only else []


def _stops(before: Manifest, after: Manifest, live: Manifest, asked: Manifest) -> list[str]:
    """New or changed applications that need a slice which the running Ray cluster does not have."""
    known = applications(before)
    there = live.get("workerGroupSpecs") or []
    stops: list[str] = []
    for name, app in applications(after).items():
        if app.slice is None or (name in known and known[name].entry == app.entry):
            continue
        new = name not in known or known[name].slice != app.slice
        if not _offered(app, there) and (new or _offered(app, asked.get("workerGroupSpecs") or [])):
            groups = ", ".join(group["groupName"] for group in there) or "no group"
            stopped = "would stop its replicas, and the new ones" if name in known else "would add replicas that"
            stops.append(
                f"application {name} needs slices {app.slice}, and the running Ray cluster has {groups}: Serve "
                f"{stopped} would wait forever"
            )
    return stops


def _offered(app: ServeApplication, groups: Sequence[Manifest]) -> bool:
    assert app.slice is not None
    return any(
        app.slice.ray_labels.items() <= (group.get("labels") or {}).items()
        or app.slice.node_selectors.items() <= (group["template"]["spec"].get("nodeSelector") or {}).items()
        for group in groups
    )
