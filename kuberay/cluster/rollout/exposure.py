"""NAME-serve-svc: the operator creates it once and never updates it while the Ray cluster stays."""

from dataclasses import dataclass
from typing import Any

from kuberay.cluster.manifests import Manifest
from kuberay.cluster.rollout.sameness import differences, same, short
from ray_configs.cluster.labels import LOAD_BALANCER_TYPE


@dataclass(frozen=True)
class RolloutStep:
    """A step after the RayService is applied: patch its Ray cluster, or recreate its Service."""

    title: str  # RayCluster llama-abcde
    words: str  # group tpu-v5e-4x8: replicas 2 -> 4
    target: Manifest
    patch: tuple[dict[str, Any], ...] = ()  # JSON patch; none: delete and create `target`


def recreation(service: Manifest, after: Manifest) -> list[RolloutStep]:
    """The step that recreates NAME-serve-svc, if it differs from what the operator would create now."""
    asked = after["spec"].get("serveService") or {}
    head = after["spec"]["rayClusterConfig"]["headGroupSpec"]
    spec = {key: value for key, value in (asked.get("spec") or {}).items() if key != "selector"}
    spec.setdefault("type", head.get("serviceType") or "ClusterIP")
    named = {port.get("name"): port for port in spec.pop("ports", None) or []}
    container = head["template"]["spec"]["containers"][0]
    served = [port for port in container.get("ports") or [] if _serves(port.get("name"))]
    ports = [named.get(port["name"], {"name": port["name"], "port": port["containerPort"]}) for port in served]
    spec["ports"] = [
        {"protocol": "TCP", "targetPort": port["port"]} | port
        for port in ports or named.values()
        if _serves(port.get("name"))
    ]
    notes = (asked.get("metadata") or {}).get("annotations") or {}
    had = service["metadata"].get("annotations") or {}
    words = [
        f"{path} {short(old)} -> {short(new)}"
        for path, old, new in differences(service["spec"], spec, zeros=True)
        if new is not None or path.endswith("]")  # fields that only the live Service has are Kubernetes' defaults
    ]
    for key in {*notes, LOAD_BALANCER_TYPE}:
        if not same(had.get(key), notes.get(key)):
            words.append(f"annotation {key} {short(had.get(key))} -> {short(notes.get(key))}")
    if not words:
        return []
    kept = ("name", "namespace", "labels", "ownerReferences")
    metadata = {key: service["metadata"][key] for key in kept if key in service["metadata"]}
    target = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata | {"annotations": notes},
        "spec": spec | {"selector": service["spec"].get("selector")},
    }
    title = f"Service {service['metadata']['name']}"
    return [
        RolloutStep(
            title, f"recreated ({'; '.join(words)}): unreachable for a moment, and its address may change", target
        )
    ]


def _serves(name: str | None) -> bool:
    return name == "serve" or str(name).startswith("serve-")
