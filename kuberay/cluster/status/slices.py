"""Groups Pods into slices. A slice works only when all of its hosts run."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import count

from kuberay.cluster.manifests import Manifest, labels
from kuberay.cluster.status import pods as pod_states
from kuberay.cluster.status.pods import slice_shape
from kuberay.cluster.status.snapshot import Snapshot
from kuberay.cluster.status.state import Health, Phase
from ray_configs.cluster.labels import HOST_INDEX, JOB_COMPLETION_INDEX, RAY_GROUP, REPLICA_INDEX, REPLICA_NAME

IDLE = "runs but serves nothing: no replica on it answers"


class ReadyHosts(Enum):
    """Which hosts of a slice, all running, must be ready for it to work."""

    ALL = "all"
    ONE = "one"  # KubeRay's probe queries the Serve proxy, which only the replica's host has
    NONE = "none"  # its replicas run elsewhere, so no host ever becomes ready


@dataclass(frozen=True)
class Slice:
    """`hosts[i]` is host i. Without TPUs a slice is one Pod, called a worker."""

    group: str
    index: int
    shape: str
    hosts: tuple[Health, ...]
    needs: ReadyHosts = ReadyHosts.ALL
    name: str = ""

    def count(self, *phases: Phase) -> int:
        return sum(host.phase in phases for host in self.hosts)

    @property
    def running(self) -> bool:
        return self.count(Phase.READY, Phase.RUNNING) == len(self.hosts)

    @property
    def idle(self) -> bool:
        return self.needs is ReadyHosts.ONE and self.running and not self.count(Phase.READY)

    @property
    def works(self) -> bool:
        ready = self.count(Phase.READY)
        if self.needs is ReadyHosts.ALL:
            return ready == len(self.hosts)
        return self.running and (ready > 0 or self.needs is ReadyHosts.NONE)

    def problem(self) -> Health | None:
        """Why this slice does not work, or None."""
        if self.works or all(host.phase == Phase.DONE for host in self.hosts):
            return None
        if self.idle:  # less urgent than any other problem
            return Health(Phase.RUNNING, f"{self._title} {IDLE}")
        worst = max(host.phase for host in self.hosts)
        return Health(max(Phase.STARTING, worst), f"{self._title} {self._words(worst)}")

    def line(self) -> str:
        title = f"{self._title} ({self.shape})" if self.shape else self._title
        if self.works:
            words = {ReadyHosts.ALL: "is ready", ReadyHosts.ONE: "serves", ReadyHosts.NONE: "is up"}
            return f"{title} {words[self.needs]}"
        if self.idle:
            return f"{title} {IDLE}"
        phases = sorted({host.phase for host in self.hosts} - {Phase.READY}, reverse=True)
        return f"{title}: {'; '.join(self._words(phase) for phase in phases)}"

    @property
    def _title(self) -> str:
        return self.name or f"{'slice' if self.shape else 'worker'} {self.index} of group {self.group}"

    def _words(self, phase: Phase) -> str:
        """The texts of the hosts in this phase, after "has 1 of 2 hosts up" if the slice has several."""
        texts: dict[str, list[int]] = defaultdict(list)
        for index, host in enumerate(self.hosts):
            if host.phase == phase:
                texts[host.text].append(index)
        if len(self.hosts) == 1:
            return next(iter(texts))
        if len(texts) == 1 and len(next(iter(texts.values()))) == len(self.hosts):
            return f"(each of its {len(self.hosts)} hosts) {next(iter(texts))}"
        up = self.count(Phase.READY, Phase.DONE, *([] if self.needs is ReadyHosts.ALL else [Phase.RUNNING]))
        hosts = "; ".join(f"{_hosts(indices)} {words}" for words, indices in texts.items())
        return f"has {up} of {len(self.hosts)} hosts up: {hosts}"


def _hosts(indices: Sequence[int]) -> str:
    if len(indices) == 1:
        return f"host {indices[0]}"
    if len(indices) > 2 and indices[-1] - indices[0] == len(indices) - 1:
        return f"hosts {indices[0]} to {indices[-1]}"
    return f"hosts {', '.join(map(str, indices))}"


def of_ray_cluster(ray_cluster: Manifest, snapshot: Snapshot, needs: dict[str, ReadyHosts]) -> list[Slice]:
    """The slices that the worker groups request, and any extra ones that exist."""
    pods = snapshot.ray_pods(ray_cluster, "worker")
    slices: list[Slice] = []
    for group in ray_cluster["spec"].get("workerGroupSpecs") or []:
        name, hosts = group["groupName"], group.get("numOfHosts") or 1
        placed: dict[int, dict[int, Manifest]] = defaultdict(dict)
        mine = [pod for pod in pods if labels(pod).get(RAY_GROUP) == name]
        uncounted = forgotten(mine)
        mine = [pod for pod in mine if pod not in uncounted]
        for number, pod in enumerate(sorted(mine, key=_age)):
            # Some operators do not number Pods: number them by age.
            index = int(labels(pod).get(REPLICA_INDEX, number // hosts))
            host = int(labels(pod).get(HOST_INDEX, 0 if hosts == 1 else number % hosts))
            # A terminating Pod does not hide its replacement.
            if host not in placed[index] or placed[index][host]["metadata"].get("deletionTimestamp"):
                placed[index][host] = pod
        # A removed slice leaves a gap in the indices, which the next one fills.
        free = (index for index in count() if index not in placed)
        absent = [next(free) for _ in range((group.get("replicas") or 0) - len(placed))]
        shape = slice_shape(group["template"]["spec"])
        for index in sorted([*placed, *absent]):
            there = placed.get(index, {})
            states = tuple(_state(there.get(host), snapshot) for host in range(hosts))
            slices.append(Slice(name, index, shape, states, needs.get(name, ReadyHosts.ALL)))
    return slices


def forgotten(pods: Sequence[Manifest]) -> list[Manifest]:
    """The Pods of a group that KubeRay before 1.6 created, if a newer version has created its own beside them.

    KubeRay 1.6 labels each multi-host slice with a name, and neither counts nor deletes Pods without that label.
    """
    named = [pod for pod in pods if REPLICA_NAME in labels(pod)]
    return [pod for pod in pods if REPLICA_NAME not in labels(pod)] if named else []


def of_job(job: Manifest, pods: Sequence[Manifest], snapshot: Snapshot) -> Slice:
    """A Job as one slice: completion indices are hosts. The newest Pod of an index counts."""
    hosts: dict[int, Manifest] = {}
    wanted = job["spec"].get("completions") or job["spec"].get("parallelism") or 1
    for number, pod in enumerate(sorted(pods, key=_age)):
        hosts[int(labels(pod).get(JOB_COMPLETION_INDEX, number if wanted > 1 else 0))] = pod
    states = tuple(_state(hosts.get(index), snapshot) for index in range(wanted))
    shape = slice_shape(job["spec"]["template"]["spec"])
    return Slice("", 0, shape, states, name="its slice" if shape else "its Pod" if wanted == 1 else "the job")


def _state(pod: Manifest | None, snapshot: Snapshot) -> Health:
    return Health(Phase.STARTING, "has no Pod yet") if pod is None else pod_states.read(pod, snapshot)


def _age(pod: Manifest) -> tuple[str, str]:
    return pod["metadata"].get("creationTimestamp") or "", pod["metadata"]["name"]
