"""What the API server refuses in a Pod though each value is right: those that do not go together.

A RayCluster's templates are stored unread. The operator makes Pods of them later, the API server refuses those, and the
cluster waits for ever with the reason in an event.
"""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Container, Manifest, Pod
from kuberay.check.nodes import Node, repeated
from kuberay.check.rules import Problem, error, meant, note, rule, warning
from kuberay.check.subjects import subjects_of
from ray_configs.base import nearest
from ray_configs.cluster.labels import GCS_FUSE

_API = "Kubernetes API server: validation of Pods"
_REFUSED = "the API server refuses the Pod"
_PART = r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*"
_IMAGE = re.compile(
    rf"([a-zA-Z0-9.-]+(:\d+)?/)?{_PART}(/{_PART})*"  # registry and path
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"  # tag and digest
)
_BLANK = re.compile(r"[A-Z]+(_[A-Z]+)+")
"""PROJECT_ID, in a name that has no capital letters."""
_GCSFUSE = "gcsfuse.csi.storage.gke.io"
_OPERATORS_OWN = frozenset({"ray-logs", "shared-mem", "log-volume", "gcs-storage", "ray-token", "ray-tls"})
"""Volumes that the KubeRay operator adds to Ray's Pods."""


@rule(Pod, "toleration", _API)
def tolerations(pod: Pod) -> Iterator[Problem]:
    """A toleration with operator Exists has no value, not even TPU nodes' own, `present`."""
    for item in pod.spec["tolerations"]:
        if item["operator"].value == "Exists" and item["value"].value:
            instead = "take it out, or write operator: Equal"
            yield error(item["value"], f"a value beside operator Exists: {_REFUSED}", instead)


@rule(Container, "env", "KubeRay 1.7's CRD: env is a list with the key name")
def environment(container: Container) -> Iterator[Problem]:
    """A variable is there once."""
    for name in repeated(item["name"] for item in container["env"]):
        if container.pod.ray:
            why = f"{name.value} is set twice: KubeRay's CRD allows one, the API server refuses the object"
            yield error(name, why, "keep one of them")
        else:
            why = f"{name.value} is set twice: the later one wins, and server-side apply refuses both"
            yield warning(name, why, "keep one of them")


@rule(Container, "image", "container runtimes: references of images")
def image(container: Container) -> Iterator[Problem]:
    """An image is named as registries name them: in small letters, without spaces."""
    image = container["image"]
    blank = _BLANK.search(image.text or "")
    named = _BLANK.sub("x", image.text or "")
    if blank:
        why = f"{blank[0]} in {image.text} is still to be filled in: such an image cannot be pulled"
        yield note(image, why, "write your own project or registry")
    if image.text is not None and not _IMAGE.fullmatch(named) and not re.search("[${<]", named):
        why = f"{image.text!r} is no reference of an image: it is refused, or the Pod stays at InvalidImageName"
        yield error(image, why, "write registry/path:tag, the path in small letters and without spaces")


@rule(Container, "resources", _API)
def resources(container: Container) -> Iterator[Problem]:
    """Resource claims that a container uses are made by the Pod."""
    made = {item["name"].text or "" for item in container.pod.spec["resourceClaims"]}
    for used in (claim["name"] for claim in container["resources"]["claims"]):
        if used.text is not None and used.text not in made:
            instead = meant(used.text, made, f"add {used.text} to the Pod's resourceClaims, or take it out")
            yield error(used, f"the Pod has no resource claim {used.text}: {_REFUSED}", instead)


@rule(Container, "probe", "the kubelet looks ports up by name")
def probes(container: Container) -> Iterator[Problem]:
    """A probe asks on a port that the container names."""
    ports = [name for name in container.ports if name]
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        for port in (container[kind][handler]["port"] for handler in ("httpGet", "tcpSocket")):
            if port.text and not port.text.isdigit() and port.text not in ports:
                why = f"the container names no port {port.text}: the probe fails for ever"
                yield error(port, why, meant(port.text, ports, f"add the name {port.text} to one of its ports"))


