"""Status of RayJobs and Jobs: waiting, running, succeeded or failed, and why."""

from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.status import pods, ray_cluster, slices
from kuberay.cluster.status.queueing import UNSEEN
from kuberay.cluster.status.ray_cluster import opening
from kuberay.cluster.status.snapshot import Snapshot, one_line, since
from kuberay.cluster.status.state import Health, Phase


def read_ray_job(live: Manifest, snapshot: Snapshot) -> tuple[Health, list[str]]:
    views = [ray_cluster.view(item, snapshot) for item in snapshot.ray_clusters_of(live)]
    submitters = [pods.read(pod, snapshot) for pod in snapshot.pods_of_job(live["metadata"]["name"])]
    problems = [found for view in views for found in view.problems]
    failed = [state for state in submitters if state.phase == Phase.TROUBLE]
    problems += [Health(state.phase, f"the submitter {state.text}") for state in failed]
    details = [line for view in views for line in view.lines] + [f"submitter {state.text}" for state in submitters]
    return _ray_job_verdict(live, max(problems, key=lambda found: found.phase, default=None)), details


def _ray_job_verdict(live: Manifest, found: Health | None) -> Health:
    status = live.get("status") or {}
    reason, message, job = status.get("reason", ""), one_line(status.get("message")), status.get("jobStatus")
    why = ": ".join(part for part in (reason, message) if part) or job or "no reason given"
    match status.get("jobDeploymentStatus", ""):
        case "Complete" if job == "SUCCEEDED":
            return Health(Phase.DONE, f"has succeeded{since(status.get('endTime'))}")
        case "Failed" | "Complete":
            return Health(Phase.FAILED, f"has failed ({why})")
        case "ValidationFailed":
            return Health(Phase.FAILED, f"was refused by the operator: {message or reason}")
        case "Running" if found is not None and found.phase >= Phase.WAITING:
            return Health(found.phase, f"runs ({job or 'PENDING'}), but {found.text}")
        case "Running":
            return Health(Phase.RUNNING, f"runs ({job or 'PENDING'}){since(status.get('startTime'))}")
        case "Retrying":
            times = status.get("failed", 1)
            return Health(Phase.STARTING, f"has failed {times} times and is being retried ({why})")
        case "Waiting":
            return Health(Phase.STARTING, "waits for its entrypoint to be submitted (interactive mode)")
        case "":
            return UNSEEN
    if found is not None:
        return opening(found)
    return Health(Phase.STARTING, "is starting: its Ray cluster is up, and the job is being submitted")


def read_job(live: Manifest, snapshot: Snapshot) -> tuple[Health, list[str]]:
    mine = snapshot.pods_of_job(live["metadata"]["name"])
    whole = slices.of_job(live, mine, snapshot)
    failed = [
        f"Pod {pod['metadata']['name']} {pods.read(pod, snapshot).text}"
        for pod in mine
        if pod["status"].get("phase") == "Failed"
    ]
    return _job_verdict(live, whole.problem(), failed), [whole.line(), *failed]


def _job_verdict(live: Manifest, found: Health | None, failed: list[str]) -> Health:
    status = live.get("status") or {}
    wanted = live["spec"].get("completions") or live["spec"].get("parallelism") or 1
    done = f"{status.get('succeeded', 0)} of {wanted} completions"
    if is_true(live, "Complete"):
        return Health(Phase.DONE, f"has succeeded ({done}){since(status.get('completionTime'))}")
    for kind in ("Failed", "FailureTarget"):
        if is_true(live, kind):
            why = condition(live, kind)
            last = f"; {failed[-1]}" if failed else ""
            return Health(Phase.FAILED, f"has failed ({why.get('reason')}: {one_line(why.get('message'))}){last}")
    if found is not None and found.phase >= Phase.WAITING:
        return opening(found)
    if status.get("active"):
        failures = f", {status['failed']} Pods have failed so far" if status.get("failed") else ""
        if found is not None and status.get("ready", 0) == 0:
            return Health(found.phase, f"{opening(found).text}{failures}")
        return Health(Phase.RUNNING, f"runs ({done}{failures}){since(status.get('startTime'))}")
    return Health(Phase.STARTING, "is applied, but has no Pod yet")
