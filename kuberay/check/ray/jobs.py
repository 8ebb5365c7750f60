"""RayJobs and RayCronJobs: how they are submitted, when they end, and what is deleted then."""

import re
from collections.abc import Iterator
from itertools import pairwise

from kuberay.check.manifests import Manifest
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, nearest, note, rule, warning

_OPERATOR = "KubeRay 1.7: ValidateRayJobSpec"
_MODES = ("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode")


def job_spec(manifest: Manifest) -> Node | None:
    if not manifest.ray:
        return None
    return {"RayJob": manifest.spec, "RayCronJob": manifest.spec["jobTemplate"]}.get(manifest.kind)


@rule(Manifest, "ray-job-cluster", _OPERATOR)
def cluster_of_job(manifest: Manifest) -> Iterator[Problem]:
    """A RayJob makes a cluster or selects one."""
    spec = job_spec(manifest)
    if spec is None:
        return
    selector = spec["clusterSelector"].fields
    if not spec["rayClusterSpec"].present and not selector:
        yield error(
            spec["rayClusterSpec"],
            "has neither rayClusterSpec nor clusterSelector: the KubeRay operator refuses the RayJob",
            "write one of them",
        )
    if selector:
        if not spec["clusterSelector"]["ray.io/cluster"].value:
            yield error(
                spec["clusterSelector"],
                "names no cluster: the KubeRay operator refuses the RayJob",
                "write clusterSelector: {ray.io/cluster: <name of the RayCluster>}",
            )
        if spec["suspend"].true:
            yield error(
                spec["suspend"], "suspend beside clusterSelector: the KubeRay operator refuses it", "take suspend out"
            )
    submits = spec["submissionMode"].value != "InteractiveMode" and not spec["submitterPodTemplate"].present
    if spec["entrypoint"].value in (None, "") and submits:
        yield warning(
            spec["entrypoint"],
            "has no entrypoint: KubeRay submits an empty command, and the job fails",
            "write entrypoint: python program.py",
        )


@rule(Manifest, "ray-job-submission", _OPERATOR)
def submission(manifest: Manifest) -> Iterator[Problem]:
    """What each way of submitting allows."""
    spec = job_spec(manifest)
    if spec is None:
        return
    mode, retries = spec["submissionMode"], spec["backoffLimit"]
    if mode.text is not None and mode.text not in _MODES:
        yield error(
            mode,
            f"{mode.text} is no submission mode: KubeRay does nothing and the RayJob stays Initializing",
            f"write {nearest(mode.text, _MODES) or 'K8sJobMode'}, one of {', '.join(_MODES)}",
        )
    selected = bool(spec["clusterSelector"].fields)
    if mode.text == "SidecarMode":
        policy = spec.at("rayClusterSpec", "headGroupSpec", "template", "spec", "restartPolicy")
        for node in (spec["submitterPodTemplate"], spec["submitterConfig"]):
            if node.present:
                yield error(
                    node,
                    f"{node.path[-1]} with SidecarMode: the KubeRay operator refuses it",
                    f"take {node.path[-1]} out, or use K8sJobMode",
                )
        if selected:
            yield error(mode, "clusterSelector with SidecarMode: the KubeRay operator refuses it", "use K8sJobMode")
        if policy.text not in (None, "", "Never"):
            yield error(
                policy,
                f"the head's restartPolicy is {policy.value} with SidecarMode: the KubeRay operator refuses it",
                "write Never, or leave it out",
            )
    if (retries.number or 0) > 0 and (selected or mode.text == "InteractiveMode"):
        way = "clusterSelector" if selected else "InteractiveMode"
        yield error(retries, f"backoffLimit with {way}: the KubeRay operator refuses it", "write backoffLimit: 0")


@rule(Manifest, "ray-job-limits", _OPERATOR)
def limits(manifest: Manifest) -> Iterator[Problem]:
    """Deadlines are positive, retries and delays not negative."""
    spec = job_spec(manifest)
    if spec is None:
        return
    for key, least in (
        ("activeDeadlineSeconds", 1),
        ("preRunningDeadlineSeconds", 1),
        ("backoffLimit", 0),
        ("ttlSecondsAfterFinished", 0),
    ):
        value = spec[key].number
        if value is not None and value < least:
            yield error(spec[key], f"is {value}: the KubeRay operator refuses the RayJob", f"write {least} or more")
    shutdown = spec["shutdownAfterJobFinishes"].true
    if (spec["ttlSecondsAfterFinished"].number or 0) > 0 and not shutdown:
        yield error(
            spec["ttlSecondsAfterFinished"],
            "has no shutdownAfterJobFinishes: the KubeRay operator refuses a delay of a shutdown that is not asked for",
            "write shutdownAfterJobFinishes: true",
        )
    if spec["suspend"].true and not shutdown:
        yield error(
            spec["suspend"],
            "suspend needs shutdownAfterJobFinishes: true: the KubeRay operator refuses the RayJob",
            "write shutdownAfterJobFinishes: true",
        )


@rule(Manifest, "ray-job-leftover", "KubeRay 1.7: nothing is deleted by default")
def leftover(manifest: Manifest) -> Iterator[Problem]:
    """A finished RayJob keeps its cluster, TPUs and all, unless it is told otherwise."""
    spec = job_spec(manifest)
    if spec is None or not spec["rayClusterSpec"].present:
        return
    tpu = "google.com/tpu" in str(spec["rayClusterSpec"]["workerGroupSpecs"].value)
    if tpu and not spec["shutdownAfterJobFinishes"].true and not spec["deletionStrategy"].present:
        yield warning(
            spec["shutdownAfterJobFinishes"],
            "is not true: when the job has finished, its RayCluster stays "
            "and goes on holding (and paying for) the TPUs",
            "write shutdownAfterJobFinishes: true",
        )


