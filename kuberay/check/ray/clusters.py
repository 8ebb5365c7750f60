"""RayCluster specs: what the KubeRay operator refuses, and what it takes and does otherwise than one expects."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Group
from kuberay.check.nodes import Node, version
from kuberay.check.pods import TPU, Pod
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.tpu import TpuSlice

_OPERATOR = "KubeRay 1.7: ValidateRayClusterSpec"
_LABEL_KEY = re.compile(r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
_RAY_IMAGE = re.compile(r"(?:^|/)rayproject/ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)[^-@]*(-py\d+)?")


@rule(Cluster, "containers", _OPERATOR)
def containers(cluster: Cluster) -> Iterator[Problem]:
    """Head and worker groups have a container; the first one runs Ray."""
    for name, pod in [("headGroupSpec", cluster.head_pod), *((group.name, group.pod) for group in cluster.groups)]:
        if not pod.containers and not pod.spec["containers"].placeholder:
            yield error(
                pod.spec["containers"],
                f"{name} has no container: the KubeRay operator refuses the RayCluster",
                "write at least one container, Ray's first",
            )


@rule(Group, "replicas", _OPERATOR + "; defaults of its CRD")
def replicas(group: Group) -> Iterator[Problem]:
    """minReplicas <= replicas <= maxReplicas, all written down."""
    wanted, least, most = (group.node[key] for key in ("replicas", "minReplicas", "maxReplicas"))
    for node in (wanted, least, most, group.node["numOfHosts"]):
        if (node.number or 0) < 0:
            yield error(node, f"is {node.value}: the KubeRay operator refuses a negative number", "write 0 or more")
    if least.number is not None and most.number is not None and least.number > most.number:
        yield error(
            least,
            f"minReplicas {least.number} is more than maxReplicas {most.number}: the KubeRay operator refuses "
            "the RayCluster",
            f"write at most {most.number}, or raise maxReplicas",
        )
    elif wanted.number is not None and wanted.number < (least.number or 0):
        yield warning(
            wanted,
            f"replicas {wanted.number} is below minReplicas: the KubeRay operator makes {least.number}",
            f"write replicas: {least.number}",
        )
    elif wanted.number is not None and most.number is not None and wanted.number > most.number:
        yield warning(
            wanted,
            f"replicas {wanted.number} is above maxReplicas: the KubeRay operator makes {most.number}",
            f"write replicas: {most.number}, or raise maxReplicas",
        )
    if group.cluster.autoscaling:
        if not most.present and group.tpu:
            yield warning(
                most,
                "has no maxReplicas: the CRD's default is 2147483647, so the autoscaler may ask for any number "
                "of slices",
                "write the slices that you mean to pay for",
            )
        return
    missing = [node for node in (least, most) if not node.present]
    if missing:
        yield note(
            missing[0],
            "minReplicas and maxReplicas are both required without autoscaling; only the CRD's defaults, 0 "
            "and 2147483647, keep the KubeRay operator from refusing the RayCluster",
            "write both",
        )
    if not wanted.present and not least.number:
        yield warning(
            wanted, "has neither replicas nor minReplicas: without autoscaling the group stays empty", "write replicas"
        )


@rule(Group, "suspended-group", _OPERATOR)
def suspended(group: Group) -> Iterator[Problem]:
    """A worker group is suspended by RayJob's deletion rules, and never beside the autoscaler."""
    if group.node["suspend"].true and group.cluster.autoscaling:
        yield error(
            group.node["suspend"],
            "a worker group cannot be suspended with autoscaling: the KubeRay operator refuses the RayCluster",
            "take suspend out",
        )


def _group_params(cluster: Cluster) -> Iterator[tuple[str, Node]]:
    yield "head", cluster.head
    for group in cluster.groups:
        yield f"worker group {group.name}", group.node


