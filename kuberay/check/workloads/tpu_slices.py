"""TPU slices: accelerator, topology, chips and hosts must describe a slice that GKE sells and Ray can place."""

from collections.abc import Iterator

from kuberay.check.manifests import Group
from kuberay.check.pods import GENERATION_OF, RARE_ACCELERATORS, Pod
from kuberay.check.rules import Problem, error, meant, nearest, note, rule, warning
from ray_configs.labels import ACCELERATOR, FLEX_START, RESERVATION, SPOT, TOPOLOGY, TPU
from ray_configs.tpu import GENERATIONS, TpuSlice

_GKE = "GKE's tables of TPU machine types and topologies"
_OTHER_NAMES = {
    name: machine.accelerator
    for generation in GENERATIONS.values()
    for machine in generation.machines
    for name in (machine.name, generation.name, generation.ray_name)
}
"""Names of machine types and generations, which people write where the accelerator belongs."""


@rule(Pod, "tpu-accelerator", _GKE)
def accelerator(pod: Pod) -> Iterator[Problem]:
    """The accelerator that the node selector names exists."""
    node, name = pod.accelerator, str(pod.accelerator.value)
    if not node.present or node.placeholder or name in GENERATION_OF or name in RARE_ACCELERATORS:
        return
    translated, choices = _OTHER_NAMES.get(name.lower()), [*GENERATION_OF, *RARE_ACCELERATORS]
    otherwise = meant(name, choices, f"write one of {', '.join(GENERATION_OF)}")
    why = f"GKE labels no node with the accelerator {name}: the Pod stays Pending for ever"
    yield error(node, why, f"write {translated}" if translated else otherwise)


@rule(Pod, "tpu-topology", _GKE)
def topology(pod: Pod) -> Iterator[Problem]:
    """The topology that the node selector names is sold for that accelerator."""
    node = pod.topology
    if not node.present or node.placeholder:
        return
    if pod.axes is None:
        why = f"{node.value!r} is no topology: no GKE node has such a label, and the GKE TPU webhook cannot read it"
        yield error(node, why, "write chips along each axis, such as 2x4 or 2x2x1")
    elif pod.generation is not None and not pod.machines:
        sold, turned = pod.generation.topologies, "x".join(map(str, sorted(pod.axes)))
        likely = turned if turned in sold else nearest(str(node.value), sold)
        first = f"write {likely}, or another of" if likely else "write one of"
        more = " and larger ones" if len(sold) > 12 else ""
        why = f"GKE sells no {pod.accelerator.value} slice of {node.value}: the Pod stays Pending for ever"
        yield error(node, why, f"{first} {', '.join(sold[:12])}{more}")


@rule(Pod, "tpu-chips", _GKE)
def chips(pod: Pod) -> Iterator[Problem]:
    """Chips per Pod are those of one machine, of which the slice is made."""
    if not pod.asks_tpu or any(container.chips.placeholder for container in pod.tpu_containers):
        return
    node, total, so = pod.tpu_containers[0].chips, pod.topology_chips or 0, "no node fits and the Pod stays Pending"
    if pod.chips is None:
        why = f"{node.value!r} is no whole number of chips: the API server refuses the Pod"
        yield error(node, why, f"write {TPU} as 1, 4 or 8")
    elif pod.chips not in (1, 4, 8):
        why = f"no TPU machine type has {pod.chips} chips, so {so}"
        if total % pod.chips:
            why += (
                f"; {total} chips of {pod.topology.value} do not divide by it either, which the GKE TPU webhook rounds "
                f"down to {max(1, total // pod.chips)} hosts and accepts"
            )
        yield error(node, why, f"ask for {_sizes(pod) or '1, 4 or 8'}, all chips of a host")
    elif pod.machines and pod.machine is None:
        partial = len(pod.machines) == 1 and total == pod.machines[0].chips and pod.chips < total
        idle = partial and pod.group is None
        if idle:
            so = "chips are left idle, and the runtime may refuse part of a host"
        elif partial:
            so = "the GKE TPU webhook takes every Pod for a host of its own, and JAX waits for hosts that are none"
        why = f"a host of {pod.accelerator.value} {pod.topology.value} has {_sizes(pod)} chips, not {pod.chips}: {so}"
        yield (warning if idle else error)(node, why, f"ask for {_sizes(pod)}, or choose another topology")


@rule(Group, "tpu-hosts", "GKE TPU webhook: checkWorkersMatchTopology")
def hosts(group: Group) -> Iterator[Problem]:
    """numOfHosts is the chips of the topology by the chips of a host; the webhook refuses the RayCluster otherwise."""
    pod, node, total = group.pod, group.node["numOfHosts"], group.pod.topology_chips
    if node.number == 0 and group.tpu:
        yield error(node, "is 0: the GKE TPU webhook refuses the RayCluster", "write the hosts of a slice, 1 or more")
        return
    if not group.tpu or pod.chips not in (1, 4, 8) or group.hosts is None or total is None or pod.misfit:
        return
    wanted = total // pod.chips or 1
    if wanted == group.hosts:
        return
    both = [f"{TPU} {m.chips} and numOfHosts {total // m.chips}" for m in pod.machines]
    sold = "; it is sold as " + " or ".join(both) if len(both) > 1 else ""
    one = "is one host" if wanted == 1 else f"has {wanted} hosts"
    yield error(
        node,
        f"a slice of {pod.topology.value} with {pod.chips} chips a host {one}, not {group.hosts}: the GKE TPU webhook "
        f"refuses the RayCluster with 'Number of workers in worker group not equal to specified topology'{sold}",
        f"write numOfHosts: {wanted}"
        + (", or the other size" if len(both) > 1 else "")
        + ("; replicas are slices, not hosts" if group.node["replicas"].number == wanted > 1 else ""),
    )


