"""Groups of a RayCluster: their number of slices, resources and labels, the Ray in their images, its object store in
memory, and whose rights they have; and authentication.
"""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Container, Group, RayCluster
from kuberay.check.nodes import quantity, version
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.cluster.labels import TPU, TPU_SLICE_NAME, TPU_WORKER_ID

_RAY_IMAGE = re.compile(r"(?:^|/)rayproject/ray(?:-ml|-llm)?:(\d+\.\d+\.\d+)[^-@]*(?:-py3(\d+))?")
_SHARE = 0.29
"""Of a container's memory that Ray takes for its object store: 0.3 of what is left when it starts."""
_DISK = 10e9
"""Ray makes its store no larger than /dev/shm, but for stores below this size."""


@rule(Group, "replicas", "KubeRay 1.7's CRD: defaults of replicas, minReplicas and maxReplicas")
def replicas(group: Group) -> Iterator[Problem]:
    """A group has slices, and a limit on those that the autoscaler may add."""
    wanted, most = group.node["replicas"], group.node["maxReplicas"]
    if group.cluster.autoscaling and group.tpu and not most.present:
        why = "has no maxReplicas: the CRD's default is 2147483647, so the autoscaler may request any number of slices"
        yield warning(most, why, "write the number of slices that you would pay for")
    if not group.is_head and not group.cluster.autoscaling and not wanted.present and not group.least:
        why = "has neither replicas nor minReplicas: without autoscaling the group stays empty"
        yield warning(wanted, why, "write replicas")


@rule(Group, "ray-resources", "KubeRay 1.7: addWellKnownAcceleratorResources")
def ray_resources(group: Group) -> Iterator[Problem]:
    """A TPU resource in the manifest equals the limit, from which KubeRay derives it by default."""
    written, inline, chips = group.node["resources"]["TPU"], group.params["resources"], group.pod.chips
    inside = re.search(r'\\?"TPU\\?"\s*:\s*(\d+)', inline.text or "")
    for node, count in ((written, str(written.value)), (inline, inside[1] if inside else None)):
        if node.present and count and group.tpu and chips and count != str(chips):
            why = f"tells Ray of {count} TPUs, but the container has {chips}: Ray places too much or too little there"
            yield warning(node, why, f"write {chips}, or remove it: KubeRay reads {TPU}")


@rule(Group, "group-labels", "Ray 2.60: a group's labels override those of each host")
def tpu_labels(group: Group) -> Iterator[Problem]:
    """Slice labels that a group sets are true of all of its hosts."""
    labels = group.node["labels"]
    if not group.tpu:
        return
    for key, differs in ((TPU_WORKER_ID, "host"), (TPU_SLICE_NAME, "slice")):
        if labels[key].present and (group.multi_host or (differs == "slice" and (group.most or 2) > 1)):
            why = f"{key} differs by {differs}, and here all have the same one: Ray reserves broken slices"
            yield error(labels[key], why, "remove it; Ray labels the hosts from what GKE sets")
    right = group.pod.slice.ray_labels if group.pod.slice else {}
    for key, value in right.items():
        if labels[key].text not in (None, value):
            why = f"says {labels[key].text}, but the group's slices are {value}: Ray finds no host for what selects it"
            yield error(labels[key], why, f"write {value}")
    if right and group.cluster.autoscaling and not any(key in labels.fields for key in right):
        why = "has no TPU labels, and Ray's autoscaler knows no others: it adds no slice for what selects by label"
        yield note(labels, why, "write labels: " + ", ".join(f"{key}: {value}" for key, value in right.items()))


@rule(RayCluster, "auth", "KubeRay 1.7: authOptions (kuberay#2586)")
def authentication(cluster: RayCluster) -> Iterator[Problem]:
    """Only `mode: token` turns token authentication on. It is not the default, although the CRD says so."""
    options = cluster.node["authOptions"]
    if options.present and not options["mode"].present:
        why = "does not turn authentication on: the KubeRay operator acts only on mode: token (kuberay#2586)"
        yield warning(options, why, "write mode: token")


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
