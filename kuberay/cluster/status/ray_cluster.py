"""Status of a Ray cluster: its head, its slices, and what the operator could not create."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kuberay.cluster.manifests import Manifest, condition, is_true, labels
from kuberay.cluster.status import pods, slices
from kuberay.cluster.status.pods import slice_shape
from kuberay.cluster.status.slices import ReadyHosts, Slice
from kuberay.cluster.status.snapshot import Snapshot, one_line
from kuberay.cluster.status.state import Health, Phase
from ray_configs.cluster.labels import RAY_CLUSTER, RAY_GROUP, REPLICA_NAME


@dataclass(frozen=True)
class Count:
    """How many of the requested slices work; without slices, of the workers."""

    working: int
    requested: int
    word: str  # slices, workers

    def __str__(self) -> str:
        return f"{self.working} of {self.requested} {self.word}"

    def __add__(self, other: "Count") -> "Count":
        return Count(self.working + other.working, self.requested + other.requested, self.word)


@dataclass(frozen=True)
class RayClusterView:
    live: Manifest
    head: Slice
    slices: tuple[Slice, ...]
    refusals: tuple[Health, ...]  # what the operator could not create
    outdated: tuple[str, ...]  # Pods that differ from the spec

    @property
    def name(self) -> str:
        return self.live["metadata"]["name"]

    @property
    def problems(self) -> list[Health]:
        """Worst phase first; within a phase the head first, because everything else needs it."""
        parts = [*(part.problem() for part in (self.head, *self.slices)), *self.refusals]
        return sorted((found for found in parts if found is not None), key=lambda found: -found.phase)

    @property
    def lines(self) -> list[str]:
        return [f"Ray cluster {self.name}:", *(f"  {part.line()}" for part in (self.head, *self.slices))]

    def count(self, group: str | None = None) -> Count:
        """Of one group, or of all groups with TPUs (of all groups if none has TPUs)."""
        specs = [spec for spec in self.live["spec"].get("workerGroupSpecs") or [] if group in (None, spec["groupName"])]
        shaped = [spec for spec in specs if slice_shape(spec["template"]["spec"])]
        names = {spec["groupName"] for spec in shaped or specs}
        requested = sum(spec.get("replicas") or 0 for spec in shaped or specs)
        working = sum(part.works for part in self.slices if part.group in names)
        return Count(min(working, requested), requested, "slices" if shaped else "workers")


def view(live: Manifest, snapshot: Snapshot, needs: dict[str, ReadyHosts] | None = None) -> RayClusterView:
    """needs: by group, which hosts must be ready for a slice to work; the default is all of them."""
    heads = [pods.read(pod, snapshot) for pod in snapshot.ray_pods(live, "head")]
    best = min(heads, key=lambda state: state.phase, default=Health(Phase.STARTING, "has no Pod yet"))
    head = Slice("headgroup", 0, "", (best,), name="the head")
    parts = slices.of_ray_cluster(live, snapshot, needs or {})
    outdated = (*_forgotten(live, snapshot.ray_pods(live, "worker")), *_outdated(live, snapshot))
    return RayClusterView(live, head, tuple(parts), tuple(refusals(live, snapshot)), outdated)


def _forgotten(live: Manifest, workers: Sequence[Manifest]) -> Iterator[str]:
    """Messages on multi-host slices that exist twice after an upgrade from KubeRay 1.5."""
    name = live["metadata"]["name"]
    for group in sorted({labels(pod).get(RAY_GROUP, "") for pod in workers}):
        if left := slices.forgotten([pod for pod in workers if labels(pod).get(RAY_GROUP) == group]):
            yield (
                f"{len(left)} Pods of group {group} are from an older operator: this one does not count them, has "
                "created the slices again beside them, and never deletes them. Once the new ones serve: kubectl delete "
                f"pods -l '{RAY_CLUSTER}={name},{RAY_GROUP}={group},!{REPLICA_NAME}'"
            )


def _outdated(live: Manifest, snapshot: Snapshot) -> Sequence[str]:
    """Pods older than the spec: an upgraded operator updates the Ray cluster's spec and leaves the Pods alone."""
    spec = live["spec"]
    templates = {"headgroup": spec["headGroupSpec"]["template"]} if "headGroupSpec" in spec else {}
    templates |= {group["groupName"]: group["template"] for group in spec.get("workerGroupSpecs") or []}
    found: Counter[str] = Counter()
    for pod in [*snapshot.ray_pods(live, "head"), *snapshot.ray_pods(live, "worker")]:
        group = labels(pod).get(RAY_GROUP, "")
        made = {container["name"]: container for container in pod["spec"].get("containers", [])}
        for container in templates.get(group, {}).get("spec", {}).get("containers", []):
            has, wants = made.get(container["name"], {}).get("image"), container.get("image")
            if has != wants:
                found[f"{'the head' if group == 'headgroup' else f'group {group}'}: {has}, its spec says {wants}"] += 1
    return [
        f"its Pods are older than its spec ({count} of {words}): a replaced Pod gets the new image; "
        "apply --recreate replaces all"
        for words, count in found.items()
    ]


def refusals(live: Manifest, snapshot: Snapshot) -> Sequence[Health]:
    """Pods that the operator could not create, often because a webhook denied them."""
    if is_true(live, "ReplicaFailure"):
        message = one_line(condition(live, "ReplicaFailure").get("message"))
        return [Health(Phase.TROUBLE, f"the operator cannot create or delete Pods: {message}")]
    if (warning := snapshot.events.last_warning(live)) is not None:
        return [Health(Phase.TROUBLE, f"the operator says {warning.get('reason')}: {one_line(warning.get('message'))}")]
    return []


def read(live: Manifest, snapshot: Snapshot) -> tuple[Health, list[str]]:
    """A RayCluster that belongs to no RayService or RayJob."""
    seen = view(live, snapshot)
    worst = next(iter(seen.problems), None)
    verdict = opening(worst) if worst else Health(Phase.READY, f"is ready: {seen.count()} up")
    return verdict, [*seen.outdated, *seen.lines]


def opening(found: Health) -> Health:
    """The verdict on something that does not come up because of this problem."""
    words = {Phase.TROUBLE: "does not come up", Phase.WAITING: "waits for capacity"}
    return Health(max(Phase.STARTING, found.phase), f"{words.get(found.phase, 'is starting')}: {found.text}")