@rule(Group, "tpu-2x4", "Ray 2.60: chips per host of 2x4")
def ambiguous(group: Group) -> Iterator[Problem]:
    """2x4 is sold as one host of eight chips and as two of four; Ray takes it for the first."""
    if group.tpu and len(group.pod.machines) > 1 and group.pod.chips == 4 and group.hosts == 2:
        why = (
            "is made of two hosts of 4 chips here; Ray takes 2x4 for one host of 8 unless it is told, and then waits "
            "for ever for a host with 8 chips"
        )
        yield note(group.pod.topology, why, "pass chips_per_vm=4 where the slice is reserved (ray.util.tpu)")


@rule(Pod, "tpu-selectors", "GKE TPU webhook; GKE Autopilot; Ray 2.60's autoscaler")
def selectors(pod: Pod) -> Iterator[Problem]:
    """A Pod with chips says which accelerator and which topology."""
    node, worker = pod.spec["nodeSelector"], pod.role == "worker"
    if not pod.asks_tpu:
        unmeant = worker or (not pod.tolerates_tpu and pod.role not in ("head", "submitter"))
        if pod.topology.present and unmeant and pod.containers:
            why = (
                f"selects TPU nodes, but no container asks for {TPU}: GKE taints those nodes, and the Pod stays "
                "Pending, or holds a host without its chips"
            )
            yield warning(
                pod.topology, why, f"write resources.limits {TPU} on the container, or take the selectors out"
            )
        return
    if not worker and pod.dynamic:
        return
    if not pod.topology.present:
        why = (
            "the GKE TPU webhook refuses the RayCluster and its Pods"
            if worker
            else "GKE Autopilot refuses the Pod, and on Standard it lands on any TPU node with free chips"
        )
        yield (error if worker else warning)(
            node[TOPOLOGY],
            f"asks for TPU chips without the node selector {TOPOLOGY}: {why}",
            f"write {TOPOLOGY}: the slice's topology, such as 2x4",
        )
    if not pod.accelerator.present:
        ray = ", and Ray's autoscaler does not know the slice's head resource" if worker else ""
        yield (error if worker and not pod.dynamic else warning)(
            node[ACCELERATOR],
            f"asks for TPU chips without the node selector {ACCELERATOR}: GKE Autopilot refuses "
            f"the Pod, Standard takes any TPU generation of that topology{ray}",
            f"write {ACCELERATOR}: one of {', '.join(GENERATION_OF)}",
        )


@rule(Group, "ray-topology", "Ray 2.60: VALID_TPU_TOPOLOGY; its autoscaler's map of accelerators")
def ray_topology(group: Group) -> Iterator[Problem]:
    """Ray reserves slices of the topologies that it knows, and scales the accelerators that it knows."""
    pod = group.pod
    if group.tpu and pod.accelerator.text == "tpu7":
        why = "Ray 2.60 knows no generation tpu7: it cannot label or reserve its slices"
        yield warning(pod.accelerator, why, "write tpu7x, or run the workload as a Kubernetes Job")
    if not group.tpu or pod.machine is None or pod.generation is None:
        return
    refusal = TpuSlice(pod.generation.name, str(pod.topology.value), pod.machine.name).ray_refusal
    unscaled = "autoscaler" in (refusal or "")
    if refusal and (group.cluster.autoscaling or not unscaled):
        so = "never adds such hosts" if unscaled else "raises ValueError; plain TPU resources still work"
        place = pod.accelerator if unscaled else pod.topology
        instead = "choose another slice for Ray, or run the workload as a Kubernetes Job"
        yield warning(place, f"{refusal}: Ray's slice reservation {so}", instead)


@rule(Pod, "tpu-capacity", "GKE: what Spot, flex-start and reservations sell")
def capacity(pod: Pod) -> Iterator[Problem]:
    """A node is bought one way, and flex-start does not sell every machine."""
    selector, flex = pod.spec["nodeSelector"], FLEX_START
    ways = [selector[key] for key in (SPOT, flex, RESERVATION)]
    chosen = {str(way.path[-1]): way for way in ways if way.value not in (None, "false", False)}
    if len(chosen) > 1:
        why = f"selects nodes with {' and '.join(chosen)}: no node is bought both ways, the Pod stays Pending"
        yield error(list(chosen.values())[-1], why, "keep one of them")
    if flex in chosen and pod.generation is not None:
        machine = pod.machine or pod.generation.multi_host_machine
        if not machine.dynamic_workload_scheduler:
            why = (
                f"flex-start does not sell {machine.name}: no node pool of {pod.accelerator.value} can have this "
                "label, the Pod stays Pending"
            )
            instead = "use Spot, a reservation or on-demand nodes, or another generation such as v5e or v6e"
            yield error(chosen[flex], why, instead)


def _sizes(pod: Pod) -> str:
    """Chips per host that this slice is sold with, `8 or 4`; empty where the slice is not known."""
    return " or ".join(str(machine.chips) for machine in pod.machines)
