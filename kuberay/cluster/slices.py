"""Pods grouped into the slices that they make up: a slice works when all of its hosts do."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from kuberay.cluster import pods as pod_states
from kuberay.cluster.events import Events
from kuberay.cluster.manifests import Manifest
from kuberay.cluster.placement import slice_shape
from kuberay.cluster.state import Finding, Phase, PodState, Step

GROUP = "ray.io/group"
REPLICA_INDEX = "ray.io/worker-group-replica-index"
HOST_INDEX = "ray.io/replica-host-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"


@dataclass(frozen=True)
class Slice:
    """`hosts[i]` is host i. A group without TPUs has slices of one Pod, called workers."""

    name: str  # slice 0 of group tpu-v4-2x2x1
    shape: str
    hosts: tuple[PodState, ...]

    def count(self, *steps: Step) -> int:
        return sum(host.step in steps for host in self.hosts)

    @property
    def ready(self) -> bool:
        return self.count(Step.READY) == len(self.hosts)

    @property
    def running(self) -> bool:
        """Also with hosts that are not ready: hosts without a Serve proxy may never be, and serve all the same."""
        return self.count(Step.READY, Step.NOT_READY) == len(self.hosts)

    def finding(self) -> Finding | None:
        """What keeps this slice from working, or None."""
        if self.ready or all(host.step == Step.DONE for host in self.hosts):
            return None
        worst = max(host.step for host in self.hosts)
        return Finding(PHASES[worst], f"{self.name} {self._words(worst)}")

    def line(self) -> str:
        shape = f" ({self.shape})" if self.shape else ""
        if self.ready:
            return f"{self.name}{shape} is ready"
        words = {step: self._words(step) for step in sorted({host.step for host in self.hosts}, reverse=True)}
        told = "; ".join(text for step, text in words.items() if step != Step.READY)
        return f"{self.name}{shape}: {told}"

    def _words(self, step: Step) -> str:
        """What the hosts at this step say; "1 of 2 hosts up" where the slice is of several."""
        told: dict[str, list[int]] = defaultdict(list)
        for index, host in enumerate(self.hosts):
            if host.step == step:
                told[host.words].append(index)
        if len(self.hosts) == 1:
            return next(iter(told))
        if len(told) == 1 and len(next(iter(told.values()))) == len(self.hosts):
            return f"(each of its {len(self.hosts)} hosts) {next(iter(told))}"
        hosts = "; ".join(f"{_hosts(indices)} {words}" for words, indices in told.items())
        return f"has {self.count(Step.READY, Step.DONE)} of {len(self.hosts)} hosts up: {hosts}"


PHASES = {
    Step.DONE: Phase.RUNNING,
    Step.READY: Phase.RUNNING,
    Step.NOT_READY: Phase.STARTING,
    Step.CREATING: Phase.STARTING,
    Step.LEAVING: Phase.STARTING,
    Step.MISSING: Phase.STARTING,
    Step.GATED: Phase.WAITING,
    Step.NO_NODE: Phase.WAITING,
    Step.ERROR: Phase.TROUBLE,
}


def _hosts(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"host {indices[0]}"
    if len(indices) > 2 and indices[-1] - indices[0] == len(indices) - 1:
        return f"hosts {indices[0]} to {indices[-1]}"
    return f"hosts {', '.join(map(str, indices))}"


def of_ray_cluster(
    ray_cluster: Manifest, pods: Sequence[Manifest], events: Events, nodes: Sequence[Manifest] | None
) -> list[Slice]:
    """The slices that the worker groups ask for, and any that are there beyond that."""
    slices: list[Slice] = []
    for group in ray_cluster["spec"].get("workerGroupSpecs") or []:
        placed: dict[int, dict[int, Manifest]] = defaultdict(dict)
        hosts = group.get("numOfHosts") or 1
        mine = [pod for pod in pods if pod["metadata"]["labels"].get(GROUP) == group["groupName"]]
        for number, pod in enumerate(sorted(mine, key=_age)):
            labels = pod["metadata"]["labels"]
            # Operators that do not number Pods: in the order in which they were made.
            index = int(labels.get(REPLICA_INDEX, number // hosts))
            host = int(labels.get(HOST_INDEX, 0 if hosts == 1 else number % hosts))
            # A Pod on its way out does not hide the one that takes its place.
            if host not in placed[index] or placed[index][host]["metadata"].get("deletionTimestamp"):
                placed[index][host] = pod
        shape = slice_shape(group["template"]["spec"])
        for index in sorted({*placed, *range(group.get("replicas") or 0)}):
            states = tuple(_state(placed[index].get(host), events, nodes) for host in range(hosts))
            name = f"{'slice' if shape else 'worker'} {index} of group {group['groupName']}"
            slices.append(Slice(name, shape, states))
    return slices


def of_job(job: Manifest, pods: Sequence[Manifest], events: Events, nodes: Sequence[Manifest] | None) -> Slice:
    """A Job is one slice, and its completion indices are the hosts. The newest Pod of an index counts."""
    hosts: dict[int, Manifest] = {}
    for number, pod in enumerate(sorted(pods, key=_age)):
        labels = pod["metadata"]["labels"]
        hosts[int(labels.get(COMPLETION_INDEX, number if job["spec"].get("completions", 1) > 1 else 0))] = pod
    wanted = job["spec"].get("completions") or job["spec"].get("parallelism") or 1
    states = tuple(_state(hosts.get(index), events, nodes) for index in range(wanted))
    shape = slice_shape(job["spec"]["template"]["spec"])
    return Slice("its slice" if shape else "its Pod" if wanted == 1 else "the job", shape, states)


def _state(pod: Manifest | None, events: Events, nodes: Sequence[Manifest] | None) -> PodState:
    if pod is None:
        return PodState("", Step.MISSING, "has no Pod yet")
    return pod_states.read(pod, events, nodes)


def _age(pod: Manifest) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]
