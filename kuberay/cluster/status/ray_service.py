"""A RayService in words: is it serving, and if not, what is the gravest reason."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.rollout import new_cluster, not_rolled_out, other_numbers
from kuberay.cluster.rollout.serve_config import applications, serve_config
from kuberay.cluster.status import ray_cluster
from kuberay.cluster.status.events import one_line
from kuberay.cluster.status.placement import slice_shape
from kuberay.cluster.status.queueing import UNSEEN
from kuberay.cluster.status.ray_cluster import Count, RayClusterView, opening
from kuberay.cluster.status.slices import Works
from kuberay.cluster.status.state import Health, Phase
from kuberay.cluster.status.surroundings import Surroundings
from ray_configs.cluster.workers import group_name

SERVE = {"RUNNING": Phase.READY, "HEALTHY": Phase.READY, "UNHEALTHY": Phase.TROUBLE, "DEPLOY_FAILED": Phase.TROUBLE}
"""Serve's statuses of applications and deployments; in all others they are on their way."""
MESSAGE_LINES = 15


def read(live: Manifest, around: Surroundings) -> tuple[Health, list[str]]:
    status = live.get("status") or {}
    when = _when_slices_work(live)
    seen = [ray_cluster.view(item, around, when) for item in around.ray_clusters_of(live)]
    views = {view.name: view for view in seen}
    active, pending = sides = [status.get(side) or {} for side in ("activeServiceStatus", "pendingServiceStatus")]
    verdict = _starting(live, active, pending, views, around) or _serving(live, active, pending, views)
    details = behind = _behind(live, seen)
    if verdict.phase == Phase.READY and behind:
        more = f" (and {len(behind) - 1} more)" if len(behind) > 1 else ""
        verdict = Health(Phase.READY, f"{verdict.text}; {behind[0]}{more}")
        details = behind if more else []
    details = details + [line for side in sides for line in _application_lines(side)]
    return verdict, details + [line for view in seen for line in view.lines]


def _behind(live: Manifest, seen: list[RayClusterView]) -> list[str]:
    """What the manifest says and the running Ray cluster does not do."""
    if not seen or is_true(live, "UpgradeInProgress"):
        return []
    cluster = seen[-1].live
    changes = [] if new_cluster(live) else not_rolled_out(live, cluster)
    lines = [f"not rolled out: {change}" for change in [*other_numbers(live, cluster), *changes]]
    return lines + [line for view in seen for line in view.outdated]


def _starting(
    live: Manifest,
    active: dict[str, Any],
    pending: dict[str, Any],
    views: dict[str, RayClusterView],
    around: Surroundings,
) -> Health | None:
    """The verdict on a service that has not come up yet, or never will; None for one that the operator calls Ready."""
    status, serving = live.get("status") or {}, condition(live, "Ready")
    said = one_line(serving.get("message"))
    if serving.get("reason") == "InitializingTimeout":
        text = f"took too long to start, and the operator gave up: {said}. Delete it and apply it again"
        return Health(Phase.FAILED, text)
    if serving.get("reason") == "ValidationFailed":
        return Health(Phase.FAILED, f"was refused by the operator: {said}")
    if not status and not views:
        refused = ray_cluster.refusals(live, around)
        return opening(refused[0]) if refused else UNSEEN
    if not (serving.get("status") == "True" or (not serving and status.get("serviceStatus") == "Running")):
        side = pending if pending.get("rayClusterName") in views else active
        side = side or {"rayClusterName": next(reversed(views), "")}
        if (found := _gravest(side, views)) is not None:
            return opening(found)
        if not side.get("applicationStatuses"):
            text = "is starting: its Pods are up, and Serve has not been given the applications yet"
            return Health(Phase.STARTING, text)
        why = said or "the operator does not say why"
        return Health(Phase.STARTING, f"is starting: its Pods and applications run, and no Pod serves yet ({why})")
    # Only now: as long as a service starts, the operator writes no new generation into its status.
    if status.get("observedGeneration", live["metadata"]["generation"]) < live["metadata"]["generation"]:
        return Health(Phase.STARTING, "has been changed, and the operator has not looked at the change yet")
    return None


def _serving(
    live: Manifest, active: dict[str, Any], pending: dict[str, Any], views: dict[str, RayClusterView]
) -> Health:
    """The operator calls it Ready as soon as anything listens, the head's proxy too. Whether it serves is seen here."""
    view = views.get(active.get("rayClusterName", ""))
    counts = _counts(live, view) if view is not None else {}
    served = _served(live, list(counts.values()))
    for kind, what in (("RollbackInProgress", "rolled back"), ("UpgradeInProgress", "upgraded")):
        if is_true(live, kind):
            reason = _gravest(pending, views)
            routed = pending.get("trafficRoutedPercent")
            share = f", {routed} % of the traffic goes to the new cluster" if routed is not None else ""
            new = opening(reason) if reason is not None else None
            why = f": the new cluster {new.text}" if new else ""
            return Health(new.phase if new else Phase.STARTING, f"serves ({served}) and is being {what}{share}{why}")
    asked = [group for group, count in counts.items() if count.asked]
    idle = [group for group in asked if not counts[group].working]
    nothing = bool(asked) and idle == asked
    # A slice that is not there is what it lacks; an application that is not right, or the head, is not ready.
    grave = _application_problems(active, scaling=nothing)
    if view is not None and (head := view.head.problem()) is not None:
        grave.append(head)
    lacks = view.problems if view is not None else []
    found = max([*lacks, *grave], key=lambda item: item.phase, default=None)
    why = f": {found.text}" if found is not None else ""
    phase = max(Phase.STARTING, found.phase) if found is not None else Phase.STARTING
    if nothing:
        return Health(phase, f"does not serve ({served}){why}")
    if idle or grave:
        only = f"; nothing of {', '.join(idle)} does" if idle else ""
        return Health(phase, f"serves, but not all is well ({served}{only}){why}")
    if any(count.working < count.asked for count in counts.values()):
        return Health(Phase.READY, f"serves, but not with all it has ({served}){why}")
    return Health(Phase.READY, f"is ready: {served}")


