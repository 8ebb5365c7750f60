"""Status in words, for a person at night: the first line is the verdict, the rest is what it rests on."""

from collections.abc import Callable, Sequence

from kuberay.cluster.connection import Cluster
from kuberay.cluster.errors import UnknownKind
from kuberay.cluster.manifests import Manifest, title
from kuberay.cluster.status import jobs, ray_cluster, ray_service
from kuberay.cluster.status.state import Phase, State, Workload
from kuberay.cluster.status.surroundings import Surroundings, look_around

READERS: dict[str, Callable[[Manifest, Surroundings], Workload]] = {
    "RayService": ray_service.read,
    "RayJob": jobs.read_ray_job,
    "RayCluster": ray_cluster.read,
    "Job": jobs.read_job,
}


def observe(cluster: Cluster, objects: Sequence[Manifest]) -> State:
    """How these objects stand now. What is not there is part of the answer; only a failing cluster raises."""
    workloads: list[Workload] = []
    missing: list[str] = []
    live: dict[str, list[Manifest]] = {}
    for manifest in objects:
        try:
            found = cluster.get(manifest)
            lack = "is not applied"
        except UnknownKind as unknown:
            found, lack = None, f"is not applied: {unknown}"
        if found is not None and manifest["kind"] in READERS:
            live.setdefault(found["metadata"]["namespace"], []).append(found)
        elif found is None and manifest["kind"] in READERS:
            name = manifest["metadata"]["name"]
            workloads.append(Workload(manifest["kind"], name, Phase.ABSENT, f"{name} {lack}"))
        elif found is None:
            missing.append(f"{title(manifest)} {lack}")
    for namespace, items in live.items():
        around = look_around(cluster, namespace, items)
        workloads += [READERS[item["kind"]](item, around) for item in items]
    return State(tuple(workloads), tuple(missing))


def describe(state: State) -> list[str]:
    """Lines to print. The first is the verdict on the workload that most needs a look."""
    workloads = sorted(state.workloads, key=lambda workload: -workload.phase)
    if not workloads:
        return [f"{item}." for item in state.missing] or ["Everything is applied; there is no workload among it."]
    lines: list[str] = []
    for workload in workloads:
        lines.append(f"{workload.verdict}.")
        lines += [f"  {line}" for line in workload.details]
    return lines + [f"{item}." for item in state.missing]
