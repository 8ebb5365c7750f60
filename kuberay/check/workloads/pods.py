"""What the API server refuses in a Pod though each value is right: those that do not go together.

A RayCluster's templates are stored unread. The operator makes Pods of them later, the API server refuses those, and the
cluster waits for ever with the reason in an event.
"""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Manifest
from kuberay.check.nodes import Node, quantity, repeated
from kuberay.check.pods import Container, Pod, Variable
from kuberay.check.rules import Problem, error, meant, nearest, note, rule, warning
from kuberay.check.subjects import subjects_of
from ray_configs.labels import TPU

_API = "Kubernetes API server: validation of Pods"
_REFUSED = "the API server refuses the Pod"
_IMAGE = re.compile(
    r"([a-zA-Z0-9.-]+(:\d+)?/)?"  # registry
    r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)


_OPERATORS_OWN = frozenset({"ray-logs", "shared-mem", "log-volume", "gcs-storage", "ray-token", "ray-tls"})
"""Volumes that the KubeRay operator adds to Ray's Pods."""


@rule(Pod, "toleration", _API)
def tolerations(pod: Pod) -> Iterator[Problem]:
    """A toleration's operator, effect and value fit together."""
    for item in pod.spec["tolerations"]:
        operator, value, effect = item["operator"], item["value"], item["effect"]
        if operator.value == "Exists" and value.value:
            yield error(value, f"a value beside operator Exists: {_REFUSED}", "take it out, or write operator: Equal")
        if not item["key"].value and operator.value != "Exists" and isinstance(item.value, dict):
            why = f"a toleration without key must have operator Exists: {_REFUSED}"
            yield error(item["key"], why, "write key, or Exists")
        if item["tolerationSeconds"].present and effect.value != "NoExecute":
            why = f"tolerationSeconds is for effect NoExecute alone: {_REFUSED}"
            yield error(item["tolerationSeconds"], why, "take it out, or write effect: NoExecute")


@rule(Container, "env", _API + "; KubeRay 1.7's CRD: env is a list with the key name")
def environment(container: Container) -> Iterator[Problem]:
    """A variable has a name without =, and is there once."""
    seen: dict[str, Variable] = {}
    for variable in container.variables:
        first, name = seen.setdefault(variable.name, variable), variable.node["name"]
        if "=" in variable.name:
            yield error(name, f"{variable.name!r} is no name of a variable: {_REFUSED}", "write it without =")
        if first is variable or not variable.name:
            continue
        twice = f"{variable.name} is set twice" + (f" (line {first.node.line})" if first.node.line else "")
        if container.pod.ray:
            why = f"{twice}: KubeRay's CRD allows one, the API server refuses the object"
            yield error(name, why, "keep one of them")
        elif first.node.value != variable.node.value:
            yield warning(name, f"{twice}: the later one wins, and server-side apply refuses both", "keep one of them")


@rule(Container, "image", "container runtimes: references of images")
def image(container: Container) -> Iterator[Problem]:
    """An image is named as registries name them: in small letters, without spaces."""
    image = container["image"]
    text = image.text or ""
    named = re.sub(r"[A-Z]+(_[A-Z]+)+", "x", text)  # PROJECT_ID, yet to be filled in
    if image.text is None or _IMAGE.fullmatch(named) or re.search("[${<]", named):
        return
    if not text:
        yield error(image, f"is empty: {_REFUSED}", "write the image")
    elif text != text.strip():
        yield error(image, f"{text!r} has spaces around it: {_REFUSED}", f"write {text.strip()}")
    else:
        why = f"{text!r} is no reference of an image: the Pod stays at InvalidImageName"
        yield error(image, why, "write registry/path:tag, the path in small letters and without spaces")


@rule(Container, "resources", _API)
def resources(container: Container) -> Iterator[Problem]:
    """Requests stay within limits, and claims are made by the Pod."""
    amounts = container["resources"]
    for name, wanted in amounts["requests"].fields.items():
        limit = amounts["limits"][name]
        asked, most = quantity(wanted), quantity(limit)
        if name != TPU and asked is not None and most is not None and asked > most:
            why = f"requests {wanted.value} of {name}, more than its limit of {limit.value}: {_REFUSED}"
            yield error(wanted, why, f"write at most {limit.value}, or raise the limit")
    made = {item["name"].text or "" for item in container.pod.spec["resourceClaims"]}
    for claim in amounts["claims"]:
        used = claim["name"].text
        if used is not None and used not in made:
            instead = meant(used, made, f"add {used} to the Pod's resourceClaims, or take it out")
            yield error(claim["name"], f"the Pod has no resource claim {used}: {_REFUSED}", instead)


