"""What a Ray cluster lacks: its head, its slices, or what the operator could not make."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kuberay.cluster.manifests import Manifest, condition, is_true, labels
from kuberay.cluster.status import pods, slices
from kuberay.cluster.status.events import one_line
from kuberay.cluster.status.placement import slice_shape
from kuberay.cluster.status.slices import Slice, Works
from kuberay.cluster.status.state import Health, Phase
from kuberay.cluster.status.surroundings import Surroundings
from ray_configs.labels import RAY_CLUSTER, RAY_GROUP, REPLICA_NAME


@dataclass(frozen=True)
class Count:
    """How many of the slices that are asked for work; of the workers, where there is no slice."""

    working: int
    asked: int
    word: str  # slices, workers

    def __str__(self) -> str:
        return f"{self.working} of {self.asked} {self.word}"

    def __add__(self, other: "Count") -> "Count":
        return Count(self.working + other.working, self.asked + other.asked, self.word)


@dataclass(frozen=True)
class RayClusterView:
    live: Manifest
    head: Slice
    slices: tuple[Slice, ...]
    refusals: tuple[Health, ...]  # what the operator could not make
    outdated: tuple[str, ...]  # Pods that are not what the spec says

    @property
    def name(self) -> str:
        return self.live["metadata"]["name"]

    @property
    def problems(self) -> list[Health]:
        """The gravest first; of equally grave ones the head's, without which nothing else comes up."""
        parts = [*(part.problem() for part in (self.head, *self.slices)), *self.refusals]
        return sorted((found for found in parts if found is not None), key=lambda found: -found.phase)

    @property
    def lines(self) -> list[str]:
        return [f"Ray cluster {self.name}:", *(f"  {part.line()}" for part in (self.head, *self.slices))]

    def count(self, group: str | None = None) -> Count:
        """Over one group, or over all that have TPUs (all at all, where none has)."""
        specs = [spec for spec in self.live["spec"].get("workerGroupSpecs") or [] if group in (None, spec["groupName"])]
        shaped = [spec for spec in specs if slice_shape(spec["template"]["spec"])]
        names = {spec["groupName"] for spec in shaped or specs}
        asked = sum(spec.get("replicas") or 0 for spec in shaped or specs)
        working = sum(part.works for part in self.slices if part.group in names)
        return Count(min(working, asked), asked, "slices" if shaped else "workers")


def view(live: Manifest, around: Surroundings, when: dict[str, Works] | None = None) -> RayClusterView:
    """`when` says of a group when its slices work, where that is not: when all hosts are ready."""
    heads = [pods.read(pod, around) for pod in around.ray_pods(live, "head")]
    best = min(heads, key=lambda state: state.phase, default=Health(Phase.STARTING, "has no Pod yet"))
    head = Slice("headgroup", 0, "", (best,), name="the head")
    parts = slices.of_ray_cluster(live, around, when or {})
    outdated = (*_forgotten(live, around.ray_pods(live, "worker")), *_outdated(live, around))
    return RayClusterView(live, head, tuple(parts), tuple(refusals(live, around)), outdated)


def _forgotten(live: Manifest, workers: Sequence[Manifest]) -> Iterator[str]:
    """After an upgrade from KubeRay 1.5, slices of several hosts are there twice."""
    name = live["metadata"]["name"]
    for group in sorted({labels(pod).get(RAY_GROUP, "") for pod in workers}):
        if left := slices.forgotten([pod for pod in workers if labels(pod).get(RAY_GROUP) == group]):
            yield (
                f"{len(left)} Pods of group {group} are of an older operator: this one does not count them, has made "
                "the slices again beside them, and never ends them. Once the new ones serve: kubectl delete pods "
                f"-l '{RAY_CLUSTER}={name},{RAY_GROUP}={group},!{REPLICA_NAME}'"
            )


def _outdated(live: Manifest, around: Surroundings) -> Sequence[str]:
    """After an upgrade, the operator copies the RayService's present spec into its Ray cluster and leaves the Pods."""
    spec = live["spec"]
    templates = {"headgroup": spec["headGroupSpec"]["template"]} if "headGroupSpec" in spec else {}
    templates |= {group["groupName"]: group["template"] for group in spec.get("workerGroupSpecs") or []}
    found: Counter[str] = Counter()
    for pod in [*around.ray_pods(live, "head"), *around.ray_pods(live, "worker")]:
        group = labels(pod).get(RAY_GROUP, "")
        made = {container["name"]: container for container in pod["spec"].get("containers", [])}
        for container in templates.get(group, {}).get("spec", {}).get("containers", []):
            has, wants = made.get(container["name"], {}).get("image"), container.get("image")
            if has != wants:
                found[f"{'the head' if group == 'headgroup' else f'group {group}'}: {has}, its spec says {wants}"] += 1
    return [
        f"its Pods are older than its spec ({count} of {words}): a Pod that is replaced comes up with the new one; "
        "apply --recreate replaces all"
        for words, count in found.items()
    ]


def refusals(live: Manifest, around: Surroundings) -> Sequence[Health]:
    """Pods that the operator could not make, often because a webhook denied them."""
    if is_true(live, "ReplicaFailure"):
        said = one_line(condition(live, "ReplicaFailure").get("message"))
        return [Health(Phase.TROUBLE, f"the operator cannot make or delete Pods: {said}")]
    if (warning := around.events.last_warning(live)) is not None:
        return [Health(Phase.TROUBLE, f"the operator says {warning.get('reason')}: {one_line(warning.get('message'))}")]
    return []


def read(live: Manifest, around: Surroundings) -> tuple[Health, list[str]]:
    """A RayCluster that stands alone."""
    seen = view(live, around)
    gravest = next(iter(seen.problems), None)
    verdict = opening(gravest) if gravest else Health(Phase.READY, f"is ready: {seen.count()} up")
    return verdict, [*seen.outdated, *seen.lines]


def opening(found: Health) -> Health:
    """The verdict on what the gravest problem keeps from coming up."""
    words = {Phase.TROUBLE: "does not come up", Phase.WAITING: "waits for capacity"}
    return Health(max(Phase.STARTING, found.phase), f"{words.get(found.phase, 'is starting')}: {found.text}")
