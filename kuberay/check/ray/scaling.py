"""Slices that come and go: Ray's autoscaler and several hosts, objects in a queue of Kueue, jobs that keep theirs."""

from collections.abc import Iterator

from kuberay.check.manifests import Group, Manifest, RayCluster
from kuberay.check.rules import Problem, note, rule, warning
from ray_configs.capacity import KUEUE_VERSION
from ray_configs.cluster.workers import GROUP_LABEL
from ray_configs.labels import FLEX_START, PROVISIONING, QUEUE, QUEUED, SPOT, TPU

_PATIENCE = "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S"
_LAUNCHES = "AUTOSCALER_MAX_CONCURRENT_LAUNCHES"
_SCARCE = {FLEX_START: "flex-start", QUEUED: "queued", PROVISIONING: "provisioned", SPOT: "Spot"}
"""Node labels and taints of machines that come when there are any."""


def _told(cluster: RayCluster, name: str) -> bool:
    return any(item["name"].value == name for item in cluster.node["autoscalerOptions"]["env"])


@rule(Group, "autoscaler-multi-host", "Ray 2.60: autoscaler v2's scheduler; KubeRay 1.7: RayMultiHostIndexing")
def multi_host(group: Group) -> Iterator[Problem]:
    """Scaling slices of several hosts: atomic with v2 alone, and never from zero for a reservation.

    ray#39781, ray#38595 (no scaling from zero for slice reservations), ray#48212 and kuberay#3552 (v1, or an old Ray,
    counts Pods where it should count slices).
    """
    cluster, least = group.cluster, group.node["minReplicas"]
    if not (group.tpu and group.multi_host and cluster.autoscaling):
        return
    written, by_env = cluster.node["autoscalerOptions"]["version"], cluster.head.env.get("RAY_enable_autoscaler_v2")
    chosen = written.text or ("v2" if by_env and by_env.value in ("1", "true") else None)
    if chosen == "v1" or (chosen is None and (cluster.ray_version or (9,)) < (2, 47, 0)):
        why = (
            "autoscaler v1 tells the hosts of a slice by the Pod label replicaIndex, which the webhook no longer sets "
            "with KubeRay 1.6 and later: it removes parts of slices (kuberay#3552, ray#48212)"
        )
        yield warning(written, why, "write autoscalerOptions.version: v2, with Ray 2.47 or later")
        return
    if chosen is None:
        why = "leaves the autoscaler's version to Ray; slices of several hosts scale whole with v2 alone"
        yield note(written, why, "write autoscalerOptions.version: v2")
    # With Podslice's groups of CPUs a replica's process runs there, and asks for a whole slice at once.
    asked_for = any(not each.tpu and GROUP_LABEL in each.node["labels"].fields for each in cluster.groups)
    if group.least == 0 and not least.placeholder and not asked_for:
        why = (
            "scales to zero: what reserves a slice (slice_placement_group, ray.serve.llm with a topology) asks for one "
            "host, its worker 0, and KubeRay's provider rounds one host of several down to no slice (ray#39781, "
            "ray#38595)"
        )
        instead = (
            "write minReplicas: 1 or more; or let a process on the head or on a CPU worker group ask for all hosts of "
            "a slice at once (a placement group, ray.autoscaler.sdk.request_resources)"
        )
        yield warning(least, why, instead)


@rule(Group, "autoscaler-patience", "Ray 2.60: autoscaler/v2, allocate_status_timeout_s; GKE: flex-start, Spot, queues")
def patience(group: Group) -> Iterator[Problem]:
    """Machines that one waits for take longer than the hour after which Ray's autoscaler throws a Pod away."""
    cluster, spec = group.cluster, group.pod.spec
    chosen = {*spec["nodeSelector"].fields, *(item["key"].text for item in spec["tolerations"])}
    way = next((way for key, way in _SCARCE.items() if key in chosen), None)
    if group.tpu and cluster.autoscaling and way and not _told(cluster, _PATIENCE):
        why = f"Pods of {group.name} may wait long for {way} machines: Ray's autoscaler throws Pods away after an hour"
        instead = f'add {_PATIENCE} with a value such as "604800" to autoscalerOptions.env'
        yield warning(cluster.node["autoscalerOptions"]["env"], why, instead)


@rule(Group, "autoscaler-launches", "Ray 2.60: AUTOSCALER_MAX_CONCURRENT_LAUNCHES; its KubeRay provider")
def launches(group: Group) -> Iterator[Problem]:
    """The autoscaler asks for ten hosts at a time, which its KubeRay provider rounds down to no slice of more."""
    hosts, cluster = group.hosts or 1, group.cluster
    grows = group.most is None or group.most > max(group.least, group.node["replicas"].number or 0)
    if group.tpu and cluster.autoscaling and hosts > 10 and grows and not _told(cluster, _LAUNCHES):
        why = f"a slice of {group.name} has {hosts} hosts, and Ray's autoscaler asks for 10 at a time: it never grows"
        instead = f'add {_LAUNCHES} with a value such as "1000" to autoscalerOptions.env'
        yield warning(cluster.node["autoscalerOptions"]["env"], why, instead)


@rule(Manifest, "ray-job-leftover", "KubeRay 1.7: nothing is deleted by default")
def leftover(manifest: Manifest) -> Iterator[Problem]:
    """A finished RayJob keeps its cluster, TPUs and all, unless it is told otherwise."""
    spec = manifest.ray_job
    if spec is None or TPU not in str(spec["rayClusterSpec"]["workerGroupSpecs"].value):
        return
    if not spec["shutdownAfterJobFinishes"].true and not spec["deletionStrategy"].present:
        why = "is not true: when the job has finished, its RayCluster stays and goes on paying for the TPUs"
        yield warning(spec["shutdownAfterJobFinishes"], why, "write shutdownAfterJobFinishes: true")


@rule(
    Manifest,
    "kueue-service",
    "Kueue 0.17 and later: suspends rayClusterConfig; KubeRay 1.7 (kuberay#4841, kueue#11264)",
)
def queued_service(manifest: Manifest) -> Iterator[Problem]:
    """A RayService in a queue starts with some versions of Kueue alone."""
    queue = manifest.metadata["labels"][QUEUE]
    if queue.present and manifest.ray and manifest.kind == "RayService":
        yield note(
            queue,
            "Kueue 0.17 and later suspend the RayCluster inside and never resume it, and KubeRay 1.7, 1.5 and 1.6.0 "
            "read that at the creation alone: the service never starts, unless a change makes a new cluster",
            f"install Kueue {KUEUE_VERSION} or an older one; with KubeRay 1.6.1 and 1.6.2 it is the other way round: "
            "they follow a newer Kueue, and undo what an older one writes into the RayCluster",
        )
