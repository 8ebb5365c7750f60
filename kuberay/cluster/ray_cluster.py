"""What a Ray cluster lacks: its head, its slices, or what the operator could not make."""

from dataclasses import dataclass

from kuberay.cluster import pods, queueing, slices
from kuberay.cluster.events import one_line
from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.slices import PHASES, Slice
from kuberay.cluster.state import Finding, Phase, PodState, Step, Workload
from kuberay.cluster.surroundings import Surroundings


@dataclass(frozen=True)
class RayClusterView:
    name: str
    head: PodState
    slices: tuple[Slice, ...]
    findings: tuple[Finding, ...]  # the gravest first

    @property
    def lines(self) -> list[str]:
        return [f"Ray cluster {self.name}:", f"  head {self.head.words}", *(f"  {item.line()}" for item in self.slices)]


def view(live: Manifest, around: Surroundings) -> RayClusterView:
    heads = [pods.read(pod, around.events, around.nodes) for pod in around.heads_of(live)]
    head = min(heads, key=lambda state: state.step, default=PodState("", Step.MISSING, "has no Pod yet"))
    parts = slices.of_ray_cluster(live, around.workers_of(live), around.events, around.nodes)
    findings = [found for part in parts if (found := part.finding()) is not None]
    if head.step != Step.READY:
        findings.insert(0, Finding(PHASES[head.step], f"the head {head.words}"))
    findings += _refusals(live, around)
    # Stable: of equally grave ones the first, which is the head's.
    return RayClusterView(
        live["metadata"]["name"], head, tuple(parts), tuple(sorted(findings, key=lambda found: -found.phase))
    )


def _refusals(live: Manifest, around: Surroundings) -> list[Finding]:
    """Pods that the operator could not make, often because a webhook denied them."""
    found: list[Finding] = []
    if is_true(live, "ReplicaFailure"):
        said = one_line(condition(live, "ReplicaFailure").get("message"))
        found.append(Finding(Phase.TROUBLE, f"the operator cannot make or delete Pods: {said}"))
    else:
        warning = around.events.last_warning(live)
        if warning is not None:
            found.append(
                Finding(Phase.TROUBLE, f"the operator says {warning['reason']}: {one_line(warning['message'])}")
            )
    return found


def read(live: Manifest, around: Surroundings) -> Workload:
    """A RayCluster that stands alone."""
    name = live["metadata"]["name"]
    seen = view(live, around)
    held = queueing.finding(live, around)

    def workload(phase: Phase, verdict: str) -> Workload:
        return Workload("RayCluster", name, phase, f"{name} {verdict}", tuple(seen.lines))

    if live["metadata"].get("deletionTimestamp"):
        return workload(Phase.DELETING, "is being deleted")
    if held is not None:
        return workload(held.phase, f"waits for quota: {held.text}")
    if live["spec"].get("suspend"):
        return workload(Phase.SUSPENDED, "is suspended")
    if seen.findings:
        return workload(seen.findings[0].phase, opening(seen.findings[0]))
    return workload(Phase.READY, f"is ready: {count(seen.slices)} up")


def opening(found: Finding) -> str:
    """How a verdict begins for the gravest finding."""
    words = {Phase.TROUBLE: "does not come up", Phase.WAITING: "waits for capacity"}
    return f"{words.get(found.phase, 'is starting')}: {found.text}"


def count(parts: tuple[Slice, ...]) -> str:
    """`2 of 2 slices`; groups without TPUs count where there is no other."""
    counted = [part for part in parts if part.shape] or list(parts)
    word = "slices" if any(part.shape for part in parts) else "workers"
    return f"{sum(part.running for part in counted)} of {len(counted)} {word}"
