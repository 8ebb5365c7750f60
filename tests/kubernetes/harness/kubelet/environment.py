"""A container's environment and the files of its volumes, from its Pod, ConfigMaps and Secrets."""

import base64
import re
from collections.abc import Mapping
from decimal import ROUND_CEILING
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from tests.kubernetes.harness.async_api import Api, ApiError
from tests.kubernetes.harness.kubelet import machine
from tests.kubernetes.harness.namespace import NODE_ADDRESS

Object = Mapping[str, Any]


class NotYet(Exception):
    """An object that the Pod refers to does not exist yet. A kubelet waits for it."""


class Sources:
    """Resolves the ConfigMaps, Secrets, tokens and Pod fields that variables and files refer to."""

    def __init__(self, api: Api, pod: Object, node: Object, ip: str):
        self._api, self.pod, self.node, self._ip = api, pod, node, ip
        self.namespace = pod["metadata"]["namespace"]

    async def secret(self, name: str, optional: bool = False) -> dict[str, bytes] | None:
        """None if it does not exist and is optional. Raises NotYet if it is required."""
        found = await self._object("secret", name, optional)
        return found and {key: base64.b64decode(value) for key, value in found.get("data", {}).items()}

    async def config_map(self, name: str, optional: bool = False) -> dict[str, bytes] | None:
        found = await self._object("configmap", name, optional)
        return found and {key: value.encode() for key, value in found.get("data", {}).items()}

    async def token(self, audience: str | None) -> str:
        """A token of the Pod's service account."""
        account = self.pod["spec"].get("serviceAccountName", "default")
        spec: dict[str, Any] = {"expirationSeconds": 24 * 3600}
        if audience:
            spec["audiences"] = [audience]
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        return (await self._api.post(path, request))["status"]["token"]

    def field(self, path: str) -> str:
        """The value of a downward API field."""
        meta, spec = self.pod["metadata"], self.pod["spec"]
        if match := re.fullmatch(r"metadata\.(labels|annotations)\['(.*)'\]", path):
            return meta.get(match[1], {}).get(match[2], "")
        known = {
            "metadata.name": meta["name"],
            "metadata.namespace": meta["namespace"],
            "metadata.uid": meta["uid"],
            "spec.nodeName": spec["nodeName"],
            "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
            "status.podIP": self._ip,
            "status.podIPs": self._ip,
            "status.hostIP": NODE_ADDRESS,
            "status.hostIPs": NODE_ADDRESS,
        }
        if path not in known:
            raise NotYet(f"this kubelet does not know the field {path}")
        return known[path]

    def amount(self, container: Object, reference: Object) -> str:
        """A resource's limit in units of the divisor, rounded up; without a limit, the node's capacity."""
        bound, _, resource = reference["resource"].partition(".")
        if wanted := reference.get("containerName"):
            spec = self.pod["spec"]
            container = next(c for c in (*spec["containers"], *spec.get("initContainers", ())) if c["name"] == wanted)
        amounts = container.get("resources", {}).get(bound, {})
        value = amounts.get(resource) or self.node["status"]["allocatable"].get(resource, "0")
        divisor = reference.get("divisor", "1")
        exact = parse_quantity(value) / parse_quantity(divisor if divisor != "0" else "1")
        return str(int(exact.to_integral_value(ROUND_CEILING)))

    async def _object(self, kind: str, name: str, optional: bool) -> dict[str, Any] | None:
        try:
            return await self._api.get(f"/api/v1/namespaces/{self.namespace}/{kind}s/{name}")
        except ApiError as error:
            if error.status != 404:
                raise
            if optional:
                return None
            raise NotYet(f'{kind} "{name}" not found') from error


async def environment(sources: Sources, container: Object) -> dict[str, str]:
    """The container's variables. Raises NotYet, with a kubelet's message, while a referenced object is missing."""
    pod = sources.pod
    chips = int(container.get("resources", {}).get("limits", {}).get(machine.TPU, "0"))
    given = machine.image() | machine.patience()
    given |= {
        "HOSTNAME": pod["spec"].get("hostname") or pod["metadata"]["name"],
        "KUBERNETES_SERVICE_HOST": "kubernetes.default.svc",
        "KUBERNETES_SERVICE_PORT": "443",
    }
    if chips:
        given |= machine.device_plugin(pod, sources.node, chips)
    own = await _own(sources, container, given)
    return given | own | machine.no_chips(chips)


async def _own(sources: Sources, container: Object, given: Mapping[str, str]) -> dict[str, str]:
    own: dict[str, str] = {}
    for entry in container.get("envFrom") or ():
        prefix = entry.get("prefix", "")
        for field, read in (("secretRef", sources.secret), ("configMapRef", sources.config_map)):
            if reference := entry.get(field):
                values = await read(reference["name"], reference.get("optional", False)) or {}
                own |= {prefix + key: value.decode() for key, value in values.items()}
    for entry in container.get("env") or ():
        value = await _value(sources, container, entry, given | own)
        if value is not None:
            own[entry["name"]] = value
    return own


async def _value(sources: Sources, container: Object, entry: Object, before: Mapping[str, str]) -> str | None:
    source = entry.get("valueFrom")
    if source is None:
        return expand(entry.get("value", ""), before)
    if "fieldRef" in source:
        return sources.field(source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return sources.amount(container, source["resourceFieldRef"])
    kind = "secretKeyRef" if "secretKeyRef" in source else "configMapKeyRef"
    reference = source[kind]
    read = sources.secret if kind == "secretKeyRef" else sources.config_map
    optional = reference.get("optional", False)
    values = await read(reference["name"], optional)
    if values is None:
        return None
    if reference["key"] not in values:
        if optional:
            return None
        raise NotYet(f"couldn't find key {reference['key']} in {kind.removesuffix('KeyRef')} {reference['name']}")
    return values[reference["key"]].decode()


def expand(text: str, env: Mapping[str, str]) -> str:
    """`$(NAME)` becomes its value, where there is one; `$$(NAME)` becomes `$(NAME)`."""
    return re.sub(
        r"\$\$|\$\((\w+)\)",
        lambda match: "$" if match[0] == "$$" else env.get(match[1], match[0]),
        text,
    )
