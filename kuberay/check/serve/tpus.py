"""TPUs that a Serve config requests, compared with those of the worker groups."""

from collections.abc import Iterator

from kuberay.check.manifests import Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, rule, warning
from kuberay.check.subjects import ServeConfig


def _pieces(deployment: Node) -> list[Node]:
    """TPU requests of one replica, each to be met by a single host: its bundles', else its actor's."""
    actor = deployment["ray_actor_options"]["resources"]["TPU"]
    bundles = [bundle["TPU"] for bundle in deployment["placement_group_bundles"] if bundle["TPU"].present]
    return bundles or ([actor] if actor.present else [])


def _chips(config: ServeConfig, bound: str) -> float:
    """Chips of all replicas: num_replicas of each deployment, else this bound of its autoscaler, else 1."""
    total = 0.0
    for deployment in config.deployments:
        counts = (deployment["num_replicas"].number, deployment["autoscaling_config"][bound].number, 1)
        total += sum(node.amount for node in _pieces(deployment)) * next(each for each in counts if each is not None)
    return total


def tpus_by_hand(config: ServeConfig) -> bool:
    """Whether a group declares TPUs to Ray other than by google.com/tpu, as emulations do; then nothing is counted."""
    return any(
        group.node["resources"]["TPU"].present
        or "TPU" in str(group.params["resources"].value)
        or "RAY_TPU_RESOURCE_PER_CHIP" in group.env
        for group in config.cluster.groups
    )


def slices_of(group: Group) -> int | None:
    """Most slices that a group may have; None if unknown."""
    if group.cluster.autoscaling:
        return group.most
    if group.node["replicas"].placeholder or group.node["minReplicas"].placeholder:
        return None
    return max(group.node["replicas"].number or 0, group.least)


@rule(ServeConfig, "serve-tpu", "Ray 2.60: TPU quantities; its scheduler: a request fits on one host")
def fits_a_host(config: ServeConfig) -> Iterator[Problem]:
    """Some host has as many chips as a replica requests of one host."""
    chips = [group.pod.chips for group in config.cluster.groups if group.tpu]
    largest = float("inf") if None in chips else max((count or 0 for count in chips), default=0)
    for deployment in () if tpus_by_hand(config) else config.deployments:
        actor = deployment["ray_actor_options"]["resources"]["TPU"]
        if actor.amount not in (0, 1, 2, 4, 8):
            why = f"requests {actor.value} TPUs: Ray assigns 1, 2, 4 or 8 chips and raises ValueError"
            yield error(actor, why, "write 1, 2, 4 or 8")
            continue
        piece = next((each for each in _pieces(deployment) if each.amount > largest), None)
        if piece is not None and not chips:
            why = "requests TPUs, but no worker group has any: the replica waits forever"
            yield error(piece, why, "add a worker group with google.com/tpu, or remove TPU")
        elif piece is not None:
            why = f"requests {piece.value} TPUs on one host, but the largest host has {largest}: it waits forever"
            instead = f"request at most {largest}, or spread the replica over hosts with placement_group_bundles or a "
            yield error(piece, why, instead + "slice reservation")


@rule(ServeConfig, "serve-slices", "Ray Serve 2.60: its placement groups ignore slices")
def stays_on_a_slice(config: ServeConfig) -> Iterator[Problem]:
    """Bundles of one replica stay on one slice, although Serve places them without regard to slices.

    ray#61906, #62941, #63101 and #63179 ask for slices in Serve's placement.
    """
    wide = [group for group in config.cluster.groups if group.tpu and group.multi_host and (group.most or 2) > 1]
    for deployment in config.deployments if wide else ():
        bundles = deployment["placement_group_bundles"]
        chosen = deployment["placement_group_bundle_label_selector"].present
        if not chosen and sum(bundle["TPU"].amount for bundle in bundles) > max(each.pod.chips or 0 for each in wide):
            why = (
                "are placed without regard to slices: if the group has several, one replica can get hosts of two, "
                "which have no fast links to each other, and JAX hangs at startup (ray#63101, ray#63179)"
            )
            instead = (
                "let the replica reserve a slice itself (ray.util.tpu.slice_placement_group), or give each slice its "
                "own worker group and select it with placement_group_bundle_label_selector"
            )
            yield warning(bundles, why, instead)


@rule(ServeConfig, "serve-capacity", "Ray Serve 2.60 and the worker groups: replicas times chips")
def fits_the_groups(config: ServeConfig) -> Iterator[Problem]:
    """All replicas fit into the slices that the worker groups may have."""
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
        why = f"the deployments need {least:g} TPU chips to start, but {has}: some replicas wait forever"
        yield error(place, why, "raise maxReplicas (and replicas) of the group, or lower the number of replicas")
    elif most > chips:
        why = f"the deployments may request {most:g} TPU chips, but {has}: the last replicas would wait forever"
        yield warning(place, why, "raise maxReplicas of the group, or lower max_replicas")
