"""What the API server refuses in a Pod though its types are right: words of no meaning, fields that exclude each other.

A RayCluster's templates are stored unread. The operator makes Pods of them later, the API server refuses those, and the
cluster waits for ever with the reason in an event.
"""

import re
from collections.abc import Iterator

from kuberay.check.nodes import Node, quantity
from kuberay.check.pods import Container, Pod, Variable
from kuberay.check.rules import Problem, error, meant, rule, warning
from ray_configs.labels import TPU

_API = "Kubernetes API server: validation of Pods"
_REFUSED = "the API server refuses the Pod"
_HANDLERS = ("httpGet", "exec", "tcpSocket", "grpc")
_HOOKS = ("exec", "httpGet", "sleep", "tcpSocket")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_IMAGE = re.compile(
    r"([a-zA-Z0-9.-]+(:\d+)?/)?"  # registry
    r"[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_{1,2}|-+)[a-z0-9]+)*)*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@[a-z0-9]+([+._-][a-z0-9]+)*:[0-9a-fA-F]{32,})?"
)
_FIELDS = re.compile(
    r"metadata\.(name|namespace|uid|labels|annotations)(\['[^']+'\])?"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIP|hostIPs|podIP|podIPs)"
)


def _one_of(node: Node, choices: tuple[str, ...]) -> Iterator[Problem]:
    if node.text and node.text not in choices:
        instead = meant(node.text, choices, f"write one of {', '.join(choices)}")
        yield error(node, f"{node.text} is none of {', '.join(choices)}: {_REFUSED}", instead)


