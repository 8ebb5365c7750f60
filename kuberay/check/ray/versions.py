"""Versions: all hosts of a cluster run one Ray, and the operator is told which."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Cluster
from kuberay.check.nodes import version
from kuberay.check.pods import Container
from kuberay.check.rules import Problem, error, note, rule, warning

_RAY_IMAGE = re.compile(r"(?:^|/)rayproject/ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)[^-@]*(-py\d+)?")


@rule(Cluster, "ray-version", "KubeRay 1.7: rayVersion chooses probes, autoscaler and authentication")
def ray_version(cluster: Cluster) -> Iterator[Problem]:
    """rayVersion is written and is that of the images; all nodes run one Ray (and one Python)."""
    node = cluster.node["rayVersion"]
    if node.placeholder:
        return
    images = [(group.name or "head", group.ray["image"]) for group in cluster.all_groups if group.ray]
    tagged = [(name, image, match) for name, image in images if (match := _RAY_IMAGE.search(image.text or ""))]
    if not node.present:
        why = (
            "has no rayVersion: the KubeRay operator takes the image for an old Ray, with slower probes; token "
            "authentication and priorities are refused"
        )
        yield note(node, why, f"write rayVersion: {tagged[0][2][1] if tagged else 'that of the image'}")
    elif node.text is not None and cluster.ray_version is None:
        why = f"{node.text!r} is no version: the KubeRay operator cannot compare it"
        yield error(node, why, "write it as in 2.60.0")
    for name, image, match in tagged:
        first, _, chosen = tagged[0]
        if cluster.ray_version is not None and version(match[1]) != cluster.ray_version:
            why = (
                f"{name} runs Ray {match[1]}, rayVersion says {node.value}: the KubeRay operator sets up probes and "
                "the autoscaler for a Ray that is not there"
            )
            yield warning(image, why, f"write rayVersion: {match[1]}, or change the image")
        refuses = "ray start refuses to join a cluster of another"
        if match[1] != chosen[1]:
            why = f"{name} runs Ray {match[1]}, {first} runs {chosen[1]}: {refuses} version"
            yield error(image, why, "use one version for all groups")
        elif None not in (match[2], chosen[2]) and match[2] != chosen[2]:
            why = f"{name} runs Python {_python(match)}, {first} {_python(chosen)}: {refuses} Python"
            yield error(image, why, "use one Python for all groups")


def _python(image: re.Match[str]) -> str:
    """`3.12` of -py312."""
    return f"3.{image.group(2)[4:]}"


@rule(Container, "image-tag", "Kubernetes: tags move, digests and versions do not")
def image_tag(container: Container) -> Iterator[Problem]:
    """An image that changes under its tag gives hosts of one slice different programs."""
    image = container["image"].text
    tag = (image or "").rpartition("/")[2].partition(":")[2]
    if image is None or "@" in image or container.init or tag not in ("", "latest", "nightly"):
        return
    of_ray = container.pod.group is not None
    why = f"the tag {tag or 'latest'} moves: a Pod that restarts later may run another image than its peers"
    refused = ", and Ray refuses nodes of another version" if of_ray else ""
    yield (warning if of_ray else note)(container["image"], why + refused, "write a version or a digest")