@rule(Pod, "volume", _API)
def volumes(pod: Pod) -> Iterator[Problem]:
    """What a container mounts is a volume of the Pod."""
    known = {str(volume["name"].value) for volume in pod.spec["volumes"]}
    known |= {str(claim["metadata"]["name"].value) for claim in _claim_templates(pod.manifest.spec)}
    for container in (*pod.init_containers, *pod.containers):
        for used in (mount["name"] for mount in container["volumeMounts"]):
            if used.text is not None and used.text not in known and not (pod.ray and used.text in _OPERATORS_OWN):
                near = nearest(used.text, known)
                instead = f"mount {near}" if near else f"add the volume {used.text}"
                yield error(used, f"the Pod has no volume {used.text}: {_REFUSED}, again and again", instead)


def _claim_templates(spec: Node) -> Iterator[Node]:
    """Claims that a StatefulSet, LeaderWorkerSet or JobSet makes for its Pods, as volumes of the same names."""
    yield from spec["volumeClaimTemplates"]
    yield from spec["leaderWorkerTemplate"]["volumeClaimTemplates"]
    for policy in spec["volumeClaimPolicies"]:
        yield from policy["templates"]


@rule(Pod, "gcsfuse-annotation", "GKE: the Cloud Storage FUSE CSI driver's webhook reads the Pod's own annotation")
def gcsfuse(pod: Pod) -> Iterator[Problem]:
    """A Pod that mounts a bucket is annotated, so that GKE adds the sidecar that mounts it."""
    annotations = pod.node["metadata"]["annotations"]
    for volume in pod.spec["volumes"]:
        if volume["csi"]["driver"].value == _GCSFUSE and str(annotations[GCS_FUSE].value).lower() != "true":
            outer = pod.manifest.metadata["annotations"][GCS_FUSE].present and pod.node.path
            lost = f"; the one on the {pod.manifest.kind} itself does not reach its Pods" if outer else ""
            why = f"mounts a bucket, but the Pod has no annotation {GCS_FUSE}: without GKE's sidecar it never starts"
            yield error(volume, why + lost, f'annotate the Pod template: {GCS_FUSE}: "true"')


@rule(Pod, "host-network", "Kubernetes: dnsPolicy of Pods with hostNetwork")
def host_network(pod: Pod) -> Iterator[Problem]:
    """A Pod in the host's network that looks up Services or other Pods asks the cluster's DNS."""
    policy = pod.spec["dnsPolicy"]
    looks_up = pod.hosts > 1 or pod.ray or pod.spec["subdomain"].present
    if pod.spec["hostNetwork"].value is True and looks_up and policy.value in (None, "ClusterFirst", "Default"):
        why = "with hostNetwork the Pod asks the node's DNS, which knows neither Services nor the other hosts: it hangs"
        yield error(policy, why, "write dnsPolicy: ClusterFirstWithHostNet")


@rule(Manifest, "service-account", "Kubernetes: admission of service accounts; KubeRay 1.7 makes none that is named")
def service_account(manifest: Manifest) -> Iterator[Problem]:
    """The service account that a Pod names is among the objects, or was made before."""
    pods = (subject for subject in subjects_of(manifest) if isinstance(subject, Pod))
    named = {node.text: node for node in (pod.spec["serviceAccountName"] for pod in pods)}
    accounts = (each for each in manifest.others if named and each.kind == "ServiceAccount")
    known = {each.name or "" for each in accounts if each.namespace == manifest.namespace}
    for name, node in named.items():
        if name and name not in ("default", *known):
            why = f"there is no ServiceAccount {name} among these objects: unless it exists already, Pods are refused"
            instead = meant(name, known, f"add the ServiceAccount {name}, or make it before")
            yield (warning if known else note)(node, why, instead)
