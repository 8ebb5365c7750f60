"""TPUs that a Serve config asks for, beside those that the worker groups have."""

from collections.abc import Iterator
from dataclasses import dataclass

from kuberay.check.manifests import Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, rule, warning
from kuberay.check.serve_documents import ServeConfig, applications_and_deployments

_QUANTITIES = (1, 2, 4, 8)


@dataclass(frozen=True)
class _Replica:
    """What one replica of a deployment takes."""

    deployment: Node
    actor: Node
    bundles: list[Node]

    @property
    def pieces(self) -> list[Node]:
        """What has to fit on one host each."""
        return self.bundles or ([self.actor] if self.actor.present else [])

    @property
    def total(self) -> float:
        return sum(_amount(node) for node in self.pieces)


def _amount(node: Node) -> float:
    return float(node.value) if isinstance(node.value, int | float) and not isinstance(node.value, bool) else 0.0


def _replicas(config: ServeConfig) -> Iterator[_Replica]:
    for _, deployment in applications_and_deployments(config):
        actor = deployment["ray_actor_options"]["resources"]["TPU"]
        bundles = [bundle["TPU"] for bundle in deployment["placement_group_bundles"] if bundle["TPU"].present]
        if actor.present or bundles:
            yield _Replica(deployment, actor, bundles)


def tpus_by_hand(config: ServeConfig) -> bool:
    """Whether a group tells Ray of TPUs otherwise than by google.com/tpu, as emulations do: then nothing is counted."""
    return any(
        group.node["resources"]["TPU"].present
        or "TPU" in str(group.node["rayStartParams"]["resources"].value)
        or "RAY_TPU_RESOURCE_PER_CHIP" in group.pod.env(0)
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
    groups = [group for group in config.cluster.groups if group.tpu]
    chips = [group.pod.chips for group in groups]
    if tpus_by_hand(config):
        return
    for replica in _replicas(config):
        if replica.actor.present and _amount(replica.actor) not in (0.0, *map(float, _QUANTITIES)):
            yield error(
                replica.actor,
                f"asks for {replica.actor.value} TPUs: Ray gives out 1, 2, 4 or 8 chips and raises "
                "ValueError, so the application ends as DEPLOY_FAILED",
                "write 1, 2, 4 or 8",
            )
            continue
        for piece in replica.pieces:
            if _amount(piece) <= 0:
                continue
            if not groups:
                yield error(
                    piece,
                    "asks for TPUs, and no worker group has any: the replica waits for ever",
                    "add a worker group with google.com/tpu, or take TPU out",
                )
            elif None not in chips and _amount(piece) > max(count or 0 for count in chips):
                most = max(count or 0 for count in chips)
                yield error(
                    piece,
                    f"asks for {piece.value} TPUs on one host, and the largest host has {most}: the replica "
                    "waits for ever",
                    f"ask for at most {most}, or spread the replica over hosts with "
                    "placement_group_bundles or a slice reservation",
                )
            else:
                continue
            break


@rule(ServeConfig, "serve-slices", "Ray Serve 2.60: a placement group of a replica knows no slices (ray#63101, #63179)")
def stays_on_a_slice(config: ServeConfig) -> Iterator[Problem]:
    """Bundles of one replica land on hosts of several slices: Serve places them without regard to slices.

    ray#61906, #62941, #63101 and #63179 asked for slices in Serve's own placement.
    """
    wide = [group for group in config.cluster.groups if group.tpu and group.multi_host and (group.most or 2) > 1]
    chips = [group.pod.chips or 0 for group in wide]
    for replica in _replicas(config):
        bundles = replica.deployment["placement_group_bundles"]
        chosen = replica.deployment["placement_group_bundle_label_selector"].present
        if chips and replica.bundles and replica.total > max(chips) and not chosen:
            yield warning(
                bundles,
                "are placed without regard to slices: where the group has several, one replica can get hosts of two, "
                "which have no fast links to each other, and JAX hangs at its start (ray#63101, ray#63179)",
                "let the replica reserve a slice itself (ray.util.tpu.slice_placement_group), or give each slice a "
                "worker group of its own and select it with placement_group_bundle_label_selector",
            )


@rule(ServeConfig, "serve-capacity", "Ray Serve 2.60 and the worker groups: replicas times chips")
def fits_the_groups(config: ServeConfig) -> Iterator[Problem]:
    """All replicas together fit into the slices that the worker groups may have."""
    groups = [group for group in config.cluster.groups if group.tpu]
    chips = 0
    for group in groups:
        slices = slices_of(group)
        if slices is None or group.hosts is None or group.pod.chips is None:
            return
        chips += slices * group.hosts * group.pod.chips
    if not groups or tpus_by_hand(config):
        return
    least = most = 0.0
    last: Node | None = None
    for replica in _replicas(config):
        node = replica.deployment
        scaled = node["autoscaling_config"]
        fixed = node["num_replicas"].number
        low = fixed if fixed is not None else (scaled["min_replicas"].number if scaled.present else 1)
        high = fixed if fixed is not None else (scaled["max_replicas"].number if scaled.present else 1)
        least += replica.total * (1 if low is None else low)
        most += replica.total * (1 if high is None else high)
        last = scaled["max_replicas"] if scaled.present else node["num_replicas"]
    if last is None or most <= chips:
        return
    offered = f"the worker groups have {chips} at most" + (
        "" if config.cluster.autoscaling else " (autoscaling is off)"
    )
    if least > chips:
        yield error(
            last,
            f"the deployments need {least:g} TPU chips to start, and {offered}: some replicas wait for "
            "ever, and the RayService never becomes Ready",
            "raise maxReplicas (and replicas) of the group, or ask for fewer replicas",
        )
    else:
        yield warning(
            last,
            f"the deployments may ask for {most:g} TPU chips, and {offered}: the last replicas would wait for ever",
            "raise maxReplicas of the group, or lower max_replicas",
        )