@rule(Cluster, "start-params", _OPERATOR + "; Ray: ray start")
def start_params(cluster: Cluster) -> Iterator[Problem]:
    """rayStartParams beside the fields that replaced some of them."""
    for name, node in _group_params(cluster):
        params = node["rayStartParams"]
        if params["labels"].present:
            yield error(
                params["labels"],
                f"rayStartParams.labels of {name}: the KubeRay operator refuses it",
                "write them as the group's own field, labels",
            )
        clashing = [key for key in ("num-cpus", "num-gpus", "memory", "resources") if params[key].present]
        if clashing and node["resources"].fields:
            yield error(
                node["resources"],
                f"{name} has both resources and rayStartParams.{clashing[0]}: the KubeRay operator "
                "refuses the RayCluster",
                "keep one of them",
            )
        for key, value in params.fields.items():
            if "_" in key and not key.startswith("_"):
                yield error(
                    value,
                    f"ray start has no option --{key}: the container ends at once, again and again",
                    f"write {key.replace('_', '-')}",
                )


@rule(Group, "ray-resources", "KubeRay 1.7: addWellKnownAcceleratorResources")
def ray_resources(group: Group) -> Iterator[Problem]:
    """KubeRay gives Ray the TPU resource of the limit; one that is written by hand wins, right or wrong."""
    written = group.node["resources"]["TPU"]
    if written.present and group.pod.chips and str(written.value) != str(group.pod.chips):
        yield warning(
            written,
            f"tells Ray of {written.value} TPUs where the container has {group.pod.chips}: Ray places too "
            "much, or too little, on each host",
            f"write {group.pod.chips}, or take it out: KubeRay reads {TPU}",
        )
    inline = group.node["rayStartParams"]["resources"].text
    count = re.search(r'\\?"TPU\\?"\s*:\s*(\d+)', inline or "")
    if count and group.pod.chips and int(count.group(1)) != group.pod.chips:
        yield warning(
            group.node["rayStartParams"]["resources"],
            f"tells Ray of {count.group(1)} TPUs where the container has {group.pod.chips}",
            f"write {group.pod.chips}, or take it out: KubeRay reads {TPU}",
        )


@rule(Cluster, "group-labels", _OPERATOR + "; Ray 2.60: labels of a node")
def label_syntax(cluster: Cluster) -> Iterator[Problem]:
    """Group labels become Pod labels and Ray labels: both have Kubernetes' syntax."""
    for name, node in _group_params(cluster):
        for key, value in node["labels"].fields.items():
            if not _LABEL_KEY.match(key):
                yield error(
                    value,
                    f"{key!r} of {name} is no label key: the KubeRay operator refuses the RayCluster",
                    "use letters, digits, - _ . and at most one prefix with a /",
                )
            elif value.text is not None and not _LABEL_VALUE.match(value.text):
                yield error(
                    value,
                    f"{value.text!r} is no label value: the KubeRay operator refuses the RayCluster",
                    "use at most 63 letters, digits, - _ . with a letter or digit at both ends",
                )


@rule(Group, "group-labels", "Ray 2.60: group labels override those of every host")
def tpu_labels(group: Group) -> Iterator[Problem]:
    """Labels of a slice that a group sets itself must be true of all of its hosts."""
    if not group.tpu:
        return
    labels, pod = group.node["labels"], group.pod
    for key, differs in (("ray.io/tpu-worker-id", "host"), ("ray.io/tpu-slice-name", "slice")):
        node = labels[key]
        several = group.multi_host if differs == "host" else group.multi_host or (group.most or 2) > 1
        if node.present and several:
            yield error(
                node,
                f"{key} differs by {differs}, and a group's label overrides it on every host: Ray takes all of "
                "them for the same one and reserves broken slices",
                "take it out; Ray labels the hosts from what GKE sets",
            )
    if pod.machine is None or pod.generation is None:
        return
    right = TpuSlice(pod.generation.name, str(pod.topology.value), pod.machine.name).ray_labels
    for key, value in right.items():
        node = labels[key]
        if node.text is not None and node.text != value:
            yield error(
                node,
                f"says {node.text}, but the group's slices are {value}: Ray finds no host for what asks for {value}",
                f"write {value}",
            )
    if group.cluster.autoscaling and not any(key in labels.fields for key in right):
        yield note(
            labels,
            "has no TPU labels: a running host has them, but Ray's autoscaler knows a group's labels only from "
            "here, so nothing that selects by label makes it add a slice",
            "write labels: " + ", ".join(f"{key}: {value}" for key, value in right.items()),
        )