@rule(Pod, "pod-value", _API)
def words(pod: Pod) -> Iterator[Problem]:
    """Fields that know a few words, label values and port numbers take no other."""
    spec = pod.spec
    yield from _one_of(spec["restartPolicy"], ("Always", "OnFailure", "Never"))
    yield from _one_of(spec["dnsPolicy"], ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"))
    for key, value in spec["nodeSelector"].fields.items():
        if value.text is not None and not _LABEL_VALUE.fullmatch(value.text):
            why = f"{value.text!r} is no label value, which {key} must have: {_REFUSED}"
            yield error(value, why, "use at most 63 letters, digits, - _ . with a letter or digit at both ends")
    for key in ("terminationGracePeriodSeconds", "activeDeadlineSeconds"):
        if (spec[key].number or 0) < 0:
            yield error(spec[key], f"is negative: {_REFUSED}", "write seconds, 0 or more")


@rule(Container, "pod-value", _API)
def container_words(container: Container) -> Iterator[Problem]:
    """The same of its containers."""
    yield from _one_of(container["imagePullPolicy"], ("IfNotPresent", "Always", "Never"))
    yield from _one_of(container["terminationMessagePolicy"], ("File", "FallbackToLogsOnError"))
    for port in container["ports"]:
        yield from _one_of(port["protocol"], ("TCP", "UDP", "SCTP"))
        yield from _port_number(port["containerPort"])


@rule(Pod, "toleration", _API)
def tolerations(pod: Pod) -> Iterator[Problem]:
    """A toleration's operator, effect and value fit together."""
    for item in pod.spec["tolerations"]:
        operator, value, effect = item["operator"], item["value"], item["effect"]
        yield from _one_of(operator, ("Exists", "Equal"))  # Lt and Gt have a feature gate that is off
        yield from _one_of(effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        if operator.value == "Exists" and value.value:
            yield error(value, f"a value beside operator Exists: {_REFUSED}", "take it out, or write operator: Equal")
        if not item["key"].value and operator.value != "Exists" and isinstance(item.value, dict):
            why = f"a toleration without key must have operator Exists: {_REFUSED}"
            yield error(item["key"], why, "write key, or Exists")
        if item["tolerationSeconds"].present and effect.value != "NoExecute":
            why = f"tolerationSeconds is for effect NoExecute alone: {_REFUSED}"
            yield error(item["tolerationSeconds"], why, "take it out, or write effect: NoExecute")


@rule(Variable, "env", _API)
def variable(variable: Variable) -> Iterator[Problem]:
    """A variable has one value from one place."""
    origin = variable.node["valueFrom"]
    if variable.value.value and origin.present:
        yield error(origin, f"{variable.name} has a value and a valueFrom: {_REFUSED}", "keep one of them")
    if origin.present and not origin.placeholder:
        yield from _origin(origin)
    if "=" in variable.name:
        why = f"{variable.name!r} is no name of a variable: {_REFUSED}"
        yield error(variable.node["name"], why, "write it without =")


@rule(Container, "env", _API + "; KubeRay 1.7's CRD: env is a list with the key name")
def environment(container: Container) -> Iterator[Problem]:
    """A variable is there once, and envFrom names one source."""
    seen: dict[str, Variable] = {}
    for variable in container.variables:
        first, name = seen.setdefault(variable.name, variable), variable.node["name"]
        if first is variable or not variable.name:
            continue
        twice = f"{variable.name} is set twice" + (f" (line {first.node.line})" if first.node.line else "")
        if container.pod.ray:
            why = f"{twice}: KubeRay's CRD allows one, the API server refuses the object"
            yield error(name, why, "keep one of them")
        elif first.node.value != variable.node.value:
            yield warning(name, f"{twice}: the later one wins, and server-side apply refuses both", "keep one of them")
    for item in container["envFrom"]:
        given = [key for key in ("secretRef", "configMapRef") if item[key].present]
        if len(given) != 1 and isinstance(item.value, dict):
            yield error(item, f"needs one of secretRef and configMapRef: {_REFUSED}", "write one of them")


def _origin(origin: Node) -> Iterator[Problem]:
    given = [node for key, node in origin.fields.items() if key.endswith(("Ref", "KeyRef")) and node.present]
    if len(given) != 1:
        said = " and ".join(str(node.path[-1]) for node in given) or "nothing"
        yield error(
            origin, f"comes from {said}, and one source is wanted: {_REFUSED}", "write one, such as secretKeyRef"
        )
        return
    (source,) = given
    kind = source.path[-1]
    if kind in ("secretKeyRef", "configMapKeyRef"):
        thing = "Secret" if kind == "secretKeyRef" else "ConfigMap"
        for key, what in (("name", f"the {thing}"), ("key", f"an entry of the {thing}")):
            if source[key].value in (None, ""):
                yield error(source[key], f"names no {key} of the {thing}: {_REFUSED}", f"write {key}: {what}")
    elif kind == "fieldRef" and source["fieldPath"].text and not _FIELDS.fullmatch(source["fieldPath"].text):
        path = source["fieldPath"]
        fields = ("metadata.name", "metadata.namespace", "spec.nodeName", "status.podIP", "status.hostIP")
        why = f"{path.text} is no field that a variable can have: {_REFUSED}"
        yield error(path, why, meant(path.text or "", fields, "write such as metadata.name or status.podIP"))


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
        name = claim["name"].text
        if name is not None and name not in made:
            instead = meant(name, made, f"add {name} to the Pod's resourceClaims, or take it out")
            yield error(claim["name"], f"the Pod has no resource claim {name}: {_REFUSED}", instead)


@rule(Container, "probe", _API + "; the kubelet looks ports up by name")
def probes(container: Container) -> Iterator[Problem]:
    """A probe asks in one way, at sensible times, on a port that the container names."""
    ports = {port["name"].text for port in container["ports"]}
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        probe = container[kind]
        if not isinstance(probe.value, dict) or probe.placeholder:
            continue
        yield from _one_handler(probe, _HANDLERS, "asks")
        for key in ("initialDelaySeconds", "periodSeconds", "timeoutSeconds", "failureThreshold"):
            if (probe[key].number or 0) < 0:
                yield error(probe[key], f"is negative: {_REFUSED}", "write 1 or more")
        success = probe["successThreshold"]
        if kind != "readinessProbe" and (success.number or 1) != 1:
            yield error(success, f"is 1 for every {kind}: {_REFUSED}", "take it out")
        for port in (probe[handler]["port"] for handler in ("httpGet", "tcpSocket")):
            yield from _port_number(port)
            if port.text and not port.text.isdigit() and port.text not in ports:
                why = f"the container names no port {port.text}: the probe fails for ever"
                known = ", ".join(sorted(filter(None, ports)))
                instead = f"write one of {known}" if known else f"add the name {port.text} to one of its ports"
                yield error(port, why, meant(port.text, filter(None, ports), instead))
    for hook in ("preStop", "postStart"):
        if isinstance(container["lifecycle"][hook].value, dict):
            yield from _one_handler(container["lifecycle"][hook], _HOOKS, "does")


def _one_handler(node: Node, handlers: tuple[str, ...], verb: str) -> Iterator[Problem]:
    given = [key for key in handlers if node[key].present]
    if len(given) != 1 and not any("$" in key or "{" in key for key in node.fields):
        said = " and ".join(given) or "nothing"
        yield error(node, f"{verb} {said}, and one thing is wanted: {_REFUSED}", f"write one of {', '.join(handlers)}")


def _port_number(node: Node) -> Iterator[Problem]:
    if node.number is not None and not 1 <= node.number <= 65535:
        yield error(node, f"{node.number} is no port: {_REFUSED}", "write 1 to 65535")


@rule(Pod, "volume-source", _API)
def volumes(pod: Pod) -> Iterator[Problem]:
    """A volume has a name of its own and one source."""
    seen: set[str] = set()
    for volume in pod.spec["volumes"]:
        name = volume["name"].text
        if name is not None and name in seen:
            yield error(volume["name"], f"two volumes are named {name}: {_REFUSED}", "give each its own name")
        seen.add(name or "")
        sources = [key for key, node in volume.fields.items() if key != "name" and node.present]
        if len(sources) > 1 and not volume.placeholder:
            yield error(volume, f"is {' and '.join(sources)} at once: {_REFUSED}", "keep one of them")
