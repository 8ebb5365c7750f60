"""Pods of a RayCluster: their images, the Ray version in them, and their service accounts."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Group, RayCluster
from kuberay.check.nodes import version
from kuberay.check.pods import Container
from kuberay.check.rules import Problem, error, note, rule, warning

_RAY_IMAGE = re.compile(r"(?:^|/)rayproject/ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)")


@rule(RayCluster, "ray-version", "KubeRay 1.7: rayVersion chooses probes, autoscaler and authentication")
def ray_version(cluster: RayCluster) -> Iterator[Problem]:
    """rayVersion is set, and equals that of the images."""
    node = cluster.node["rayVersion"]
    if node.placeholder:
        return
    images = [(group.title, group.ray["image"]) for group in cluster.all_groups if group.ray]
    tagged = [(title, image, match) for title, image in images if (match := _RAY_IMAGE.search(image.text or ""))]
    if not node.present:
        why = "has no rayVersion: the KubeRay operator takes the image for an old Ray, with slower probes"
        yield note(node, why, f"write rayVersion: {tagged[0][2][1] if tagged else 'that of the image'}")
    elif node.text is not None and cluster.ray_version is None:
        yield error(
            node, f"{node.text!r} is not a version: the KubeRay operator cannot compare it", "write it as in 2.60.0"
        )
    for title, image, match in tagged:
        ray = match[1]
        if cluster.ray_version is not None and version(ray) != cluster.ray_version:
            why = f"{title} runs Ray {ray}, but the KubeRay operator sets up probes and autoscaler for {node.value}"
            yield warning(image, why, f"write rayVersion: {ray}, or change the image")


@rule(Container, "image-tag", "Kubernetes: tags move, digests and versions do not")
def image_tag(container: Container) -> Iterator[Problem]:
    """Images have fixed tags. Behind a moving tag, hosts of one slice may run different programs."""
    image = container["image"].text
    tag = (image or "").rpartition("/")[2].partition(":")[2]
    if image is not None and "@" not in image and not container.init and tag in ("", "latest", "nightly"):
        why = f"the tag {tag or 'latest'} moves: a Pod that restarts later may run another image than its peers"
        refused = ", and Ray refuses nodes of another version" if container.pod.group else ""
        say = warning if container.pod.group else note
        yield say(container["image"], why + refused, "write a version or a digest")


@rule(Group, "shared-rights", "KubeRay 1.7: BuildRole, BuildRoleBinding of the autoscaler")
def rights(group: Group) -> Iterator[Problem]:
    """Workers do not share the head's service account, which may change Pods and RayClusters for the autoscaler."""
    account, heads = (each.pod.spec["serviceAccountName"] for each in (group, group.cluster.head))
    if group.cluster.autoscaling and not group.is_head and account.text and account.text == heads.text:
        why = f"is also the head's and has the autoscaler's rights: {group.name} may delete Pods and change RayClusters"
        yield note(account, why, "give the head its own service account")
