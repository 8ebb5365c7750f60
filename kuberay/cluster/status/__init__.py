"""Status in plain words: the first line is the verdict, the rest its reasons."""

import time
from collections.abc import Callable, Sequence

from kuberay.cluster.connection import Cluster
from kuberay.cluster.errors import ClusterError, Refused, UnknownKind
from kuberay.cluster.manifests import Manifest, title
from kuberay.cluster.status import jobs, ray_cluster, ray_service
from kuberay.cluster.status.queueing import held
from kuberay.cluster.status.snapshot import Snapshot, take_snapshot
from kuberay.cluster.status.state import Health, Phase, State, WorkloadStatus

LOOK_AGAIN_S = 2.0
FAILURES_IN_A_ROW = 10  # each after its own retries: some minutes
READERS: dict[str, Callable[[Manifest, Snapshot], tuple[Health, list[str]]]] = {
    "RayService": ray_service.read,
    "RayJob": jobs.read_ray_job,
    "RayCluster": ray_cluster.read,
    "Job": jobs.read_job,
}
"""By kind: the verdict on a live object, without regard to quota and suspension, and the details."""


def read(live: Manifest, snapshot: Snapshot) -> WorkloadStatus:
    """The verdict on a live object of one of these kinds."""
    verdict, details = READERS[live["kind"]](live, snapshot)
    if live["metadata"].get("deletionTimestamp"):
        verdict = Health(Phase.STARTING, "is being deleted")
    elif verdict.phase not in (Phase.DONE, Phase.FAILED):
        verdict = held(live, snapshot) or verdict
    return WorkloadStatus(verdict.phase, f"{live['metadata']['name']} {verdict.text}", tuple(details))


def observe(cluster: Cluster, objects: Sequence[Manifest]) -> State:
    """The state of these objects. Missing ones are part of it; raises ClusterError only if the cluster fails."""
    absent: list[WorkloadStatus] = []
    live: dict[str, list[Manifest]] = {}
    for manifest in sorted(objects, key=lambda item: item["kind"] not in READERS):
        lack = "is not applied"
        try:
            found = cluster.get(manifest)
        except UnknownKind as unknown:
            found, lack = None, f"{lack}: {unknown}"
        workload = manifest["kind"] in READERS
        if found is None:
            name = manifest["metadata"]["name"] if workload else title(manifest)
            absent.append(WorkloadStatus(Phase.ABSENT, f"{name} {lack}"))
        elif workload:
            live.setdefault(found["metadata"]["namespace"], []).append(found)
    there: list[WorkloadStatus] = []
    for namespace, items in live.items():
        snapshot = take_snapshot(cluster, namespace, items)
        there += [read(item, snapshot) for item in items]
    return State((*there, *absent))


def describe(state: State) -> list[str]:
    """Lines to print. The first is the verdict on the workload in the worst phase."""
    lines: list[str] = []
    for workload in sorted(state.workloads, key=lambda workload: -workload.phase):
        lines.append(f"{workload.verdict}.")
        lines += [f"  {line}" for line in workload.details]
    return lines or ["Everything is applied; no object is a workload."]


def watch(
    cluster: Cluster,
    objects: Sequence[Manifest],
    show: Callable[[list[str]], None],
    until_ready: bool = False,
    timeout_s: float | None = None,
) -> State:
    """Calls `show` with the description of the state at first and after each change; returns the last state.

    With until_ready it returns when everything is ready or something has failed for good (`state.failed`); without, it
    runs until timeout_s (None: forever) or Ctrl-C. Raises ClusterError if until_ready is not reached within timeout_s,
    or the cluster is unreachable for too long.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    shown: list[str] | None = None
    failures = 0
    while True:
        try:
            state = observe(cluster, objects)
        except Refused:
            raise
        except ClusterError:  # the control plane is being upgraded, or a laptop changes networks
            failures += 1
            if shown is None or failures == FAILURES_IN_A_ROW:
                raise
        else:
            failures = 0
            lines = describe(state)
            if lines != shown:
                shown = lines
                show(lines)
            if until_ready and (state.ready or state.failed):
                return state
        if deadline is not None and time.monotonic() >= deadline:
            if until_ready:
                raise ClusterError(f"Not ready after {timeout_s:g} s: {shown[0] if shown else ''}")
            return state
        time.sleep(LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, max(0.0, deadline - time.monotonic())))
