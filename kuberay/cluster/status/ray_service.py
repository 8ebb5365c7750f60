"""Status of a RayService: whether it serves and, if not, the main reason."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.rollout import new_cluster, not_rolled_out, other_numbers
from kuberay.cluster.rollout.serve_config import applications, serve_config
from kuberay.cluster.status import ray_cluster
from kuberay.cluster.status.pods import slice_shape
from kuberay.cluster.status.queueing import UNSEEN
from kuberay.cluster.status.ray_cluster import Count, RayClusterView, opening
from kuberay.cluster.status.slices import ReadyHosts
from kuberay.cluster.status.snapshot import Snapshot, one_line
from kuberay.cluster.status.state import Health, Phase
from ray_configs.cluster.workers import group_name

SERVE = {"RUNNING": Phase.READY, "HEALTHY": Phase.READY, "UNHEALTHY": Phase.TROUBLE, "DEPLOY_FAILED": Phase.TROUBLE}
"""Phases of Serve's application and deployment statuses; all others are STARTING."""
MESSAGE_LINES = 15


def read(live: Manifest, snapshot: Snapshot) -> tuple[Health, list[str]]:
    needs = _ready_hosts_needed(live)
    seen = [ray_cluster.view(item, snapshot, needs) for item in snapshot.ray_clusters_of(live)]
    views = {view.name: view for view in seen}
    verdict = _starting(live, views, snapshot) or _serving(live, views)
    details = behind = _behind(live, seen)
    if verdict.phase == Phase.READY and behind:
        more = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
        verdict = Health(Phase.READY, f"{verdict.text}; {behind[0]}{more}")
        details = behind if more else []
    details = details + [line for side in _sides(live) for line in _application_lines(side)]
    return verdict, details + [line for view in seen for line in view.lines]


def _sides(live: Manifest) -> list[dict[str, Any]]:
    """The status of the active and of the pending Ray cluster; empty where there is none."""
    status = live.get("status") or {}
    return [status.get(side) or {} for side in ("activeServiceStatus", "pendingServiceStatus")]


def _behind(live: Manifest, seen: list[RayClusterView]) -> list[str]:
    """Differences between the manifest and the running Ray cluster."""
    if not seen or is_true(live, "UpgradeInProgress"):
        return []
    cluster = seen[-1].live
    changes = [] if new_cluster(live) else not_rolled_out(live, cluster)
    lines = [f"not rolled out: {change}" for change in [*other_numbers(live, cluster), *changes]]
    return lines + [line for view in seen for line in view.outdated]


def _starting(live: Manifest, views: dict[str, RayClusterView], snapshot: Snapshot) -> Health | None:
    """The verdict on a service that is starting or has failed; None for one that the operator calls Ready."""
    status, serving = live.get("status") or {}, condition(live, "Ready")
    message = one_line(serving.get("message"))
    if serving.get("reason") == "InitializingTimeout":
        return Health(Phase.FAILED, f"took too long to start: {message}. The operator gave up: apply with --recreate")
    if serving.get("reason") == "ValidationFailed":
        return Health(Phase.FAILED, f"was refused by the operator: {message}")
    if not status and not views:
        refused = ray_cluster.refusals(live, snapshot)
        return opening(refused[0]) if refused else UNSEEN
    if not (serving.get("status") == "True" or (not serving and status.get("serviceStatus") == "Running")):
        active, pending = _sides(live)
        side = pending if pending.get("rayClusterName") in views else active
        side = side or {"rayClusterName": next(reversed(views), "")}
        if (found := _worst(side, views)) is not None:
            return opening(found)
        if not side.get("applicationStatuses"):
            return Health(Phase.STARTING, "is starting: its Pods are up, but Serve does not have the applications yet")
        why = message or "the operator does not say why"
        return Health(Phase.STARTING, f"is starting: its Pods and applications run, but no Pod serves yet ({why})")
    # Only here: the operator does not update observedGeneration while a service starts.
    if status.get("observedGeneration", live["metadata"]["generation"]) < live["metadata"]["generation"]:
        return Health(Phase.STARTING, "has been changed, but the operator has not processed the change yet")
    return None


def _serving(live: Manifest, views: dict[str, RayClusterView]) -> Health:
    """Whether it really serves: the operator calls it Ready as soon as anything listens, even the head's proxy."""
    active, pending = _sides(live)
    view = views.get(active.get("rayClusterName", ""))
    counts = _counts(live, view) if view is not None else {}
    served = _served(live, list(counts.values()))
    for kind, what in (("RollbackInProgress", "rolled back"), ("UpgradeInProgress", "upgraded")):
        if is_true(live, kind):
            routed = pending.get("trafficRoutedPercent")
            share = f", {routed} % of the traffic goes to the new cluster" if routed is not None else ""
            new = opening(reason) if (reason := _worst(pending, views)) else Health(Phase.STARTING, "is starting")
            return Health(new.phase, f"serves ({served}) and is being {what}{share}: the new cluster {new.text}")
    requested = [group for group, count in counts.items() if count.requested]
    idle = [group for group in requested if not counts[group].working]
    nothing = bool(requested) and idle == requested
    # A missing slice reduces capacity; a faulty application or head makes the service not ready.
    faults = _application_problems(active, scaling=nothing)
    if view is not None and (head := view.head.problem()) is not None:
        faults.append(head)
    lacks = view.problems if view is not None else []
    found = max([*lacks, *faults], key=lambda item: item.phase, default=Health(Phase.STARTING, ""))
    phase, why = max(Phase.STARTING, found.phase), f": {found.text}" if found.text else ""
    if nothing:
        return Health(phase, f"does not serve ({served}){why}")
    if idle or faults:
        only = f"; none of {', '.join(idle)} does" if idle else ""
        return Health(phase, f"serves, but has problems ({served}{only}){why}")
    if any(count.working < count.requested for count in counts.values()):
        return Health(Phase.READY, f"serves at reduced capacity ({served}){why}")
    return Health(Phase.READY, f"is ready: {served}")


