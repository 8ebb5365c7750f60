"""RayJobs that keep their slices, and objects in a queue of Kueue."""

from collections.abc import Iterator

from kuberay.check.manifests import Group, Manifest
from kuberay.check.rules import Problem, note, rule, warning
from ray_configs.capacity import KUEUE_VERSION
from ray_configs.labels import QUEUE, QUEUED, TPU


@rule(Manifest, "ray-job-leftover", "KubeRay 1.7: nothing is deleted by default")
def leftover(manifest: Manifest) -> Iterator[Problem]:
    """A finished RayJob keeps its cluster, TPUs and all, unless it is told otherwise."""
    spec = manifest.ray_job
    if spec is None or TPU not in str(spec["rayClusterSpec"]["workerGroupSpecs"].value):
        return
    if not spec["shutdownAfterJobFinishes"].true and not spec["deletionStrategy"].present:
        why = "is not true: when the job has finished, its RayCluster stays and goes on paying for the TPUs"
        yield warning(spec["shutdownAfterJobFinishes"], why, "write shutdownAfterJobFinishes: true")


@rule(Group, "kueue-toleration", "GKE: taint cloud.google.com/gke-queued of queued provisioning")
def queued_nodes(group: Group) -> Iterator[Problem]:
    """Nodes of queued provisioning have a taint of their own, which Kueue's flavor or the Pods must tolerate."""
    tolerations = group.pod.spec["tolerations"]
    tolerated = any(item["key"].value in (None, QUEUED) for item in tolerations)
    if group.cluster.manifest.metadata["labels"][QUEUE].present and group.tpu and not tolerated:
        why = (
            f"does not tolerate {QUEUED}: where the queue's flavor is queued provisioning and brings no toleration "
            "itself, the Pods stay Pending beside their own nodes"
        )
        yield note(tolerations, why, f"add a toleration with key {QUEUED}, operator Exists, effect NoSchedule")


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
