"""CPUs that a Serve config requests, compared with those of the groups."""

import math
from collections.abc import Iterator

from kuberay.check.manifests import Group
from kuberay.check.nodes import Node, quantity
from kuberay.check.rules import Problem, error, rule
from kuberay.check.subjects import ServeConfig

_GPUS = "nvidia.com/gpu"


def _cpus(group: Group) -> float:
    """CPUs that Ray counts on a Pod: num-cpus, else the container's limit or request; infinite: unknown."""
    by_hand = group.params["num-cpus"]
    if by_hand.present:
        number = by_hand.number if by_hand.number is not None else quantity(by_hand)
        return math.inf if number is None else float(number)
    if group.ray is None:
        return math.inf
    limit, request = (group.ray["resources"][part]["cpu"] for part in ("limits", "requests"))
    counted = quantity(limit if limit.present else request)
    return math.inf if counted is None else float(math.ceil(counted))


def _gpus(group: Group) -> float:
    limits = group.ray["resources"]["limits"][_GPUS] if group.ray else None
    return 0.0 if limits is None else quantity(limits) or 0.0


def _actors(deployment: Node) -> Iterator[tuple[Node, float, float, float]]:
    """(where, CPUs, TPUs, GPUs) of a replica's actor, or of each of its bundles."""
    bundles = list(deployment["placement_group_bundles"])
    for bundle in bundles:
        yield bundle["CPU"], bundle["CPU"].amount, bundle["TPU"].amount, bundle["GPU"].amount
    if not bundles:
        options = deployment["ray_actor_options"]
        yield (
            options["num_cpus"],
            options["num_cpus"].amount,
            options["resources"]["TPU"].amount,
            options["num_gpus"].amount,
        )


@rule(ServeConfig, "serve-cpu", "Ray 2.60: its scheduler, a request fits on one node; KubeRay 1.7: num-cpus")
def fits_a_pod(config: ServeConfig) -> Iterator[Problem]:
    """Some Pod with the accelerators that a replica requests has as many CPUs as it requests."""
    for deployment in config.deployments:
        for where, cpus, tpus, gpus in _actors(deployment):
            fitting = [
                group
                for group in config.cluster.all_groups
                if (not tpus or (group.tpu and (group.pod.chips or math.inf) >= tpus)) and (not gpus or _gpus(group))
            ]
            most = max(map(_cpus, fitting), default=math.inf)  # without such a group, serve-tpu complains
            if cpus > most:
                with_them = " with its accelerators" if tpus or gpus else ""
                why = f"requests {cpus:g} CPUs on one Pod, but the largest{with_them} has {most:g}: it waits forever"
                yield error(where, why, f"request at most {most:g}, or raise the cpu limit of the group's container")
