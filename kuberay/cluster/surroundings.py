"""Everything in a namespace that explains a workload: its Ray clusters, Pods, events, nodes and queue entries."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kuberay.cluster.connection import Cluster
from kuberay.cluster.errors import Refused
from kuberay.cluster.events import Events
from kuberay.cluster.manifests import Manifest

ORIGIN_NAME, ORIGIN_KIND = "ray.io/originated-from-cr-name", "ray.io/originated-from-crd"
CLUSTER = "ray.io/cluster"
NODE_TYPE = "ray.io/node-type"
JOB = "batch.kubernetes.io/job-name"
KUEUE_WORKLOADS = (("kueue.x-k8s.io/v1beta2", "Workload"), ("kueue.x-k8s.io/v1beta1", "Workload"))


@dataclass(frozen=True)
class Surroundings:
    ray_clusters: tuple[Manifest, ...]
    pods: tuple[Manifest, ...]
    events: Events
    nodes: tuple[Manifest, ...] | None  # None: we may not list them
    queue_entries: tuple[Manifest, ...]  # Kueue's Workloads
    has_kueue: bool

    def ray_clusters_of(self, live: Manifest) -> list[Manifest]:
        """Those that the operator made for a RayService or RayJob, or that a RayJob selects; the oldest first."""
        if live["kind"] == "RayCluster":
            return [live]
        selected = (live["spec"].get("clusterSelector") or {}).get(CLUSTER)
        mine = [
            item
            for item in self.ray_clusters
            if item["metadata"]["name"] == selected
            or (
                item["metadata"].get("labels", {}).get(ORIGIN_NAME) == live["metadata"]["name"]
                and item["metadata"]["labels"].get(ORIGIN_KIND) == live["kind"]
            )
        ]
        return sorted(mine, key=lambda item: item["metadata"].get("creationTimestamp") or "")

    def workers_of(self, ray_cluster: Manifest) -> list[Manifest]:
        return self._ray_pods(ray_cluster, "worker")

    def heads_of(self, ray_cluster: Manifest) -> list[Manifest]:
        return self._ray_pods(ray_cluster, "head")

    def pods_of_job(self, name: str) -> list[Manifest]:
        return [pod for pod in self.pods if pod["metadata"]["labels"].get(JOB) == name]

    def queue_entry_of(self, owners: Iterable[Manifest]) -> Manifest | None:
        uids = {owner["metadata"]["uid"] for owner in owners}
        return next(
            (
                entry
                for entry in self.queue_entries
                if any(owner.get("uid") in uids for owner in entry["metadata"].get("ownerReferences", []))
            ),
            None,
        )

    def _ray_pods(self, ray_cluster: Manifest, kind: str) -> list[Manifest]:
        name = ray_cluster["metadata"]["name"]
        return [
            pod
            for pod in self.pods
            if pod["metadata"]["labels"].get(CLUSTER) == name and pod["metadata"]["labels"].get(NODE_TYPE) == kind
        ]


def look_around(cluster: Cluster, namespace: str, live: Sequence[Manifest]) -> Surroundings:
    """Lists what explains these live workloads of one namespace, with a handful of requests however many Pods."""
    by_operator = [item for item in live if item["kind"] in ("RayService", "RayJob")]
    ray_clusters = [item for item in live if item["kind"] == "RayCluster"]
    if by_operator:
        # RayJobs may select a cluster that no label of ours leads to.
        ray_clusters += [
            item
            for item in cluster.list("ray.io/v1", "RayCluster", namespace)
            if item["metadata"]["name"] not in {known["metadata"]["name"] for known in ray_clusters}
        ]
    names = {
        mine["metadata"]["name"]
        for item in live
        if item["kind"].startswith("Ray")
        for mine in Surroundings(tuple(ray_clusters), (), Events(()), None, (), False).ray_clusters_of(item)
    }
    jobs = {item["metadata"]["name"] for item in live if item["kind"] in ("Job", "RayJob")}
    pods = [
        pod
        for label, values in ((CLUSTER, names), (JOB, jobs))
        if values
        for pod in cluster.list("v1", "Pod", namespace, labels=f"{label} in ({','.join(sorted(values))})")
    ]
    entries: list[Manifest] = []
    kueue = queue_kind(cluster)
    if kueue is not None:
        entries = cluster.list(*kueue, namespace)
    return Surroundings(
        tuple(ray_clusters),
        tuple(pods),
        Events(cluster.list("v1", "Event", namespace)),
        _nodes(cluster),
        tuple(entries),
        kueue is not None,
    )


def queue_kind(cluster: Cluster) -> tuple[str, str] | None:
    """Kueue's Workload in the newest version that the cluster has; None without Kueue."""
    return next((kind for kind in KUEUE_WORKLOADS if cluster.knows(*kind)), None)


def _nodes(cluster: Cluster) -> tuple[Manifest, ...] | None:
    try:
        return tuple(cluster.list("v1", "Node", labels="cloud.google.com/gke-tpu-accelerator"))
    except Refused:  # many people may look into a namespace and not at the nodes
        return None
