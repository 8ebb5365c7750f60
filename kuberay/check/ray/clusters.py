"""Groups of a RayCluster: their number of slices, Ray resources and labels; and authentication."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Group, RayCluster
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.labels import TPU, TPU_SLICE_NAME, TPU_WORKER_ID


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
