"""RayJobs and Jobs in words: waiting, at work, ended well or badly, and why."""

from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.status import pods, ray_cluster, slices
from kuberay.cluster.status.events import one_line, since
from kuberay.cluster.status.queueing import DELETED, UNSEEN, held
from kuberay.cluster.status.ray_cluster import opening
from kuberay.cluster.status.state import Finding, Phase, Step, Workload
from kuberay.cluster.status.surroundings import Surroundings


def read_ray_job(live: Manifest, around: Surroundings) -> Workload:
    name = live["metadata"]["name"]
    views = [ray_cluster.view(item, around) for item in around.ray_clusters_of(live)]
    submitters = [pods.read(pod, around) for pod in around.pods_of_job(name)]
    findings = [found for view in views for found in view.findings]
    findings += [
        Finding(Phase.TROUBLE, f"the submitter {state.words}") for state in submitters if state.step == Step.ERROR
    ]
    phase, verdict = _ray_job_verdict(live, max(findings, key=lambda found: found.phase, default=None), around)
    details = [line for view in views for line in view.lines]
    details += [f"submitter {state.words}" for state in submitters]
    return Workload("RayJob", name, phase, f"{name} {verdict}", tuple(details))


def _ray_job_verdict(live: Manifest, found: Finding | None, around: Surroundings) -> tuple[Phase, str]:
    status = live.get("status") or {}
    reason, message = status.get("reason", ""), one_line(status.get("message"))
    why = ": ".join(part for part in (reason, message) if part) or "no reason given"
    if live["metadata"].get("deletionTimestamp"):
        return DELETED
    match status.get("jobDeploymentStatus", ""):
        case "Complete" if status.get("jobStatus") == "SUCCEEDED":
            return Phase.DONE, f"has succeeded{since(status.get('endTime'))}"
        case "Complete" if status.get("jobStatus") == "STOPPED":
            return Phase.FAILED, f"was stopped before it ended ({why})"
        case "Failed" | "Complete":
            return Phase.FAILED, f"has failed ({why})"
        case "ValidationFailed":
            return Phase.FAILED, f"was refused by the operator: {message or reason}"
    if (verdict := held(live, around)) is not None:
        return verdict
    match status.get("jobDeploymentStatus", ""):
        case "Running" if found is not None and found.phase >= Phase.WAITING:
            return found.phase, f"runs ({status.get('jobStatus') or 'PENDING'}), but {found.text}"
        case "Running":
            return Phase.RUNNING, f"runs ({status.get('jobStatus') or 'PENDING'}){since(status.get('startTime'))}"
        case "Retrying":
            return Phase.STARTING, f"has failed {status.get('failed', 1)} times and is tried again ({why})"
        case "Waiting":
            return Phase.STARTING, "waits for its entrypoint to be submitted (interactive mode)"
        case "":
            return UNSEEN
    if found is not None:
        return found.phase, opening(found)
    return Phase.STARTING, "is starting: its Ray cluster is up, and the job is being submitted"


def read_job(live: Manifest, around: Surroundings) -> Workload:
    name = live["metadata"]["name"]
    mine = around.pods_of_job(name)
    whole = slices.of_job(live, mine, around)
    failed = [pods.read(pod, around) for pod in mine if pod["status"].get("phase") == "Failed"]
    phase, verdict = _job_verdict(live, whole.finding(), around)
    if phase == Phase.FAILED and failed:
        verdict += f"; its last Pod {failed[-1].words}"
    details = [whole.line(), *(f"Pod {state.name} {state.words}" for state in failed)]
    return Workload("Job", name, phase, f"{name} {verdict}", tuple(details))


def _job_verdict(live: Manifest, found: Finding | None, around: Surroundings) -> tuple[Phase, str]:
    status = live.get("status") or {}
    wanted = live["spec"].get("completions") or live["spec"].get("parallelism") or 1
    done = f"{status.get('succeeded', 0)} of {wanted} completions"
    if live["metadata"].get("deletionTimestamp"):
        return DELETED
    if is_true(live, "Complete"):
        return Phase.DONE, f"has succeeded ({done}){since(status.get('completionTime'))}"
    for kind in ("Failed", "FailureTarget"):
        if is_true(live, kind):
            why = condition(live, kind)
            return Phase.FAILED, f"has failed ({why.get('reason')}: {one_line(why.get('message'))})"
    if (verdict := held(live, around)) is not None:
        return verdict
    if found is not None and found.phase >= Phase.WAITING:
        return found.phase, opening(found)
    if status.get("active"):
        failures = f", {status['failed']} Pods have failed so far" if status.get("failed") else ""
        if found is not None and status.get("ready", 0) == 0:
            return found.phase, f"{opening(found)}{failures}"
        return Phase.RUNNING, f"runs ({done}{failures}){since(status.get('startTime'))}"
    return Phase.STARTING, "is applied, and has no Pod yet"
