"""A namespace's objects that explain the state of a workload: Ray clusters, Pods, events and Kueue's queue entries."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from kuberay.cluster.connection import Cluster
from kuberay.cluster.errors import UnknownKind
from kuberay.cluster.manifests import Manifest, labels
from ray_configs.cluster.labels import JOB_NAME, ORIGIN_KIND, ORIGIN_NAME, QUEUE, RAY_CLUSTER, RAY_NODE_TYPE


class Events:
    """Kubernetes events by the uid of the object, latest first."""

    def __init__(self, events: Iterable[Manifest]):
        self._of: dict[str, list[Manifest]] = defaultdict(list)
        for event in sorted(events, key=when, reverse=True):
            self._of[event.get("involvedObject", {}).get("uid", "")].append(event)

    def last(self, about: Manifest, *reasons: str) -> Manifest | None:
        """The latest event of one of these reasons."""
        return next((event for event in self._about(about) if event.get("reason") in reasons), None)

    def last_warning(self, about: Manifest) -> Manifest | None:
        """The latest event if it is a warning; an older warning is out of date."""
        events = self._about(about)
        return events[0] if events and events[0].get("type") == "Warning" else None

    def _about(self, about: Manifest) -> list[Manifest]:
        return self._of.get(about["metadata"].get("uid", "?"), [])


@dataclass(frozen=True)
class Snapshot:
    ray_clusters: tuple[Manifest, ...] = ()
    pods: tuple[Manifest, ...] = ()
    events: Events = field(default_factory=lambda: Events(()))
    queue_entries: tuple[Manifest, ...] | None = ()  # Kueue's Workloads; None: Kueue is not installed

    def ray_clusters_of(self, live: Manifest) -> list[Manifest]:
        """Ray clusters that the operator created for a RayService or RayJob, or that a RayJob selects; oldest first."""
        if live["kind"] == "RayCluster":
            return [live]
        selected = (live["spec"].get("clusterSelector") or {}).get(RAY_CLUSTER)
        origin = (live["metadata"]["name"], live["kind"])
        mine = [
            item
            for item in self.ray_clusters
            if item["metadata"]["name"] == selected
            or (labels(item).get(ORIGIN_NAME), labels(item).get(ORIGIN_KIND)) == origin
        ]
        return sorted(mine, key=lambda item: item["metadata"].get("creationTimestamp") or "")

    def ray_pods(self, ray_cluster: Manifest, kind: str) -> list[Manifest]:
        """The cluster's Pods of a node type, `head` or `worker`."""
        wanted = (ray_cluster["metadata"]["name"], kind)
        return [pod for pod in self.pods if (labels(pod).get(RAY_CLUSTER), labels(pod).get(RAY_NODE_TYPE)) == wanted]

    def pods_of_job(self, name: str) -> list[Manifest]:
        return [pod for pod in self.pods if labels(pod).get(JOB_NAME) == name]

    def queue_entry_of(self, owners: Iterable[Manifest]) -> Manifest | None:
        uids = {owner["metadata"]["uid"] for owner in owners}
        for entry in self.queue_entries or ():
            if any(owner.get("uid") in uids for owner in entry["metadata"].get("ownerReferences", [])):
                return entry
        return None


def take_snapshot(cluster: Cluster, namespace: str, live: Sequence[Manifest]) -> Snapshot:
    """Lists the objects for these live workloads of one namespace; the number of requests does not grow with Pods."""
    rays = any(item["kind"].startswith("Ray") for item in live)
    jobs = any(item["kind"] in ("Job", "RayJob") for item in live)
    owners = [label for label, there in ((RAY_CLUSTER, rays), (JOB_NAME, jobs)) if there]
    queued = any(QUEUE in labels(item) for item in live)
    return Snapshot(
        tuple(cluster.list("ray.io/v1", "RayCluster", namespace)) if rays else (),
        tuple(pod for label in owners for pod in cluster.list("v1", "Pod", namespace, labels=label)),
        Events(cluster.list("v1", "Event", namespace)),
        _queue_entries(cluster, namespace) if queued else (),
    )


def _queue_entries(cluster: Cluster, namespace: str) -> tuple[Manifest, ...] | None:
    try:
        return tuple(cluster.list("kueue.x-k8s.io/v1beta1", "Workload", namespace))
    except UnknownKind:
        return None


def when(event: Manifest) -> str:
    """The event's last time in RFC 3339, UTC, which sorts as text."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((time for time in times if time), default=event["metadata"].get("creationTimestamp") or "")


def since(timestamp: str | None) -> str:
    """` since Oct 3 02:14` in local time. Not an age, which would change the text at every look."""
    if not timestamp:
        return ""
    at = datetime.fromisoformat(timestamp).astimezone()
    return f" since {at:%b} {at.day} {at:%H:%M}"


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())
