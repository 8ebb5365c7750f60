"""Objects in a queue of Kueue: what its webhooks demand, and what the queue's nodes do."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Manifest
from kuberay.check.ray.jobs import job_spec
from kuberay.check.rules import Problem, error, note, rule
from ray_configs.capacity import KUEUE_VERSION

_QUEUE = "kueue.x-k8s.io/queue-name"


@rule(Cluster, "kueue-toleration", "GKE: taint cloud.google.com/gke-queued of queued provisioning")
def queued_nodes(cluster: Cluster) -> Iterator[Problem]:
    """Nodes of queued provisioning have a taint of their own, which Kueue's flavor or the Pods must tolerate."""
    if not cluster.manifest.metadata["labels"][_QUEUE].present:
        return
    for group in cluster.groups:
        tolerated = {item["key"].value for item in group.pod.spec["tolerations"]}
        if group.tpu and not tolerated & {None, "cloud.google.com/gke-queued"}:
            yield note(
                group.pod.spec["tolerations"],
                "does not tolerate cloud.google.com/gke-queued: where the queue's flavor is queued provisioning and "
                "brings no toleration itself, the Pods stay Pending beside their own nodes",
                "add a toleration with key cloud.google.com/gke-queued, operator Exists, effect NoSchedule",
            )


@rule(Manifest, "kueue", "Kueue: its webhooks for RayJob and RayCluster")
def kueue(manifest: Manifest) -> Iterator[Problem]:
    """What Kueue demands of the objects that it queues."""
    queue = manifest.metadata["labels"][_QUEUE]
    spec = job_spec(manifest)
    if not queue.present or not manifest.ray:
        return
    elastic = str(manifest.metadata["annotations"]["kueue.x-k8s.io/elastic-job"].value).lower() == "true"
    if spec is not None and not spec["shutdownAfterJobFinishes"].true and not spec["clusterSelector"].fields:
        yield error(
            spec["shutdownAfterJobFinishes"],
            "is not true: Kueue refuses a queued RayJob that keeps its quota after the end",
            "write shutdownAfterJobFinishes: true",
        )
    path = {"RayCluster": (), "RayService": ("rayClusterConfig",)}.get(manifest.kind, ("rayClusterSpec",))
    scaling = (manifest.spec if spec is None else spec).at(*path, "enableInTreeAutoscaling")
    if scaling.true and not elastic:
        yield error(
            scaling,
            "autoscaling in an object that Kueue queues: Kueue refuses it, it admits a fixed size",
            'take it out, or annotate kueue.x-k8s.io/elastic-job: "true"',
        )
    elif scaling.true:
        yield note(
            scaling,
            "Kueue admits what scales only with its feature gate ElasticJobsViaWorkloadSlices, off before 0.18",
            "turn the gate on, or take the autoscaler out",
        )


@rule(
    Manifest,
    "kueue-service",
    "Kueue 0.17 and later: suspends rayClusterConfig; KubeRay 1.7 (kuberay#4841, kueue#11264)",
)
def queued_service(manifest: Manifest) -> Iterator[Problem]:
    """A RayService in a queue starts with some versions of Kueue alone."""
    queue = manifest.metadata["labels"][_QUEUE]
    if not queue.present or not manifest.ray or manifest.kind != "RayService":
        return
    strategy = manifest.spec["upgradeStrategy"]["type"]
    never = (
        "and with upgradeStrategy None nothing else does" if strategy.value == "None" else "unless a new cluster does"
    )
    yield note(
        queue,
        "Kueue 0.17 and later suspend the RayCluster inside and never resume it; KubeRay 1.7, and 1.5 to 1.6.0, take "
        f"that over at the creation alone, {never}: the service never starts",
        f"install Kueue {KUEUE_VERSION} or an older one; with KubeRay 1.6.1 and 1.6.2 it is the other way round: they "
        "follow a newer Kueue, and undo what an older one writes into the RayCluster",
    )