@rule(Cluster, "ray-version", "KubeRay 1.7: rayVersion chooses probes, autoscaler and authentication")
def ray_version(cluster: Cluster) -> Iterator[Problem]:
    """rayVersion is written and is that of the images; all nodes run one Ray (and one Python)."""
    node = cluster.node["rayVersion"]
    if node.placeholder:
        return
    pods: list[tuple[str, Pod]] = [("head", cluster.head_pod), *((group.name, group.pod) for group in cluster.groups)]
    images = [(name, pod.containers[0]["image"]) for name, pod in pods if pod.containers]
    tagged = [(name, image, match) for name, image in images if (match := _RAY_IMAGE.search(image.text or ""))]
    if not node.present:
        yield note(
            node,
            "has no rayVersion: the KubeRay operator takes the image for an old Ray, with slower probes; token "
            "authentication and priorities are refused",
            f"write rayVersion: {tagged[0][2].group(1)}" if tagged else "write the Ray version of the image",
        )
    elif node.text is not None and cluster.ray_version is None:
        yield error(
            node, f"{node.text!r} is no version: the KubeRay operator cannot compare it", "write it as in 2.60.0"
        )
    for name, image, match in tagged:
        if cluster.ray_version is not None and version(match.group(1)) != cluster.ray_version:
            yield warning(
                image,
                f"{name} runs Ray {match.group(1)}, rayVersion says {node.value}: the KubeRay operator sets up "
                "probes and the autoscaler for a Ray that is not there",
                f"write rayVersion: {match.group(1)}, or change the image",
            )
    if tagged:
        first = tagged[0][2]
        for name, image, match in tagged[1:]:
            if match.group(1) != first.group(1):
                yield error(
                    image,
                    f"{name} runs Ray {match.group(1)}, {tagged[0][0]} runs {first.group(1)}: ray start "
                    "refuses to join a cluster of another version",
                    "use one version for all groups",
                )
            elif None not in (match.group(2), first.group(2)) and match.group(2) != first.group(2):
                yield error(
                    image,
                    f"{name} runs Python {_python(match)}, {tagged[0][0]} {_python(first)}: "
                    "ray start refuses to join a cluster of another Python",
                    "use one Python for all groups",
                )


def _python(image: re.Match[str]) -> str:
    """`3.12` of -py312."""
    return f"3.{image.group(2)[4:]}"


@rule(Pod, "image-tag", "Kubernetes: tags move, digests and versions do not")
def latest(pod: Pod) -> Iterator[Problem]:
    """An image that changes under its tag gives hosts of one slice different programs."""
    for container in pod.containers:
        image = container["image"].text
        if image is None or "@" in image:
            continue
        tag = image.rpartition("/")[2].partition(":")[2]
        if tag in ("", "latest", "nightly"):
            say = warning if pod.role in ("head", "worker") else note
            yield say(
                container["image"],
                f"the tag {tag or 'latest'} moves: a Pod that restarts later may run another image "
                "than its peers" + (", and Ray refuses nodes of another version" if say is warning else ""),
                "write a version or a digest",
            )


@rule(Cluster, "cluster-upgrade", "KubeRay 1.7: ValidateRayClusterUpgradeOptions")
def cluster_upgrade(cluster: Cluster) -> Iterator[Problem]:
    """upgradeStrategy of a RayCluster is for those that stand alone."""
    node = cluster.node["upgradeStrategy"]
    if not node["type"].present:
        return
    if cluster.manifest.kind != "RayCluster":
        yield error(
            node,
            f"the KubeRay operator refuses upgradeStrategy in the cluster of a {cluster.manifest.kind}",
            "write it in the RayService's own spec" if cluster.manifest.kind == "RayService" else "take it out",
        )