def _counts(live: Manifest, view: RayClusterView) -> dict[str, Count]:
    """By group of slices (without slices, of workers): how many of those requested serve."""
    specs = view.live["spec"].get("workerGroupSpecs") or []
    groups = {spec["groupName"]: bool(slice_shape(spec["template"]["spec"])) for spec in specs}
    names = [name for name, shaped in groups.items() if shaped] or list(groups)
    counts = {name: view.count(name) for name in names}
    for name in counts.keys() - _cells(live):
        if _processes_of(name) in groups:  # a slice without its leading process serves nothing, even if it is up
            led = view.count(_processes_of(name)).working
            counts[name] = replace(counts[name], working=min(counts[name].working, led))
    return counts


def _ready_hosts_needed(ray_service: Manifest) -> dict[str, ReadyHosts]:
    """By worker group: which hosts of a slice must be ready."""
    groups = ray_service["spec"]["rayClusterConfig"].get("workerGroupSpecs") or []
    names = [group["groupName"] for group in groups]
    if serve_config(ray_service).get("proxy_location") in ("HeadOnly", "Disabled"):
        return dict.fromkeys(names, ReadyHosts.NONE)
    elsewhere = _cells(ray_service) | {name for name in names if _processes_of(name) in names}
    return {name: ReadyHosts.NONE if name in elsewhere else ReadyHosts.ONE for name in names}


def _cells(ray_service: Manifest) -> set[str]:
    """Groups whose slices are for models that a cell publishes, and may serve nothing yet."""
    apps = [app for app in applications(ray_service).values() if app.slice]
    serving = {group_name(app.slice) for app in apps if not app.is_cell}
    return {group_name(app.slice) for app in apps if app.is_cell} - serving


def _processes_of(group: str) -> str:
    """The group of CPU Pods whose processes lead a group's multi-host slices."""
    return "cpu-" + group.removeprefix("tpu-")


def _served(live: Manifest, counts: list[Count]) -> str:
    if not counts:
        return "it serves"
    total = sum(counts[1:], counts[0])
    if not total.requested:
        return f"no {total.word} are requested"
    cells = all(app.is_cell for app in applications(live).values()) and _cells(live)
    return f"{total} {'are up for what the cell publishes' if cells else 'serve'}"


def _worst(side: dict[str, Any], views: dict[str, RayClusterView]) -> Health | None:
    """The problem in the worst phase; within a phase Pods come first, because applications need them."""
    view = views.get(side.get("rayClusterName", ""))
    if view is None and side.get("rayClusterName"):
        return Health(Phase.STARTING, f"its Ray cluster {side['rayClusterName']} is not there yet")
    found = [*(view.problems if view is not None else []), *_application_problems(side)]
    return max(found, key=lambda problem: problem.phase, default=None)


def _application_problems(side: dict[str, Any], scaling: bool = False) -> list[Health]:
    """Applications that are not ready; with `scaling`, also deployments that scale under a running application."""
    found: list[Health] = []
    for application, *deployments in _states(side):
        off = [(what, state) for what, state in deployments if _phase(state) != Phase.READY]
        parts = [application, *off]
        phase = max(_phase(state) for _, state in parts)
        if phase == Phase.TROUBLE or _phase(application[1]) != Phase.READY or (scaling and off):
            found.append(Health(phase, "; ".join(f"{what} is {_words(state)}" for what, state in parts)))
    return found


def _states(side: dict[str, Any]) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """For each application: (name, state) of itself, then of its deployments."""
    for name, application in (side.get("applicationStatuses") or {}).items():
        deployments = (application.get("serveDeploymentStatuses") or {}).items()
        yield [(f"application {name}", application), *((f"deployment {one}", state) for one, state in deployments)]


def _phase(state: dict[str, Any]) -> Phase:
    return SERVE.get(state.get("status") or "RUNNING", Phase.STARTING)


def _words(state: dict[str, Any]) -> str:
    """The status and one line of its message: the last of a traceback, else the first, without full stop."""
    status = state.get("status") or "RUNNING"
    lines = (state.get("message") or "").strip().splitlines()
    message = one_line(lines[-1 if "Traceback" in lines[0] else 0]).rstrip(".") if lines else ""
    message = message or ("a replica is loading" if status == "DEPLOYING" else "")
    return f"{status}: {message}" if message else status


def _application_lines(side: dict[str, Any]) -> list[str]:
    """Every application and deployment, with the message of those that are not ready."""
    lines: list[str] = []
    for what, state in (part for parts in _states(side) for part in parts):
        lines.append(f"{'  ' if what.startswith('deployment') else ''}{what} is {state.get('status') or 'unknown'}")
        if _phase(state) != Phase.READY:  # the end of a traceback has the error
            lines += [f"    {line}" for line in (state.get("message") or "").strip().splitlines()[-MESSAGE_LINES:]]
    return lines
