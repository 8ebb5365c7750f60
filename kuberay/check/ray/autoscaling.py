"""Ray's autoscaler: which version, what it needs, and what it cannot do with slices of several hosts."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.workers import GROUP_LABEL

_OPERATOR = "KubeRay 1.7: ValidateRayClusterSpec"
_ENV = "RAY_enable_autoscaler_v2"
_PATIENCE = "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S"
_LAUNCHES = "AUTOSCALER_MAX_CONCURRENT_LAUNCHES"
_SCARCE = {
    "cloud.google.com/gke-flex-start": "flex-start",
    "cloud.google.com/gke-queued": "queued",
    "cloud.google.com/gke-provisioning": "provisioned",
    "cloud.google.com/gke-spot": "Spot",
}
"""Node labels and taints of machines that come when there are any."""


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
    if group.least == 0 and not group.node["minReplicas"].placeholder and not v1 and not _leads_from_cpus(cluster):
        yield warning(
            group.node["minReplicas"],
            "scales to zero: what reserves a slice (slice_placement_group, ray.serve.llm with a topology) asks for one "
            "host, its worker 0, and KubeRay's provider rounds one host of several down to no slice; a replica that "
            "would ask for a whole slice runs on the slice itself (ray#39781, ray#38595)",
            "write minReplicas: 1 or more; or let a process on the head or on a CPU worker group, which is there, ask "
            "for all hosts of a slice at once (a placement group, ray.autoscaler.sdk.request_resources)",
        )


def _leads_from_cpus(cluster: Cluster) -> bool:
    """Whether Podslice's replicas are led from CPU groups, where something can ask for the first slice."""
    return any(not group.tpu and GROUP_LABEL in group.node["labels"].fields for group in cluster.groups)


@rule(Group, "autoscaler-patience", "Ray 2.60: autoscaler/v2, allocate_status_timeout_s; GKE: flex-start, Spot, queues")
def patience(group: Group) -> Iterator[Problem]:
    """Machines that one waits for take longer than the hour after which Ray's autoscaler throws a Pod away."""
    cluster = group.cluster
    if not (group.tpu and cluster.autoscaling) or _option(cluster, _PATIENCE):
        return
    selector = group.pod.spec["nodeSelector"].fields
    tolerated = {item["key"].text for item in group.pod.spec["tolerations"]}
    for key, way in _SCARCE.items():
        if key in selector or key in tolerated:
            yield warning(
                cluster.node["autoscalerOptions"]["env"],
                f"Pods of {group.name} may wait long for {way} machines, and Ray's autoscaler throws a Pod away after "
                "an hour, and its place in the queue with it",
                f'add {_PATIENCE} with a value such as "604800" to autoscalerOptions.env',
            )
            return


@rule(Group, "autoscaler-launches", "Ray 2.60: AUTOSCALER_MAX_CONCURRENT_LAUNCHES; its KubeRay provider")
def launches(group: Group) -> Iterator[Problem]:
    """The autoscaler asks for ten hosts at a time, which is no slice of more."""
    hosts, cluster = group.hosts or 1, group.cluster
    grows = group.most is None or group.most > max(group.least, group.node["replicas"].number or 0)
    if group.tpu and cluster.autoscaling and hosts > 10 and grows and not _option(cluster, _LAUNCHES):
        yield warning(
            cluster.node["autoscalerOptions"]["env"],
            f"a slice of {group.name} has {hosts} hosts, and Ray's autoscaler asks for 10 at a time, which its KubeRay "
            "provider rounds down to no slice: the group never grows",
            f'add {_LAUNCHES} with a value such as "1000" to autoscalerOptions.env',
        )


def _option(cluster: Cluster, name: str) -> bool:
    return any(item["name"].value == name for item in cluster.node["autoscalerOptions"]["env"])
