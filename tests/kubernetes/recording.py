"""What the operator and webhook made of a manifest, without what is different each time: names, addresses, dates."""

import json
import re
from pathlib import Path
from typing import Any

from tests.kubernetes.catalog_manifests import PLACEHOLDERS, Object, items
from tests.kubernetes.clusters import Cluster

RECORDED = Path(__file__).parent / "recorded"
KINDS = {
    "pods": "pods",
    "services": "services",
    "rayclusters": "rayclusters",
    "rayservices": "rayservices",
    "rbac": "roles,rolebindings",
}
CHANGING_METADATA = (
    "managedFields", "uid", "resourceVersion", "creationTimestamp", "generation", "generateName", "ownerReferences"
)  # fmt: skip
CHANGING_LABELS = ("controller-uid", "batch.kubernetes.io/controller-uid")
REPLICA_NAME = "ray.io/worker-group-replica-name"


def record(cluster: Cluster, namespace: str, manifest: Path) -> Object:
    """Call it once all Pods are there."""
    found = {key: [clean(item) for item in items(cluster, namespace, kinds)] for key, kinds in KINDS.items()}
    found["pods"].sort(key=place)
    kinds = [line.split()[1] for line in manifest.read_text().splitlines() if line.startswith("kind: ")]
    return settle({"manifest": manifest.stem, "kinds": kinds} | found, namespace)


def place(pod: Object) -> tuple[Any, ...]:
    """Sorts Pods: heads, then by group, replica and host."""
    labels = pod["metadata"].get("labels", {})
    numbers = (int(labels.get(f"ray.io/{key}", 0)) for key in ("worker-group-replica-index", "replica-host-index"))
    index = int(labels.get("batch.kubernetes.io/job-completion-index", 0))
    kind = labels.get("ray.io/node-type", ""), labels.get("ray.io/group", "")
    return *kind, *numbers, labels.get("replicaIndex", ""), index, pod["metadata"]["name"]


def clean(item: Object) -> Object:
    """An object without its status and what the API server numbers or dates."""
    item = {key: value for key, value in item.items() if key not in ("status", "apiVersion")}
    item["metadata"] = {key: value for key, value in item["metadata"].items() if key not in CHANGING_METADATA}
    for label in CHANGING_LABELS:
        item["metadata"].get("labels", {}).pop(label, None)
    spec = item.get("spec", {})
    if item["kind"] == "Pod":
        holders = [*spec.get("initContainers", ()), *spec["containers"]]
        spec["volumes"] = [volume for volume in spec.get("volumes", ()) if not is_token(volume)]
        for container in holders:
            container["volumeMounts"] = [mount for mount in container.get("volumeMounts", ()) if not is_token(mount)]
    elif item["kind"] == "Service":
        if spec.get("clusterIP") != "None":
            spec.pop("clusterIP", None)
            spec.pop("clusterIPs", None)
        for port in spec.get("ports", ()):
            port.pop("nodePort", None)
    return item


def is_token(volume: Object) -> bool:
    """The service account's token, which the API server adds to each Pod under a name of its own."""
    return volume["name"].startswith("kube-api-access")


def settle(found: Object, namespace: str) -> Object:
    """The same with made-up names in place of random ones: clusters are NAME-00000, Pods and replicas are numbered."""
    names = {value: placeholder for placeholder, value in PLACEHOLDERS.items()}
    for cluster in found["rayclusters"]:
        name = cluster["metadata"]["name"]
        names[name] = re.sub(r"-[^-]+$", "-00000", name)
    for number, pod in enumerate(found["pods"]):
        labels = pod["metadata"].get("labels", {})
        pod["metadata"]["name"] = re.sub(r"-[^-]+$", f"-{number:05}", pod["metadata"]["name"])
        if replica := labels.get(REPLICA_NAME):
            names[replica] = f"{labels['ray.io/group']}-{int(labels['ray.io/worker-group-replica-index']):05}"
    text = json.dumps(found)
    for random, settled in names.items():
        text = text.replace(random, settled)
    return json.loads(text.replace(json.dumps(namespace), '"default"').replace(f".{namespace}.svc", ".default.svc"))
