"""Scaling: Ray's autoscaler and multi-host slices, Kueue's queues, and jobs that keep their slices."""

from collections.abc import Iterator

from kuberay.check.manifests import Group, Manifest, RayCluster
from kuberay.check.rules import Problem, note, rule, warning
from ray_configs.capacity import KUEUE_VERSION
from ray_configs.cluster.labels import FLEX_START, PROVISIONING, QUEUE, QUEUED, SPOT, TPU
from ray_configs.cluster.workers import GROUP_LABEL

_PATIENCE = "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S"
_LAUNCHES = "AUTOSCALER_MAX_CONCURRENT_LAUNCHES"
_SCARCE = {FLEX_START: "flex-start", QUEUED: "queued", PROVISIONING: "provisioned", SPOT: "Spot"}
"""Node labels and taints of machines that may take long to get."""


def _is_set(cluster: RayCluster, name: str) -> bool:
    return any(item["name"].value == name for item in cluster.node["autoscalerOptions"]["env"])


@rule(Group, "autoscaler-multi-host", "Ray 2.60: autoscaler v2's scheduler; KubeRay 1.7: RayMultiHostIndexing")
def multi_host(group: Group) -> Iterator[Problem]:
    """Multi-host slices scale with autoscaler v2, and not from zero.

    See ray#39781 and ray#38595 (no scaling from zero for slice reservations), ray#48212 and kuberay#3552 (v1, or an
    old Ray, counts Pods instead of slices).
    """
    cluster, least = group.cluster, group.node["minReplicas"]
    if not (group.tpu and group.multi_host and cluster.autoscaling):
        return
    written, by_env = cluster.node["autoscalerOptions"]["version"], cluster.head.env.get("RAY_enable_autoscaler_v2")
    chosen = written.text or ("v2" if by_env and by_env.value in ("1", "true") else None)
    if chosen == "v1" or (chosen is None and (cluster.ray_version or (9,)) < (2, 47, 0)):
        why = (
            "autoscaler v1 finds the hosts of a slice by the Pod label replicaIndex, which the webhook no longer sets "
            "with KubeRay 1.6 and later: it removes parts of slices (kuberay#3552, ray#48212)"
        )
        yield warning(written, why, "write autoscalerOptions.version: v2, with Ray 2.47 or later")
        return
    if chosen is None:
        why = "leaves the autoscaler's version to Ray; only v2 scales multi-host slices as a whole"
        yield note(written, why, "write autoscalerOptions.version: v2")
    # With Podslice's CPU groups, a replica's process runs there and requests a whole slice at once.
    whole = any(not each.tpu and GROUP_LABEL in each.node["labels"].fields for each in cluster.groups)
    if group.least == 0 and not least.placeholder and not whole:
        why = (
            "scales to zero: what reserves a slice (slice_placement_group, ray.serve.llm with a topology) requests one "
            "host, its worker 0, and KubeRay's provider rounds one host of several down to no slice (ray#39781, "
            "ray#38595)"
        )
        instead = (
            "write minReplicas: 1 or more; or let a process on the head or on a CPU worker group request all hosts of "
            "a slice at once (a placement group, ray.autoscaler.sdk.request_resources)"
        )
        yield warning(least, why, instead)


@rule(Group, "autoscaler-patience", "Ray 2.60: autoscaler/v2, allocate_status_timeout_s; GKE: flex-start, Spot, queues")
def patience(group: Group) -> Iterator[Problem]:
    """Ray's autoscaler waits long enough for scarce machines. By default it deletes their Pods after an hour."""
    cluster, spec = group.cluster, group.pod.spec
    chosen = {*spec["nodeSelector"].fields, *(item["key"].text for item in spec["tolerations"])}
    way = next((way for key, way in _SCARCE.items() if key in chosen), None)
    if group.tpu and cluster.autoscaling and way and not _is_set(cluster, _PATIENCE):
        why = f"Pods of {group.name} may wait long for {way} machines: Ray's autoscaler deletes Pods after an hour"
        instead = f'add {_PATIENCE} with a value such as "604800" to autoscalerOptions.env'
        yield warning(cluster.node["autoscalerOptions"]["env"], why, instead)


@rule(Group, "autoscaler-launches", "Ray 2.60: AUTOSCALER_MAX_CONCURRENT_LAUNCHES; its KubeRay provider")
def launches(group: Group) -> Iterator[Problem]:
    """The autoscaler requests all hosts of a slice at once. Its default, ten at a time, never starts a larger slice."""
    hosts, cluster = group.hosts or 1, group.cluster
    grows = group.most is None or group.most > max(group.least, group.node["replicas"].number or 0)
    if group.tpu and cluster.autoscaling and hosts > 10 and grows and not _is_set(cluster, _LAUNCHES):
        why = f"a slice of {group.name} has {hosts} hosts, but Ray's autoscaler requests 10 at a time: it never grows"
        instead = f'add {_LAUNCHES} with a value such as "1000" to autoscalerOptions.env'
        yield warning(cluster.node["autoscalerOptions"]["env"], why, instead)


@rule(Manifest, "ray-job-leftover", "KubeRay 1.7: nothing is deleted by default")
def leftover(manifest: Manifest) -> Iterator[Problem]:
    """A finished RayJob deletes its cluster, which otherwise keeps its TPUs."""
    spec = manifest.ray_job
    if spec is None or TPU not in str(spec["rayClusterSpec"]["workerGroupSpecs"].value):
        return
    if spec["shutdownAfterJobFinishes"].value is not True and not spec["deletionStrategy"].present:
        why = "is not true: when the job has finished, its RayCluster stays, and you keep paying for the TPUs"
        yield warning(spec["shutdownAfterJobFinishes"], why, "write shutdownAfterJobFinishes: true")


@rule(Group, "kueue-toleration", "GKE: taint cloud.google.com/gke-queued of queued provisioning")
def queued_nodes(group: Group) -> Iterator[Problem]:
    """Nodes of queued provisioning have a taint of their own, which Kueue's flavor or the Pods must tolerate."""
    tolerations = group.pod.spec["tolerations"]
    tolerated = any(item["key"].value in (None, QUEUED) for item in tolerations)
    formed = group.pod.formed.present  # on machines that are there, not provisioned for it
    if group.cluster.manifest.metadata["labels"][QUEUE].present and group.tpu and not tolerated and not formed:
        why = f"does not tolerate {QUEUED}: unless the queue's flavor brings a toleration, the Pods stay Pending"
        yield note(tolerations, why, f"add a toleration with key {QUEUED}, operator Exists, effect NoSchedule")


@rule(
    Manifest,
    "kueue-service",
    "Kueue 0.17 and later: suspends rayClusterConfig; KubeRay 1.7 (kuberay#4841, kueue#11264)",
)
def queued_service(manifest: Manifest) -> Iterator[Problem]:
    """A RayService in a queue starts only with some versions of Kueue."""
    queue = manifest.metadata["labels"][QUEUE]
    if queue.present and manifest.ray and manifest.kind == "RayService":
        yield note(
            queue,
            "Kueue 0.17 and later suspend the RayCluster inside and never resume it, and KubeRay 1.7, 1.5 and 1.6.0 "
            "read that only at creation: the service never starts, unless a change creates a new cluster",
            f"install Kueue {KUEUE_VERSION} or older; with KubeRay 1.6.1 and 1.6.2 a newer one, which they follow, "
            "while they undo what an older one writes into the RayCluster",
        )