@rule(Manifest, "deletion-strategy", "KubeRay 1.7: validateDeletionConfiguration, validateDeletionRules")
def deletion(manifest: Manifest) -> Iterator[Problem]:
    """What is deleted when the job ends: rules, or the older pair of policies."""
    spec = job_spec(manifest)
    if spec is None or not spec["deletionStrategy"].present:
        return
    strategy = spec["deletionStrategy"]
    legacy = [strategy[key] for key in ("onSuccess", "onFailure") if strategy[key].present]
    rules = list(strategy["deletionRules"])
    shutdown = spec["shutdownAfterJobFinishes"]
    if not legacy and not rules:
        yield error(strategy, "is empty: the CRD's schema refuses it", "write deletionRules, or take it out")
    if legacy and rules:
        yield error(
            legacy[0], "onSuccess and onFailure beside deletionRules: the CRD's schema refuses it", "keep deletionRules"
        )
    elif len(legacy) == 1:
        yield error(
            legacy[0], "only one of onSuccess and onFailure: the CRD's schema refuses it", "write deletionRules instead"
        )
    if rules and shutdown.true:
        yield error(
            shutdown,
            "shutdownAfterJobFinishes beside deletionRules: the KubeRay operator refuses it",
            "keep deletionRules, with ttlSeconds in each",
        )
    for policy in legacy:
        if shutdown.true and policy["policy"].value == "DeleteNone":
            yield error(
                policy["policy"],
                "DeleteNone beside shutdownAfterJobFinishes: the KubeRay operator refuses it",
                "keep one of them",
            )
    for policy in [*legacy, *rules]:
        yield from _policy(spec, policy["policy"])
    yield from _conditions(rules)


def _policy(spec: Node, policy: Node) -> Iterator[Problem]:
    if policy.value in ("DeleteCluster", "DeleteWorkers") and spec["clusterSelector"].fields:
        yield error(
            policy,
            f"{policy.value} of a cluster that the job only selects: the KubeRay operator refuses it",
            "write DeleteSelf or DeleteNone",
        )
    if policy.value == "DeleteWorkers" and spec["rayClusterSpec"]["enableInTreeAutoscaling"].true:
        yield error(
            policy,
            "DeleteWorkers with autoscaling: the KubeRay operator refuses it, the autoscaler would make them again",
            "write DeleteCluster",
        )


def _conditions(rules: list[Node]) -> Iterator[Problem]:
    order = ("DeleteWorkers", "DeleteCluster", "DeleteSelf")
    times: dict[tuple[str, str], dict[str, tuple[int, Node]]] = {}
    for entry in rules:
        condition = entry["condition"]
        given = [key for key in ("jobStatus", "jobDeploymentStatus") if condition[key].present]
        ttl = condition["ttlSeconds"]
        if len(given) != 1:
            yield error(
                condition,
                "needs jobStatus or jobDeploymentStatus, and not both: the CRD's schema refuses it",
                "write jobStatus: SUCCEEDED or FAILED",
            )
            continue
        if (ttl.number or 0) < 0:
            yield error(ttl, "is negative: the CRD's schema refuses it", "write 0 or more")
        seen = times.setdefault((given[0], str(condition[given[0]].value)), {})
        policy = str(entry["policy"].value)
        if policy in seen:
            yield error(
                entry["policy"],
                f"{policy} is said twice for {condition[given[0]].value}: the KubeRay operator refuses the RayJob",
                "keep one",
            )
        seen[policy] = (ttl.number or 0, ttl)
    for (_, status), seen in times.items():
        steps = [(name, *seen[name]) for name in order if name in seen]
        for (before, earlier, _), (after, later, node) in pairwise(steps):
            if later < earlier:
                yield error(
                    node,
                    f"on {status}, {after} after {later} s would come before {before} after {earlier} s: "
                    "the KubeRay operator refuses it",
                    f"write ttlSeconds: {earlier} or more",
                )


@rule(Manifest, "cron", "KubeRay 1.7: ValidateRayCronJobSpec")
def cron(manifest: Manifest) -> Iterator[Problem]:
    """A RayCronJob's schedule has five fields, and its time zone a field of its own."""
    if not manifest.ray or manifest.kind != "RayCronJob":
        return
    schedule, zone = manifest.spec["schedule"], manifest.spec["timeZone"]
    yield note(
        manifest.node["kind"],
        "RayCronJob needs the operator's feature gate RayCronJob, which is off in KubeRay 1.7",
        "turn the gate on, or use a CronJob that creates a RayJob",
    )
    if "TZ" in str(schedule.value):
        yield error(schedule, "a time zone in the schedule: the KubeRay operator refuses it", "write timeZone")
    elif not schedule.placeholder and not re.match(
        r"^(@\w+( \S+)?|(\S+\s+){4}\S+)$", str(schedule.value or "").strip()
    ):
        yield error(
            schedule,
            f"{schedule.value!r} is no cron schedule: the KubeRay operator refuses it",
            "write five fields, such as 0 3 * * *",
        )
    if zone.value == "":
        yield error(zone, "is empty: the KubeRay operator refuses it", "write a zone such as Etc/UTC, or take it out")
