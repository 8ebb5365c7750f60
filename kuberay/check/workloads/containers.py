"""Containers of any Pod: their names, and the volumes that they mount."""

from collections.abc import Iterator

from kuberay.check.nodes import Node
from kuberay.check.pods import Pod
from kuberay.check.rules import Problem, error, nearest, rule

_OPERATORS_OWN = frozenset({"ray-logs", "shared-mem", "log-volume", "gcs-storage", "ray-token", "ray-tls"})
"""Volumes that the KubeRay operator adds to Ray's Pods."""


@rule(Pod, "container-name", "Kubernetes API server")
def names(pod: Pod) -> Iterator[Problem]:
    """Containers of a Pod have names of their own."""
    seen: set[str] = set()
    for container in pod.all_containers:
        name = container["name"].text
        if name is not None and name in seen:
            why = f"two containers are named {name}: the API server refuses the Pod, and KubeRay tries again for ever"
            yield error(container["name"], why, "give each container its own name")
        seen.add(name or "")


def _claim_templates(spec: Node) -> Iterator[Node]:
    """Claims that a StatefulSet, LeaderWorkerSet or JobSet makes for its Pods, as volumes of the same names."""
    yield from spec["volumeClaimTemplates"]
    yield from spec["leaderWorkerTemplate"]["volumeClaimTemplates"]
    for policy in spec["volumeClaimPolicies"]:
        yield from policy["templates"]


@rule(Pod, "volume", "Kubernetes API server")
def volumes(pod: Pod) -> Iterator[Problem]:
    """What a container mounts is a volume of the Pod, each path once."""
    known = {volume["name"].value for volume in pod.spec["volumes"] if isinstance(volume["name"].value, str)}
    known |= {str(claim.at("metadata", "name").value) for claim in _claim_templates(pod.node.document.node["spec"])}
    if pod.ray:
        known |= _OPERATORS_OWN
    for container in pod.all_containers:
        paths: set[str] = set()
        for mount in container["volumeMounts"]:
            name, path = mount["name"].text, mount["mountPath"].text
            if name is not None and name not in known:
                why = f"the Pod has no volume {name}: the API server refuses the Pod, and its controller tries for ever"
                near = nearest(name, known - _OPERATORS_OWN)
                yield error(mount["name"], why, f"mount {near}" if near else f"add the volume {name}")
            if path is not None and path in paths:
                why = f"{path} is mounted twice in one container: the API server refuses the Pod"
                yield error(mount["mountPath"], why, "mount each path once")
            paths.add(path or "")
