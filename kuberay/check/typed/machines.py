"""Machines of a typed config: whether Pods fit on them, and whether they can be bought where they are asked for."""

import re
from collections.abc import Iterator

from kuberay.check.findings import Location
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.capacity import Reservation
from ray_configs.cluster.workers import CPU_POD_MEMORY_GB
from ray_configs.job import Job
from ray_configs.service import Service

_GB_PER_CPU = {"standard": 4.0, "highmem": 8.0, "highcpu": 1.0}
_OF_FAMILY = {
    "n1": {"standard": 3.75, "highmem": 6.5, "highcpu": 0.9},
    "c2": {"standard": 4.0},
    "c3": {"highcpu": 2.0},
    "c4": {"standard": 3.75, "highmem": 7.75, "highcpu": 2.0},
    "n4": {"highcpu": 2.0},
}
"""GiB of memory a vCPU, where a family differs."""
_MACHINE = re.compile(r"([a-z]\d[a-z]?)-(standard|highmem|highcpu)-(\d+)")
_DAEMONS_CPU, _DAEMONS_GIB = 0.4, 0.6
"""What GKE's own Pods on a node request: logging, metrics, DNS, the storage drivers."""


def allocatable(machine_type: str) -> tuple[float, float] | None:
    """CPUs and GiB of memory that a machine has left for Pods of ours; None for types that are not in the table.

    https://cloud.google.com/kubernetes-engine/docs/concepts/plan-node-sizes
    """
    match = _MACHINE.fullmatch(machine_type)
    if match is None:
        return None
    cpus, gib = int(match[3]), int(match[3]) * _OF_FAMILY.get(match[1], {}).get(match[2], _GB_PER_CPU[match[2]])
    reserved = 0.06 + 0.01 * (cpus > 1) + 0.005 * min(max(cpus - 2, 0), 2) + 0.0025 * max(cpus - 4, 0)
    left = gib - 0.1  # for eviction
    for share, of in ((0.25, 4.0), (0.2, 4.0), (0.1, 8.0), (0.06, 112.0), (0.02, float("inf"))):
        left -= share * min(gib, of)
        gib = max(gib - of, 0.0)
    return cpus - reserved - _DAEMONS_CPU, left - _DAEMONS_GIB


@rule(Service | Job, "machine-size", "GKE: what a node of the default pool has left for Pods")
def head_fits(config: Service | Job) -> Iterator[Problem]:
    """The Ray head and the CPU Pods fit on the machines of the default pool."""
    machine = config.cloud.head_machine_type
    room = allocatable(machine)
    if room is None:
        return
    pods: list[tuple[str, float, float]] = []
    if isinstance(config, Service) or config.ray:
        pods.append(("head", config.head.cpus, config.head.memory_gb))
    if isinstance(config, Service):
        for group in config.worker_groups:
            if group.slice is None:
                pods.append(("applications", group.cpu_pod_cpus, CPU_POD_MEMORY_GB))
    elif config.slice is None and not config.ray:
        pods.append(("cpus", config.cpus, config.memory_gb))
    for field, cpus, memory_gb in pods:
        gib = memory_gb * 1e9 / 2**30
        if cpus > room[0] or gib > room[1]:
            why = f"its Pod requests {cpus:g} CPUs and {gib:.3g} GiB; a {machine} has {room[0]:.3g} and {room[1]:.3g} "
            why += "left beside what GKE keeps: the Pod stays Pending"
            instead = "a smaller Pod, or a larger cloud.head_machine_type"
            yield error(_field(config, field), why, instead)


@rule(Service | Job, "reservation-zone", "Compute Engine: a reservation belongs to one zone")
def one_zone(config: Service | Job) -> Iterator[Problem]:
    """Slices of a reservation are asked for in its zone alone."""
    owners = config.applications if isinstance(config, Service) else (config,)
    for owner in owners:
        zones = getattr(owner, "zones", ()) or config.cloud.zones
        if len(zones) > 1 and isinstance(owner.capacity, Reservation):
            why = f"reservation {owner.capacity.name} is in one zone, and slices are spread over {', '.join(zones)}: "
            why += "the node pools of the others are refused"
            instead = "Application(zones=...) or cloud.zones with the reservation's zone alone"
            yield error(_field(config, "cloud.zones"), why, instead)
            return


@rule(Service | Job, "zone-region", "GKE: node pools are in zones of the cluster's region")
def zones_of_the_region(config: Service | Job) -> Iterator[Problem]:
    """Zones belong to the region of the cluster."""
    location = config.cloud.location
    region = location.rpartition("-")[0] if location[-1:].isalpha() else location
    own = [zone for app in config.applications for zone in app.zones] if isinstance(config, Service) else []
    for zone in dict.fromkeys([*config.cloud.zones, *own]):
        if re.fullmatch(r"[a-z]+-[a-z]+\d+-[a-z]", zone) and not zone.startswith(f"{region}-"):
            why = f"{zone} is not in {region}, the cluster's region: GKE refuses a node pool there"
            instead = f"a zone such as {region}-a, or cloud.location={zone.rpartition('-')[0]!r}"
            yield error(_field(config, "cloud.zones"), why, instead)


@rule(Service | Job, "operator-version", "GKE: the Ray operator's version comes with the cluster's")
def old_cluster(config: Service | Job) -> Iterator[Problem]:
    """A cluster for Ray is new enough for KubeRay 1.5.1, which was released when GKE 1.34 was the newest."""
    asked = re.match(r"1\.(\d+)", config.cloud.cluster_version or "")
    if asked and int(asked[1]) < 34 and (isinstance(config, Service) or config.ray):
        why = f"GKE {config.cloud.cluster_version} is older than KubeRay 1.5.1: its Ray operator drops the labels of "
        why += "worker groups and authOptions, so that slices are not found and the dashboard is open"
        instead = "cloud.cluster_version='1.34' or later, or None for the newest; create.sh asks the cluster itself"
        yield warning(_field(config, "cloud.cluster_version"), why, instead)


@rule(Service | Job, "maintenance-window", "GKE: without a window upgrades begin at any time")
def no_window(config: Service | Job) -> Iterator[Problem]:
    """Upgrades of the cluster, which restart slices, wait for a maintenance window."""
    cloud = config.cloud
    if cloud.maintenance is None:
        channel = cloud.release_channel or ("regular" if cloud.cluster_version else "rapid")  # gcloud's, or ours
        why = f"GKE may upgrade the cluster and restart its slices at any hour; the {channel} channel gets a version "
        why += "nearly every week" if channel == "rapid" else "every few weeks"
        place = _field(config, "cloud.maintenance")
        yield (warning if channel == "rapid" else note)(
            place, why, "MaintenanceWindow(start='00:00', days=('SA', 'SU'))"
        )


def _field(config: Service | Job, field: str) -> Location:
    """Where a config's field is."""
    return Location(f"{type(config).__name__}/{config.name} {field}")
