"""TPUs that a Serve config asks for, beside those that the worker groups have."""

from collections.abc import Iterator

from kuberay.check.manifests import Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, rule, warning
from kuberay.check.serve_documents import ServeConfig


def _pieces(deployment: Node) -> list[Node]:
    """TPUs that one replica needs on one host each: those of its bundles, else of its actor."""
    actor = deployment["ray_actor_options"]["resources"]["TPU"]
    bundles = [bundle["TPU"] for bundle in deployment["placement_group_bundles"] if bundle["TPU"].present]
    return bundles or ([actor] if actor.present else [])


def _chips(config: ServeConfig, bound: str) -> float:
    """Chips of all replicas: of as many as are written, else as the bound of the autoscaler says; of 1 by default."""
    total = 0.0
    for deployment in config.deployments:
        counts = (deployment["num_replicas"].number, deployment["autoscaling_config"][bound].number, 1)
        total += sum(node.amount for node in _pieces(deployment)) * next(each for each in counts if each is not None)
    return total


def tpus_by_hand(config: ServeConfig) -> bool:
    """Whether a group tells Ray of TPUs otherwise than by google.com/tpu, as emulations do: then nothing is counted."""
    return any(
        group.node["resources"]["TPU"].present
        or "TPU" in str(group.params["resources"].value)
        or "RAY_TPU_RESOURCE_PER_CHIP" in group.env
        for group in config.cluster.groups
    )


def slices_of(group: Group) -> int | None:
    """Slices that a group may have; None where that is not known."""
    if group.cluster.autoscaling:
        return group.most
    if group.node["replicas"].placeholder or group.node["minReplicas"].placeholder:
        return None
    return max(group.node["replicas"].number or 0, group.least)


@rule(ServeConfig, "serve-tpu", "Ray 2.60: TPU quantities; the scheduler: a piece fits on one host")
def fits_a_host(config: ServeConfig) -> Iterator[Problem]:
    """What a replica asks of one host, some host has."""
    chips = [group.pod.chips for group in config.cluster.groups if group.tpu]
    largest = float("inf") if None in chips else max((count or 0 for count in chips), default=0)
    for deployment in () if tpus_by_hand(config) else config.deployments:
        actor = deployment["ray_actor_options"]["resources"]["TPU"]
        if actor.amount not in (0, 1, 2, 4, 8):
            why = f"asks for {actor.value} TPUs: Ray gives out 1, 2, 4 or 8 chips and raises ValueError"
            yield error(actor, why, "write 1, 2, 4 or 8")
            continue
        piece = next((each for each in _pieces(deployment) if each.amount > largest), None)
        if piece is not None and not chips:
            why = "asks for TPUs, and no worker group has any: the replica waits for ever"
            yield error(piece, why, "add a worker group with google.com/tpu, or take TPU out")
        elif piece is not None:
            why = f"asks for {piece.value} TPUs on one host, and the largest host has {largest}: it waits for ever"
            instead = f"ask for at most {largest}, or spread the replica over hosts with placement_group_bundles or a "
            yield error(piece, why, instead + "slice reservation")


@rule(ServeConfig, "serve-slices", "Ray Serve 2.60: its placement groups know no slices")
def stays_on_a_slice(config: ServeConfig) -> Iterator[Problem]:
    """Bundles of one replica land on hosts of several slices: Serve places them without regard to slices.

    ray#61906, #62941, #63101 and #63179 asked for slices in Serve's own placement.
    """
    wide = [group for group in config.cluster.groups if group.tpu and group.multi_host and (group.most or 2) > 1]
    for deployment in config.deployments if wide else ():
        bundles = deployment["placement_group_bundles"]
        chosen = deployment["placement_group_bundle_label_selector"].present
        if not chosen and sum(bundle["TPU"].amount for bundle in bundles) > max(each.pod.chips or 0 for each in wide):
            why = (
                "are placed without regard to slices: where the group has several, one replica can get hosts of two, "
                "which have no fast links to each other, and JAX hangs at its start (ray#63101, ray#63179)"
            )
            instead = (
                "let the replica reserve a slice itself (ray.util.tpu.slice_placement_group), or give each slice a "
                "worker group of its own and select it with placement_group_bundle_label_selector"
            )
            yield warning(bundles, why, instead)


@rule(ServeConfig, "serve-capacity", "Ray Serve 2.60 and the worker groups: replicas times chips")
def fits_the_groups(config: ServeConfig) -> Iterator[Problem]:
    """All replicas together fit into the slices that the worker groups may have."""
    groups = [group for group in config.cluster.groups if group.tpu]
    counts = [(slices_of(group), group.hosts, group.pod.chips) for group in groups]
    users = [deployment for deployment in config.deployments if _pieces(deployment)]
    if not groups or not users or tpus_by_hand(config) or any(None in count for count in counts):
        return
    chips = sum((slices or 0) * (hosts or 0) * (each or 0) for slices, hosts, each in counts)
    least, most, last = _chips(config, "min_replicas"), _chips(config, "max_replicas"), users[-1]
    place = last["autoscaling_config"]["max_replicas"] if last["autoscaling_config"].present else last["num_replicas"]
    has = f"the worker groups have {chips} at most{'' if config.cluster.autoscaling else ' (autoscaling is off)'}"
    if min(least, most) > chips:
        why = f"the deployments need {least:g} TPU chips to start, and {has}: some replicas wait for ever"
        yield error(place, why, "raise maxReplicas (and replicas) of the group, or ask for fewer replicas")
    elif most > chips:
        why = f"the deployments may ask for {most:g} TPU chips, and {has}: the last replicas would wait for ever"
        yield warning(place, why, "raise maxReplicas of the group, or lower max_replicas")
