"""TPUs that a Serve config asks for, beside those that the worker groups have."""

from collections.abc import Iterator
from dataclasses import dataclass

from kuberay.check.manifests import Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, rule, warning
from kuberay.check.serve_documents import ServeConfig, ServeDeployment

_QUANTITIES = (1, 2, 4, 8)


@dataclass(frozen=True)
class _Replica:
    """What one replica of a deployment takes."""

    deployment: ServeDeployment
    actor: Node
    bundles: list[Node]

    @property
    def pieces(self) -> list[Node]:
        """What has to fit on one host each."""
        return self.bundles or ([self.actor] if self.actor.present else [])

    @property
    def total(self) -> float:
        return sum(_amount(node) for node in self.pieces)

    def count(self, bound: str) -> int:
        """How many there are: as many as are written, else as the bound of the autoscaler says; 1 by default."""
        fixed, scaled = self.deployment["num_replicas"].number, self.deployment["autoscaling_config"][bound].number
        return next((count for count in (fixed, scaled) if count is not None), 1)


def _amount(node: Node) -> float:
    return float(node.value) if isinstance(node.value, int | float) and not isinstance(node.value, bool) else 0.0


def _replicas(config: ServeConfig) -> Iterator[_Replica]:
    for deployment in config.deployments:
        actor = deployment.actor["resources"]["TPU"]
        bundles = [bundle["TPU"] for bundle in deployment["placement_group_bundles"] if bundle["TPU"].present]
        if actor.present or bundles:
            yield _Replica(deployment, actor, bundles)


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
    largest = None if None in chips else max((count or 0 for count in chips), default=0)
    for replica in () if tpus_by_hand(config) else _replicas(config):
        if replica.actor.present and _amount(replica.actor) not in (0.0, *map(float, _QUANTITIES)):
            why = (
                f"asks for {replica.actor.value} TPUs: Ray gives out 1, 2, 4 or 8 chips and raises ValueError, so the "
                "application ends as DEPLOY_FAILED"
            )
            yield error(replica.actor, why, "write 1, 2, 4 or 8")
            continue
        piece = next((each for each in replica.pieces if largest is not None and _amount(each) > largest), None)
        if piece is None:
            continue
        if not chips:
            why = "asks for TPUs, and no worker group has any: the replica waits for ever"
            yield error(piece, why, "add a worker group with google.com/tpu, or take TPU out")
        else:
            has = f"the largest host has {largest}"
            instead = f"ask for at most {largest}, or spread the replica over hosts with placement_group_bundles or a "
            why = f"asks for {piece.value} TPUs on one host, and {has}: the replica waits for ever"
            yield error(piece, why, instead + "slice reservation")


@rule(
    ServeDeployment,
    "serve-slices",
    "Ray Serve 2.60: its placement groups know no slices (ray#63101, #63179)",
)
def stays_on_a_slice(deployment: ServeDeployment) -> Iterator[Problem]:
    """Bundles of one replica land on hosts of several slices: Serve places them without regard to slices.

    ray#61906, #62941, #63101 and #63179 asked for slices in Serve's own placement.
    """
    groups = deployment.application.config.cluster.groups
    wide = [group for group in groups if group.tpu and group.multi_host and (group.most or 2) > 1]
    bundles = deployment["placement_group_bundles"]
    asked = sum(_amount(bundle["TPU"]) for bundle in bundles)
    chosen = deployment["placement_group_bundle_label_selector"].present
    if wide and asked > max(group.pod.chips or 0 for group in wide) and not chosen:
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
    replicas = list(_replicas(config))
    if not groups or not replicas or tpus_by_hand(config):
        return
    least = sum(replica.total * replica.count("min_replicas") for replica in replicas)
    most = sum(replica.total * replica.count("max_replicas") for replica in replicas)
    last = replicas[-1].deployment
    place = last["autoscaling_config"]["max_replicas"] if last["autoscaling_config"].present else last["num_replicas"]
    offered = f"the worker groups have {chips} at most" + (
        "" if config.cluster.autoscaling else " (autoscaling is off)"
    )
    if most <= chips:
        return
    if least > chips:
        yield error(
            place,
            f"the deployments need {least:g} TPU chips to start, and {offered}: some replicas wait for ever, and the "
            "RayService never becomes Ready",
            "raise maxReplicas (and replicas) of the group, or ask for fewer replicas",
        )
    else:
        why = f"the deployments may ask for {most:g} TPU chips, and {offered}: the last replicas would wait for ever"
        yield warning(place, why, "raise maxReplicas of the group, or lower max_replicas")