@rule(Container, "probe", _API + "; the kubelet looks ports up by name")
def probes(container: Container) -> Iterator[Problem]:
    """A probe asks on a port that the container names, and only readiness takes several successes."""
    ports = {name for name in container.ports if name}
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe, success = container[kind], container[kind]["successThreshold"]
        if kind != "readinessProbe" and (success.number or 1) != 1:
            yield error(success, f"is 1 for every {kind}: {_REFUSED}", "take it out")
        for port in (probe[handler]["port"] for handler in ("httpGet", "tcpSocket")):
            if port.text and not port.text.isdigit() and port.text not in ports:
                known = f"write one of {', '.join(sorted(ports))}"
                instead = known if ports else f"add the name {port.text} to one of its ports"
                why = f"the container names no port {port.text}: the probe fails for ever"
                yield error(port, why, meant(port.text, ports, instead))


@rule(Pod, "container-name", "Kubernetes API server")
def names(pod: Pod) -> Iterator[Problem]:
    """Containers of a Pod have names of their own."""
    for name in repeated(container["name"] for container in pod.all_containers):
        why = f"two containers are named {name.text}: the API server refuses the Pod, and KubeRay tries again for ever"
        yield error(name, why, "give each container its own name")


def _claim_templates(spec: Node) -> Iterator[Node]:
    """Claims that a StatefulSet, LeaderWorkerSet or JobSet makes for its Pods, as volumes of the same names."""
    yield from spec["volumeClaimTemplates"]
    yield from spec["leaderWorkerTemplate"]["volumeClaimTemplates"]
    for policy in spec["volumeClaimPolicies"]:
        yield from policy["templates"]


@rule(Pod, "volume", "Kubernetes API server")
def volumes(pod: Pod) -> Iterator[Problem]:
    """A volume has a name of its own; what a container mounts is one of them, each path once."""
    names = [volume["name"] for volume in pod.spec["volumes"]]
    for name in repeated(names):
        yield error(name, f"two volumes are named {name.text}: {_REFUSED}", "give each its own name")
    known = {str(name.value) for name in names if name.present}
    known |= {str(claim.at("metadata", "name").value) for claim in _claim_templates(pod.node.document.node["spec"])}
    if pod.ray:
        known |= _OPERATORS_OWN
    for container in pod.all_containers:
        for mount in container["volumeMounts"]:
            used = mount["name"].text
            if used is not None and used not in known:
                why = f"the Pod has no volume {used}: the API server refuses the Pod, and its controller tries for ever"
                near = nearest(used, known - _OPERATORS_OWN)
                yield error(mount["name"], why, f"mount {near}" if near else f"add the volume {used}")
        for path in repeated(mount["mountPath"] for mount in container["volumeMounts"]):
            why = f"{path.text} is mounted twice in one container: {_REFUSED}"
            yield error(path, why, "mount each path once")


@rule(Manifest, "service-account", "Kubernetes: admission of service accounts; KubeRay 1.7 makes none that is named")
def service_account(manifest: Manifest) -> Iterator[Problem]:
    """The service account that a Pod names is among the objects, or was made before."""
    nodes = {
        node.text: node
        for subject in subjects_of(manifest)
        if isinstance(subject, Pod) and (node := subject.spec["serviceAccountName"]).text not in (None, "", "default")
    }
    if not nodes:
        return
    known = {
        other.name or ""
        for other in manifest.others
        if other.kind == "ServiceAccount" and other.namespace == manifest.namespace
    }
    for name, node in nodes.items():
        if name in known or name is None:
            continue
        near = nearest(name, known)
        yield (warning if known else note)(
            node,
            f"there is no ServiceAccount {name} among these objects: unless it exists in namespace "
            f"{manifest.namespace} already, the API server refuses the Pods",
            f"write {near}" if near else f"add the ServiceAccount {name}, or make it before",
        )
