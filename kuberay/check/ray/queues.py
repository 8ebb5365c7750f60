"""Objects in a queue of Kueue: what its webhooks demand, and what the queue's nodes do. Jobs that keep their slices."""

from collections.abc import Iterator

from kuberay.check.manifests import Group, Manifest
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.capacity import KUEUE_VERSION
from ray_configs.labels import ELASTIC_JOB, QUEUE, QUEUED, TPU


def _job_spec(manifest: Manifest) -> Node | None:
    if not manifest.ray:
        return None
    return {"RayJob": manifest.spec, "RayCronJob": manifest.spec["jobTemplate"]}.get(manifest.kind)


@rule(Manifest, "ray-job-leftover", "KubeRay 1.7: nothing is deleted by default")
def leftover(manifest: Manifest) -> Iterator[Problem]:
    """A finished RayJob keeps its cluster, TPUs and all, unless it is told otherwise."""
    spec = _job_spec(manifest)
    if spec is None or not spec["rayClusterSpec"].present:
        return
    tpu = TPU in str(spec["rayClusterSpec"]["workerGroupSpecs"].value)
    if tpu and not spec["shutdownAfterJobFinishes"].true and not spec["deletionStrategy"].present:
        why = "is not true: when the job has finished, its RayCluster stays and goes on paying for the TPUs"
        yield warning(spec["shutdownAfterJobFinishes"], why, "write shutdownAfterJobFinishes: true")


@rule(Group, "kueue-toleration", "GKE: taint cloud.google.com/gke-queued of queued provisioning")
def queued_nodes(group: Group) -> Iterator[Problem]:
    """Nodes of queued provisioning have a taint of their own, which Kueue's flavor or the Pods must tolerate."""
    tolerated = any(item["key"].value in (None, QUEUED) for item in group.pod.spec["tolerations"])
    queued = group.cluster.manifest.metadata["labels"][QUEUE].present
    if queued and group.tpu and not tolerated:
        yield note(
            group.pod.spec["tolerations"],
            "does not tolerate cloud.google.com/gke-queued: where the queue's flavor is queued provisioning and "
            "brings no toleration itself, the Pods stay Pending beside their own nodes",
            "add a toleration with key cloud.google.com/gke-queued, operator Exists, effect NoSchedule",
        )


@rule(Manifest, "kueue", "Kueue: its webhooks for RayJob and RayCluster")
def kueue(manifest: Manifest) -> Iterator[Problem]:
    """What Kueue demands of the objects that it queues."""
    spec = _job_spec(manifest)
    if not manifest.metadata["labels"][QUEUE].present or not manifest.ray:
        return
    if spec is not None and not spec["shutdownAfterJobFinishes"].true and not spec["clusterSelector"].fields:
        why = "is not true: Kueue refuses a queued RayJob that keeps its quota after the end"
        yield error(spec["shutdownAfterJobFinishes"], why, "write shutdownAfterJobFinishes: true")
    path = {"RayCluster": (), "RayService": ("rayClusterConfig",)}.get(manifest.kind, ("rayClusterSpec",))
    scaling = (manifest.spec if spec is None else spec).at(*path, "enableInTreeAutoscaling")
    elastic = str(manifest.metadata["annotations"][ELASTIC_JOB].value).lower() == "true"
    if scaling.true and not elastic:
        why = "autoscaling in an object that Kueue queues: Kueue refuses it, it admits a fixed size"
        yield error(scaling, why, 'take it out, or annotate kueue.x-k8s.io/elastic-job: "true"')
    elif scaling.true:
        why = "Kueue admits what scales only with its feature gate ElasticJobsViaWorkloadSlices, off before 0.18"
        yield note(scaling, why, "turn the gate on, or take the autoscaler out")


@rule(
    Manifest,
    "kueue-service",
    "Kueue 0.17 and later: suspends rayClusterConfig; KubeRay 1.7 (kuberay#4841, kueue#11264)",
)
def queued_service(manifest: Manifest) -> Iterator[Problem]:
    """A RayService in a queue starts with some versions of Kueue alone."""
    queue = manifest.metadata["labels"][QUEUE]
    if not queue.present or not manifest.ray or manifest.kind != "RayService":
        return
    never = manifest.spec["upgradeStrategy"]["type"].value == "None"
    unless = "and with upgradeStrategy None nothing else does" if never else "unless a new cluster does"
    yield note(
        queue,
        "Kueue 0.17 and later suspend the RayCluster inside and never resume it; KubeRay 1.7, and 1.5 to 1.6.0, take "
        f"that over at the creation alone, {unless}: the service never starts",
        f"install Kueue {KUEUE_VERSION} or an older one; with KubeRay 1.6.1 and 1.6.2 it is the other way round: they "
        "follow a newer Kueue, and undo what an older one writes into the RayCluster",
    )
