"""Pods of a RayCluster: the Ray in their images, its object store in memory, and whose rights they have."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Group, RayCluster
from kuberay.check.nodes import quantity, version
from kuberay.check.pods import Container
from kuberay.check.rules import Problem, error, note, rule, warning

_RAY_IMAGE = re.compile(r"(?:^|/)rayproject/ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)[^-@]*(?:-py3(\d+))?")
_SHARE = 0.29
"""Of a container's memory that Ray takes for its object store: 0.3 of what is left when it starts."""
_DISK = 10e9
"""Ray makes its store no larger than /dev/shm, but for stores below this size."""


@rule(RayCluster, "ray-version", "KubeRay 1.7: rayVersion chooses probes, autoscaler and authentication")
def ray_version(cluster: RayCluster) -> Iterator[Problem]:
    """rayVersion is set and equals that of the images; all nodes run one Ray and one Python."""
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
        ray, python = match.groups()
        if cluster.ray_version is not None and version(ray) != cluster.ray_version:
            why = f"{title} runs Ray {ray}, but the KubeRay operator sets up probes and autoscaler for {node.value}"
            yield warning(image, why, f"write rayVersion: {ray}, or change the image")
        first, first_ray, first_python = tagged[0][0], *tagged[0][2].groups()
        if ray != first_ray:
            why = f"{title} runs Ray {ray}, {first} runs {first_ray}: ray start refuses to join a cluster of another"
            yield error(image, why, "use one version for all groups")
        elif None not in (python, first_python) and python != first_python:
            why = f"{title} runs Python 3.{python}, {first} 3.{first_python}: ray start refuses to join another"
            yield error(image, why, "use one Python for all groups")


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


@rule(Group, "object-store", "Ray 2.60: resolve_object_store_memory")
def object_store(group: Group) -> Iterator[Problem]:
    """/dev/shm holds Ray's object store, or Ray puts it on disk."""
    if group.ray is None or group.params["plasma-directory"].present:
        return
    mounts = [mount for mount in group.ray["volumeMounts"] if mount["mountPath"].text in ("/dev/shm", "/dev/shm/")]
    mounted = {mount["name"].value for mount in mounts}
    memory = quantity(group.ray["resources"]["limits"]["memory"])
    asked = group.params["object-store-memory"].text or ""
    for limit in (each["emptyDir"]["sizeLimit"] for each in group.pod.spec["volumes"] if each["name"].value in mounted):
        if (size := quantity(limit)) is None:
            continue
        store, how = min(_SHARE * (memory or 0), max(_DISK, 0.95 * size)), "0.3 of the container's memory"
        if asked.isdigit():
            store, how = float(asked), "object-store-memory"
        if store > size:
            why = f"is less than Ray's object store, {store / 1e9:.2g} GB ({how}): Ray puts it into /tmp, on disk"
            instead = f"write {int(1.2 * store / 1e6)}M or more, or a smaller object-store-memory in rayStartParams"
            yield warning(limit, why, instead)


@rule(Group, "shared-rights", "KubeRay 1.7: BuildRole, BuildRoleBinding of the autoscaler")
def rights(group: Group) -> Iterator[Problem]:
    """Workers do not share the head's service account, which may change Pods and RayClusters for the autoscaler."""
    account, heads = (each.pod.spec["serviceAccountName"] for each in (group, group.cluster.head))
    if group.cluster.autoscaling and not group.is_head and account.text and account.text == heads.text:
        why = f"is also the head's and has the autoscaler's rights: {group.name} may delete Pods and change RayClusters"
        yield note(account, why, "give the head its own service account")
