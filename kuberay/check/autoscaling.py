"""Ray's autoscaler: which version, what it needs, and what it cannot do with slices of several hosts."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, note, rule, warning

_OPERATOR = "KubeRay 1.7: ValidateRayClusterSpec"
_ENV = "RAY_enable_autoscaler_v2"


def _env_on(cluster: Cluster) -> bool:
    item = cluster.head_env.get(_ENV)
    return item is not None and item["value"].value in ("1", "true")


@rule(Cluster, "autoscaler-version", _OPERATOR)
def version_said_once(cluster: Cluster) -> Iterator[Problem]:
    """The version of the autoscaler is said in autoscalerOptions, not in the environment."""
    item, options = cluster.head_env.get(_ENV), cluster.node["autoscalerOptions"]
    if item is not None and not cluster.autoscaling and _env_on(cluster):
        yield error(
            item,
            f"{_ENV} without enableInTreeAutoscaling: the KubeRay operator refuses the RayCluster",
            "write enableInTreeAutoscaling: true, or take it out",
        )
    if item is not None and cluster.autoscaling and options["version"].present:
        yield error(
            item,
            f"{_ENV} beside autoscalerOptions.version: the KubeRay operator refuses both together",
            "keep autoscalerOptions.version",
        )
    if (options["idleTimeoutSeconds"].number or 0) < 0:
        yield error(
            options["idleTimeoutSeconds"],
            "is negative: the KubeRay operator refuses the RayCluster",
            "write seconds, such as 60",
        )
    for variable in options["env"]:
        if variable["name"].value == "KUBERAY_GEN_AUTOSCALER_START_CMD":
            yield error(
                variable,
                "KUBERAY_GEN_AUTOSCALER_START_CMD is the operator's own: it refuses the RayCluster",
                "take it out; args may refer to it",
            )
    if options.present and not cluster.autoscaling and not cluster.node["enableInTreeAutoscaling"].placeholder:
        yield note(
            options,
            "nothing scales: enableInTreeAutoscaling is not true, so autoscalerOptions are ignored",
            "write enableInTreeAutoscaling: true, or take autoscalerOptions out",
        )


@rule(Cluster, "restart-policy", _OPERATOR)
def restart_policy(cluster: Cluster) -> Iterator[Problem]:
    """Autoscaler v2 replaces Pods itself; they must not restart in place."""
    if not cluster.autoscaling or cluster.autoscaler_version != "v2":
        return
    for pod in (cluster.head_pod, *(group.pod for group in cluster.groups)):
        node = pod.spec["restartPolicy"]
        if node.text not in (None, "", "Never"):
            yield error(
                node,
                f"restartPolicy {node.value} with autoscaler v2: the KubeRay operator refuses it",
                "write Never, or leave it out",
            )


@rule(Group, "autoscaler-v2-field", "KubeRay 1.7: validateWorkerGroupIdleTimeout, validateWorkerGroupPriority")
def v2_fields(group: Group) -> Iterator[Problem]:
    """idleTimeoutSeconds and priority of a group need autoscaler v2 in writing; its being the default is not enough."""
    cluster = group.cluster
    idle, priority, raw = group.node["idleTimeoutSeconds"], group.node["priority"], cluster.node["rayVersion"]
    if (idle.number or 0) < 0:
        yield error(idle, "is negative: the KubeRay operator refuses the RayCluster", "write seconds, such as 600")
    explicit = cluster.autoscaler_version == "v2" or _env_on(cluster)
    used: list[Node] = [idle] if idle.present else []
    used += [priority] if priority.number else []
    for node in used:
        if not explicit:
            yield error(
                node,
                f"{node.path[-1]} without autoscalerOptions.version: v2: the KubeRay operator refuses the "
                "RayCluster, even where v2 is Ray's default",
                "write autoscalerOptions.version: v2",
            )
    old = cluster.ray_version is None or cluster.ray_version < (2, 56, 0)
    if priority.number and old and not raw.placeholder:
        yield error(
            priority,
            f"priority with rayVersion {raw.value or 'left out'}: the KubeRay operator refuses it before 2.56.0",
            "write rayVersion 2.56.0 or later, or take priority out",
        )


@rule(Group, "autoscaler-multi-host", "Ray 2.60: autoscaler v2's scheduler; KubeRay 1.7: RayMultiHostIndexing")
def multi_host(group: Group) -> Iterator[Problem]:
    """Scaling slices of several hosts: atomic with v2 alone, and never from zero for a reservation.

    ray#39781, ray#38595 (no scaling from zero for slice reservations), ray#48212 and kuberay#3552 (v1, or an old Ray,
    counts Pods where it should count slices).
    """
    cluster = group.cluster
    if not (group.tpu and group.multi_host and cluster.autoscaling):
        return
    old = cluster.ray_version is not None and cluster.ray_version < (2, 47, 0)
    v1 = cluster.autoscaler_version == "v1" or (cluster.autoscaler_version is None and old and not _env_on(cluster))
    if v1:
        yield warning(
            cluster.node.at("autoscalerOptions", "version"),
            "autoscaler v1 tells the hosts of a slice by the Pod label "
            "replicaIndex, which the webhook no longer sets with KubeRay 1.6 and later: it removes parts of slices "
            "(kuberay#3552, ray#48212)",
            "write autoscalerOptions.version: v2, with Ray 2.47 or later",
        )
    elif cluster.autoscaler_version is None and not _env_on(cluster):
        yield note(
            cluster.node["autoscalerOptions"]["version"],
            "leaves the autoscaler's version to Ray; slices of several hosts scale whole with v2 alone",
            "write autoscalerOptions.version: v2",
        )
    if group.least == 0 and not group.node["minReplicas"].placeholder and not v1:
        yield warning(
            group.node["minReplicas"],
            "scales to zero: a slice reservation (slice_placement_group, ray.serve.llm with "
            "a topology) asks for a worker 0 that no group offers, so Ray's autoscaler never adds the first slice "
            "(ray#39781, ray#38595)",
            "write minReplicas: 1 or more, or call ray.autoscaler.sdk.request_resources before reserving",
        )
