"""A RayService in words: is it serving, and if not, what is the gravest reason."""

from typing import Any

from kuberay.cluster import queueing, ray_cluster
from kuberay.cluster.events import one_line
from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.ray_cluster import RayClusterView, count, opening
from kuberay.cluster.state import Finding, Phase, Workload
from kuberay.cluster.surroundings import Surroundings

APPLICATION = {
    "NOT_STARTED": (Phase.STARTING, "has not started"),
    "DEPLOYING": (Phase.STARTING, "is DEPLOYING: a replica is loading"),
    "DELETING": (Phase.STARTING, "is being deleted"),
    "UNHEALTHY": (Phase.TROUBLE, "is UNHEALTHY"),
    "DEPLOY_FAILED": (Phase.TROUBLE, "is DEPLOY_FAILED"),
}
DEPLOYMENT_PHASES = {"UNHEALTHY": Phase.TROUBLE, "DEPLOY_FAILED": Phase.TROUBLE}
MESSAGE_LINES = 15


def read(live: Manifest, around: Surroundings) -> Workload:
    name = live["metadata"]["name"]
    status = live.get("status") or {}
    views = {view.name: view for view in (ray_cluster.view(item, around) for item in around.ray_clusters_of(live))}
    sides = [status.get(side) or {} for side in ("activeServiceStatus", "pendingServiceStatus")]
    phase, verdict = _verdict(live, status, views, sides, around)
    details: list[str] = []
    for side in sides:
        details += _application_lines(side)
    for view in views.values():
        details += view.lines
    return Workload("RayService", name, phase, f"{name} {verdict}", tuple(details))


def _verdict(
    live: Manifest,
    status: dict[str, Any],
    views: dict[str, RayClusterView],
    sides: list[dict[str, Any]],
    around: Surroundings,
) -> tuple[Phase, str]:
    active, pending = sides
    serving = condition(live, "Ready")
    ready = serving.get("status") == "True" or (not serving and status.get("serviceStatus") == "Running")
    if live["metadata"].get("deletionTimestamp"):
        return Phase.DELETING, "is being deleted"
    if serving.get("reason") == "InitializingTimeout":
        said = one_line(serving.get("message"))
        return Phase.FAILED, f"took too long to start, and the operator gave up: {said}. Delete it and apply it again"
    if serving.get("reason") == "ValidationFailed":
        return Phase.FAILED, f"was refused by the operator: {one_line(serving.get('message'))}"
    held = queueing.finding(live, around)
    if held is not None:
        return held.phase, f"waits for quota: {held.text}"
    if live["spec"].get("suspend") or is_true(live, "Suspended") or is_true(live, "Suspending"):
        return Phase.SUSPENDED, "is suspended: nothing of it runs (spec.suspend)"
    if not status and not views:
        return _unseen(live, around)
    if status.get("observedGeneration", live["metadata"]["generation"]) < live["metadata"]["generation"]:
        return Phase.STARTING, "has been changed, and the operator has not looked at the change yet"
    if not ready:
        side = pending if pending.get("rayClusterName") in views else active
        side = side or {"rayClusterName": next(reversed(views), "")}
        found = _gravest(side, views)
        if found is not None:
            return found.phase, opening(found)
        if not side.get("applicationStatuses"):
            return Phase.STARTING, "is starting: its Pods are up, and Serve has not been given the applications yet"
        said = one_line(serving.get("message")) or "the operator does not say why"
        return Phase.STARTING, f"is starting: its Pods and applications run, and no Pod serves yet ({said})"
    return _ready_verdict(live, active, pending, views)


