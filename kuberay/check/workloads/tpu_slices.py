"""TPU slices: accelerator, topology, chips and hosts describe a slice that GKE sells and Ray can place."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import GENERATION_OF, RARE_ACCELERATORS, Group, Pod
from kuberay.check.rules import Problem, error, meant, note, rule, warning
from ray_configs.base import nearest
from ray_configs.capacity import Spot
from ray_configs.cluster.labels import (
    ACCELERATOR,
    COMPUTE_CLASS,
    FLEX_START,
    NODE_POOL,
    POOL_CAPACITY,
    RESERVATION,
    SPOT,
    TOPOLOGY,
    TPU,
)
from ray_configs.tpu import GENERATIONS

_GKE = "GKE's tables of TPU machine types and topologies"
_OTHER_NAMES = {
    name: machine.accelerator
    for generation in GENERATIONS.values()
    for machine in generation.machines
    for name in (machine.name, generation.name, generation.ray_name)
}
"""Accelerators by machine type and generation, whose names people write instead."""

_USUALLY_S, _LONGEST_S = Spot(shutdown_s=30).pods_s, Spot(shutdown_s=120).pods_s

_GENERATION = re.compile(r"tpu-?v?(\d+)")
_NEWEST = max(int(number[1]) for name in GENERATION_OF if (number := _GENERATION.match(name)))


@rule(Pod, "tpu-accelerator", _GKE)
def accelerator(pod: Pod) -> Iterator[Problem]:
    """The accelerator that the node selector names exists."""
    node, name = pod.accelerator, str(pod.accelerator.value)
    if not node.present or node.placeholder or name in GENERATION_OF or name in RARE_ACCELERATORS:
        return
    translated, choices = _OTHER_NAMES.get(name.lower()), [*GENERATION_OF, *RARE_ACCELERATORS]
    number = _GENERATION.match(name)
    if translated is None and number is not None and int(number[1]) >= _NEWEST:
        why = f"this check knows no accelerator {name}: it is newer than its tables, or misspelt"
        yield warning(node, why, "compare it with GKE's list of TPU accelerators; its slices were not checked")
        return
    otherwise = meant(name, choices, f"write one of {', '.join(GENERATION_OF)}")
    why = f"GKE labels no node with the accelerator {name}: the Pod stays Pending forever"
    yield error(node, why, f"write {translated}" if translated else otherwise)


@rule(Pod, "tpu-topology", _GKE)
def topology(pod: Pod) -> Iterator[Problem]:
    """The topology that the node selector names is sold for that accelerator."""
    node = pod.topology
    if not node.present or node.placeholder:
        return
    if pod.axes is None:
        why = f"{node.value!r} is not a topology: no GKE node has such a label, and the GKE TPU webhook cannot read it"
        yield error(node, why, "write chips along each axis, such as 2x4 or 2x2x1")
    elif pod.generation is not None and not pod.machines:
        sold, turned = pod.generation.topologies, "x".join(map(str, sorted(pod.axes)))
        likely = turned if turned in sold else nearest(str(node.value), sold)
        first = f"write {likely}, or another of" if likely else "write one of"
        more = " and larger ones" if len(sold) > 12 else ""
        why = f"GKE sells no {pod.accelerator.value} slice of {node.value}: the Pod stays Pending forever"
        yield error(node, why, f"{first} {', '.join(sold[:12])}{more}")


@rule(Pod, "tpu-chips", _GKE)
def chips(pod: Pod) -> Iterator[Problem]:
    """A Pod requests all chips of one machine of the slice."""
    if not pod.asks_tpu or any(container.chips.placeholder for container in pod.tpu_containers):
        return
    node, total, so = pod.tpu_containers[0].chips, pod.topology_chips or 0, "no node fits and the Pod stays Pending"
    sizes = " or ".join(str(machine.chips) for machine in pod.machines)
    if pod.chips is None:
        why = f"{node.value!r} is not a whole number of chips: the API server refuses the Pod"
        yield error(node, why, f"write {TPU} as 1, 4 or 8")
    elif pod.chips not in (1, 4, 8):
        why = f"no TPU machine type has {pod.chips} chips, so {so}"
        if total % pod.chips:
            why += f"; nor is {total} divisible by it: the GKE TPU webhook rounds down to {total // pod.chips} hosts"
        yield error(node, why, f"request {sizes or '1, 4 or 8'}, all chips of a host")
    elif pod.machines and pod.slice is None:
        partial = len(pod.machines) == 1 and total == pod.machines[0].chips and pod.chips < total
        idle = partial and pod.group is None
        if idle:
            so = "some chips stay idle, and the runtime may refuse part of a host"
        elif partial:
            so = "the GKE TPU webhook takes every Pod for a separate host, and JAX waits for hosts that do not exist"
        why = f"a host of {pod.accelerator.value} {pod.topology.value} has {sizes} chips, not {pod.chips}: {so}"
        yield (warning if idle else error)(node, why, f"request {sizes}, or choose another topology")


@rule(Group, "tpu-hosts", "GKE TPU webhook: checkWorkersMatchTopology")
def hosts(group: Group) -> Iterator[Problem]:
    """numOfHosts is the topology's chips divided by a host's; otherwise the webhook refuses the RayCluster."""
    pod, node, total = group.pod, group.node["numOfHosts"], group.pod.topology_chips
    if not group.tpu or pod.chips not in (1, 4, 8) or group.hosts is None or total is None or pod.misfit:
        return
    wanted = total // pod.chips or 1
    if wanted == group.hosts:
        return
    both = [f"{TPU} {m.chips} and numOfHosts {total // m.chips}" for m in pod.machines]
    sold = "; it is sold as " + " or ".join(both) if len(both) > 1 else ""
    why = (
        f"a slice of {pod.topology.value} with {pod.chips} chips a host has {wanted} host{'s' * (wanted > 1)}, not "
        f"{group.hosts}: the GKE TPU webhook refuses the RayCluster with 'Number of workers in worker group not equal "
        f"to specified topology'{sold}"
    )
    other = ", or the other size" if len(both) > 1 else ""
    counted = "; replicas are slices, not hosts" if group.node["replicas"].number == wanted > 1 else ""
    yield error(node, why, f"write numOfHosts: {wanted}{other}{counted}")


@rule(Group, "tpu-2x4", "Ray 2.60: chips per host in 2x4")
def ambiguous(group: Group) -> Iterator[Problem]:
    """Where 2x4 is sold as one host of 8 chips and as two of 4, Ray assumes one host."""
    two = len(group.pod.machines) > 1 and group.pod.chips == 4 and group.hosts == 2
    if group.tpu and two and not group.pod.formed.present:
        why = "is two hosts of 4 chips here; by default Ray takes 2x4 for one host of 8, and waits for that"
        yield note(group.pod.topology, why, "pass chips_per_vm=4 where the slice is reserved (ray.util.tpu)")


@rule(Group, "tpu-formed-slice", "GKE TPU webhook 1.4.0: slices formed when they are scheduled")
def formed(group: Group) -> Iterator[Problem]:
    """A slice that is formed within a larger one needs GKE 1.36, whose TPU webhook reads its topology."""
    if group.tpu and group.pod.formed.present:
        why = "a slice within a slice: the GKE TPU webhook reads this from 1.4.0 (GKE 1.36); an older one refuses it"
        yield note(group.pod.formed, why, "run it on GKE 1.36 or later")


@rule(Pod, "tpu-selectors", "GKE TPU webhook; GKE Autopilot; Ray 2.60's autoscaler")
def selectors(pod: Pod) -> Iterator[Problem]:
    """A Pod with chips selects accelerator and topology, unless something else chooses its nodes."""
    worker = pod.role == "worker"
    chosen = (
        pod.formed.present
        or bool({COMPUTE_CLASS, NODE_POOL} & set(pod.spec["nodeSelector"].fields))
        or pod.spec["affinity"]["nodeAffinity"].present
    )
    if not pod.asks_tpu:
        unmeant = worker or (not pod.tolerates_tpu and pod.role not in ("head", "submitter"))
        if pod.topology.present and unmeant and pod.containers:
            why = f"selects TPU nodes, but no container requests {TPU}: these nodes are tainted, the Pod stays Pending"
            yield warning(pod.topology, why, f"write {TPU} under resources.limits, or remove the selectors")
        return
    if not worker and chosen:
        return
    requests = "requests TPU chips without the node selector"
    autopilot = "GKE Autopilot refuses the Pod, and Standard takes"
    if not pod.topology.present:
        so = "the GKE TPU webhook refuses the Pod" if worker else f"{autopilot} any TPU node with free chips"
        say = error if worker else warning
        yield say(pod.topology, f"{requests} {TOPOLOGY}: {so}", f"write {TOPOLOGY}: the slice's, such as 2x4")
    if not pod.accelerator.present:
        ray = ", and Ray's autoscaler does not know the slice's head resource" if worker else ""
        say = error if worker and not chosen else warning
        instead = f"write {ACCELERATOR}: one of {', '.join(GENERATION_OF)}"
        yield say(pod.accelerator, f"{requests} {ACCELERATOR}: {autopilot} any generation{ray}", instead)


@rule(Group, "ray-topology", "Ray 2.60: VALID_TPU_TOPOLOGY; its autoscaler's map of accelerators")
def ray_topology(group: Group) -> Iterator[Problem]:
    """Ray knows the topology, which it needs to reserve the slice, and the accelerator, which it needs to scale it."""
    slice, instead = group.pod.slice, "choose another slice for Ray, or run the workload as a Kubernetes Job"
    if group.pod.formed.present:
        return  # within a larger slice Ray places by chip coordinates, not by its list of topologies
    if group.tpu and group.pod.accelerator.text == "tpu7":
        why = "Ray 2.60 knows no generation tpu7: it cannot label or reserve its slices"
        yield warning(group.pod.accelerator, why, "write tpu7x, or run the workload as a Kubernetes Job")
    elif group.tpu and slice is not None and (refusal := slice.ray_refusal):
        if "autoscaler" not in refusal:
            why = f"{refusal}: Ray's slice reservation raises ValueError; plain TPU resources still work"
            yield warning(group.pod.topology, why, instead)
        elif group.cluster.autoscaling:
            yield warning(group.pod.accelerator, f"{refusal}: it never adds such hosts", instead)


@rule(Pod, "tpu-capacity", "GKE: what Spot, flex-start and reservations sell")
def capacity(pod: Pod) -> Iterator[Problem]:
    """A Pod selects one kind of capacity, and flex-start offers its machine type."""
    selector = pod.spec["nodeSelector"]
    ways = {key: selector[key] for key in (SPOT, FLEX_START, RESERVATION)}
    chosen = {key: way for key, way in ways.items() if way.value not in (None, "false", False)}
    if len(chosen) > 1:
        why = f"selects nodes with {' and '.join(chosen)}: no node has both, the Pod stays Pending"
        yield error(list(chosen.values())[-1], why, "keep one of them")
    if FLEX_START in chosen and pod.generation is not None:
        machine = pod.slice.machine if pod.slice else pod.generation.multi_host_machine
        if not machine.dynamic_workload_scheduler:
            why = f"flex-start does not sell {machine.name}: no node can have this label, the Pod stays Pending"
            instead = "use Spot, a reservation or on-demand nodes, or another generation such as v5e or v6e"
            yield error(chosen[FLEX_START], why, instead)


@rule(Pod, "spot-shutdown", "GKE: Spot VMs; node system configuration, shutdownGracePeriodSeconds")
def spot_shutdown(pod: Pod) -> Iterator[Problem]:
    """A Pod on Spot counts on no more time than a preempted machine leaves it."""
    grace = pod.spec["terminationGracePeriodSeconds"]
    if not pod.spot or grace.number is None or grace.number <= _USUALLY_S:
        return
    why = (
        f"a preempted Spot machine ends all Pods after {_USUALLY_S} s, or after {_LONGEST_S} s if its node pool says "
        "shutdownGracePeriodSeconds: 120"
    )
    if grace.number > _LONGEST_S:
        yield warning(grace, f"{why}, whatever is written here", f"write {_LONGEST_S} or less, and be done by then")
    elif not any(item["key"].text == POOL_CAPACITY for item in pod.spec["tolerations"]):  # `node-pools` makes those
        yield note(grace, why, "write that into the pool's kubeletConfig (GKE 1.35.0-gke.1171000 and later)")