def _counts(live: Manifest, view: RayClusterView) -> dict[str, Count]:
    """By group of slices (of workers, where there are none): how many serve of those that are asked for."""
    specs = view.live["spec"].get("workerGroupSpecs") or []
    groups = {spec["groupName"]: bool(slice_shape(spec["template"]["spec"])) for spec in specs}
    names = [name for name, shaped in groups.items() if shaped] or list(groups)
    counts = {name: view.count(name) for name in names}
    for name in counts.keys() - _cells(live):
        if _processes_of(name) in groups:  # a slice that no process leads serves nothing, up as it is
            led = view.count(_processes_of(name)).working
            counts[name] = replace(counts[name], working=min(counts[name].working, led))
    return counts


def _when_slices_work(ray_service: Manifest) -> dict[str, Works]:
    """By worker group: when a slice of it does what the service wants of it."""
    groups = ray_service["spec"]["rayClusterConfig"].get("workerGroupSpecs") or []
    names = [group["groupName"] for group in groups]
    if serve_config(ray_service).get("proxy_location") in ("HeadOnly", "Disabled"):
        return dict.fromkeys(names, Works.NONE)
    elsewhere = _cells(ray_service) | {name for name in names if _processes_of(name) in names}
    return {name: Works.NONE if name in elsewhere else Works.ONE for name in names}


def _cells(ray_service: Manifest) -> set[str]:
    """Groups whose slices are there for what a cell publishes, and may serve nothing."""
    told = [app for app in applications(ray_service).values() if app.slice]
    serving = {group_name(app.slice) for app in told if not app.is_cell}
    return {group_name(app.slice) for app in told if app.is_cell} - serving


def _processes_of(group: str) -> str:
    """The group of CPU Pods for the processes that lead a group's slices, where these have several hosts."""
    return "cpu-" + group.removeprefix("tpu-")


def _served(live: Manifest, counts: list[Count]) -> str:
    if not counts:
        return "it serves"
    total = sum(counts[1:], counts[0])
    if not total.asked:
        return f"no {total.word} are asked for"
    cells = all(app.is_cell for app in applications(live).values()) and _cells(live)
    return f"{total} {'are up for what the cell publishes' if cells else 'serve'}"


def _gravest(side: dict[str, Any], views: dict[str, RayClusterView]) -> Health | None:
    """The reason that stands before the others: what is broken, then what waits, then what is on its way.

    Of equally grave ones the Pods' comes first, since applications cannot come up without them.
    """
    view = views.get(side.get("rayClusterName", ""))
    if view is None and side.get("rayClusterName"):
        return Health(Phase.STARTING, f"its Ray cluster {side['rayClusterName']} is not there yet")
    found = [*(view.problems if view is not None else []), *_application_problems(side)]
    return max(found, key=lambda problem: problem.phase, default=None)


def _application_problems(side: dict[str, Any], scaling: bool = False) -> list[Health]:
    """What is not right; with `scaling`, deployments too that only scale under a running application."""
    found: list[Health] = []
    for application, *deployments in _states(side):
        off = [(what, state) for what, state in deployments if _phase(state) != Phase.READY]
        parts = [application, *off]
        phase = max(_phase(state) for _, state in parts)
        if phase == Phase.TROUBLE or _phase(application[1]) != Phase.READY or (scaling and off):
            found.append(Health(phase, "; ".join(f"{what} is {_words(state)}" for what, state in parts)))
    return found


def _states(side: dict[str, Any]) -> Iterator[list[tuple[str, dict[str, Any]]]]:
    """For each application its state and then those of its deployments, with what they are called."""
    for name, application in (side.get("applicationStatuses") or {}).items():
        deployments = (application.get("serveDeploymentStatuses") or {}).items()
        yield [(f"application {name}", application), *((f"deployment {one}", state) for one, state in deployments)]


def _phase(state: dict[str, Any]) -> Phase:
    return SERVE.get(state.get("status") or "RUNNING", Phase.STARTING)


def _words(state: dict[str, Any]) -> str:
    """Its status, with the gist of what it says: the last line of a traceback, else the first, without full stop."""
    status = state.get("status") or "RUNNING"
    lines = (state.get("message") or "").strip().splitlines()
    said = one_line(lines[-1 if "Traceback" in lines[0] else 0]).rstrip(".") if lines else ""
    said = said or ("a replica is loading" if status == "DEPLOYING" else "")
    return f"{status}: {said}" if said else status


def _application_lines(side: dict[str, Any]) -> list[str]:
    """Every application and deployment, with what they say in full where something is wrong."""
    lines: list[str] = []
    for what, state in (part for parts in _states(side) for part in parts):
        lines.append(f"{'  ' if what.startswith('deployment') else ''}{what} is {state.get('status') or 'unknown'}")
        if _phase(state) != Phase.READY:  # of a traceback, the end says what was wrong
            lines += [f"    {line}" for line in (state.get("message") or "").strip().splitlines()[-MESSAGE_LINES:]]
    return lines