def _ready_verdict(
    live: Manifest, active: dict[str, Any], pending: dict[str, Any], views: dict[str, RayClusterView]
) -> tuple[Phase, str]:
    serving = views.get(active.get("rayClusterName", ""))
    served = f"{count(serving.slices)} serve" if serving is not None and serving.slices else "it serves"
    found = _gravest(active, views)
    for kind, what in (("RollbackInProgress", "rolled back"), ("UpgradeInProgress", "upgraded")):
        if is_true(live, kind):
            reason = _gravest(pending, views)
            routed = pending.get("trafficRoutedPercent")
            share = f", {routed} % of the traffic goes to the new cluster" if routed is not None else ""
            why = f": the new cluster {opening(reason)}" if reason is not None else ""
            return (
                max(Phase.STARTING, reason.phase if reason else Phase.STARTING),
                f"serves ({served}) and is being {what}{share}{why}",
            )
    if found is not None and found.phase >= Phase.WAITING:
        return Phase.READY, f"serves, but not with all it has ({served}): {found.text}"
    return Phase.READY, f"is ready: {served}"


def _unseen(live: Manifest, around: Surroundings) -> tuple[Phase, str]:
    warning = around.events.last_warning(live)
    if warning is not None:
        return Phase.TROUBLE, f"does not come up: the operator says {warning['reason']}: {one_line(warning['message'])}"
    return (
        Phase.STARTING,
        "is applied, and no operator has picked it up yet; if that stays, the Ray operator add-on is off or down",
    )


def _gravest(side: dict[str, Any], views: dict[str, RayClusterView]) -> Finding | None:
    """The reason that stands before the others: what is broken, then what waits, then what is on its way.

    Of equally grave ones the Pods' comes first, since applications cannot come up without them.
    """
    view = views.get(side.get("rayClusterName", ""))
    if view is None and side.get("rayClusterName"):
        return Finding(Phase.STARTING, f"its Ray cluster {side['rayClusterName']} is not there yet")
    found = [*(view.findings if view is not None else []), *_application_findings(side)]
    return max(found, key=lambda finding: finding.phase, default=None)


def _application_findings(side: dict[str, Any]) -> list[Finding]:
    found: list[Finding] = []
    for name, application in (side.get("applicationStatuses") or {}).items():
        phase, words = APPLICATION.get(application.get("status", ""), (Phase.READY, ""))
        deployments = [
            (deployment, DEPLOYMENT_PHASES.get(state.get("status", ""), Phase.STARTING), state)
            for deployment, state in (application.get("serveDeploymentStatuses") or {}).items()
            if state.get("status") not in ("HEALTHY", None)
        ]
        if phase == Phase.READY and not any(grave == Phase.TROUBLE for _, grave, _ in deployments):
            continue  # a deployment that scales under a running application is no news
        text = f"application {name} {words}".rstrip()
        if said := _last_line(application.get("message")):
            text += f" ({said})"
        for deployment, _, state in deployments:
            text += f"; deployment {deployment} is {state['status']}"
            if said := _last_line(state.get("message")):
                text += f": {said}"
        found.append(Finding(max([phase, *(grave for _, grave, _ in deployments)]), text))
    return found


def _application_lines(side: dict[str, Any]) -> list[str]:
    """Every application and deployment, with what they say in full where something is wrong."""
    lines: list[str] = []
    for name, application in (side.get("applicationStatuses") or {}).items():
        lines.append(f"application {name} is {application.get('status') or 'unknown'}")
        lines += _message(application, "RUNNING")
        for deployment, state in (application.get("serveDeploymentStatuses") or {}).items():
            lines.append(f"  deployment {deployment} is {state.get('status') or 'unknown'}")
            lines += _message(state, "HEALTHY")
    return lines


def _message(state: dict[str, Any], well: str) -> list[str]:
    """The end of it: of a traceback, the end says what was wrong."""
    if state.get("status") == well:
        return []
    return [f"    {line}" for line in (state.get("message") or "").strip().splitlines()[-MESSAGE_LINES:]]


def _last_line(message: str | None) -> str:
    lines = (message or "").strip().splitlines()
    return one_line(lines[-1]) if lines else ""
