"""The live objects that name another one and would stop working without it, whoever applied them."""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from kuberay.cluster.connection import Cluster
from kuberay.cluster.errors import Refused, UnknownKind
from kuberay.cluster.manifests import Manifest, is_true, title
from ray_configs.cluster.labels import QUEUE

# What is owned comes before its owner: an owner that is missing from a later list has gone.
WITH_PODS = (
    ("v1", "Pod"),
    ("batch/v1", "Job"),
    ("ray.io/v1", "RayCluster"),
    ("ray.io/v1", "RayJob"),
    ("ray.io/v1", "RayService"),
    ("batch/v1", "CronJob"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
)
KUEUE = "kueue.x-k8s.io/v1beta1"


@dataclass(frozen=True)
class _Naming:
    """How objects of other kinds name one of this kind."""

    keys: tuple[str, ...]
    """Fields or labels whose value is the name, an object with that name, or a list of either; empty: any object."""
    kinds: tuple[tuple[str, str], ...] = WITH_PODS
    everywhere: bool = False


NAMED = {
    "ServiceAccount": _Naming(("serviceAccountName", "serviceAccount")),
    "ConfigMap": _Naming(("configMap", "configMapRef", "configMapKeyRef")),
    "Secret": _Naming(("secretName", "secret", "secretRef", "secretKeyRef", "imagePullSecrets")),
    "PersistentVolumeClaim": _Naming(("claimName",)),
    "Namespace": _Naming(()),
    "Gateway": _Naming(("parentRefs",), (("gateway.networking.k8s.io/v1", "HTTPRoute"),), everywhere=True),
    "LocalQueue": _Naming((QUEUE, "queueName"), ((KUEUE, "Workload"), *WITH_PODS)),
    "ClusterQueue": _Naming(("clusterQueue",), ((KUEUE, "LocalQueue"),), everywhere=True),
    "ResourceFlavor": _Naming(("flavors",), ((KUEUE, "ClusterQueue"),), everywhere=True),
    "AdmissionCheck": _Naming(("admissionChecks",), ((KUEUE, "ClusterQueue"),), everywhere=True),
    "ProvisioningRequestConfig": _Naming(("parameters",), ((KUEUE, "AdmissionCheck"),), everywhere=True),
}


def references(cluster: Cluster, live: Manifest, leaving: Collection[str]) -> tuple[list[str], list[str]]:
    """(titles of the objects that name a live one, kinds that this role may not list).

    Args:
        leaving: uids of objects that are being deleted; they and what they own do not count.
    """
    naming = NAMED.get(live["kind"])
    if naming is None:
        return [], []
    name, found, unseen = live["metadata"]["name"], list[Manifest](), list[str]()
    namespace = name if live["kind"] == "Namespace" else cluster.namespace_of(live)
    for api_version, kind in naming.kinds:
        try:
            found += cluster.list(api_version, kind, namespace, everywhere=naming.everywhere)
        except UnknownKind:  # without the kind there are no objects of it
            continue
        except Refused:
            unseen.append(kind)
    gone = _leaving(found, leaving, {kind for _, kind in naming.kinds}.difference(unseen))
    named = [item for item in found if not naming.keys or _names(item, naming.keys, name)]
    return [title(item) for item in named if item["metadata"]["uid"] not in gone], unseen


def _leaving(found: list[Manifest], leaving: Collection[str], listed: Collection[str]) -> set[str]:
    """The uids of those that have ended, are being deleted, or whose owner is or has gone."""
    there = {item["metadata"]["uid"] for item in found}
    gone = {*leaving, *(item["metadata"]["uid"] for item in found if _is_over(item))}
    while True:
        more = {
            item["metadata"]["uid"]
            for item in found
            for owner in item["metadata"].get("ownerReferences") or []
            if owner["uid"] in gone or (owner["kind"] in listed and owner["uid"] not in there)
        }
        if more <= gone:
            return gone
        gone |= more


def _is_over(item: Manifest) -> bool:
    status = item.get("status") or {}
    ended = item["kind"] == "Pod" and status.get("phase") in ("Succeeded", "Failed")
    ended |= item["kind"] == "Job" and (is_true(item, "Complete") or is_true(item, "Failed"))
    return ended or "deletionTimestamp" in item["metadata"]


def _names(value: Any, keys: tuple[str, ...], name: str) -> bool:
    if isinstance(value, list):
        return any(_names(item, keys, name) for item in value)
    if not isinstance(value, dict):
        return False
    return any((key in keys and _is(inner, name)) or _names(inner, keys, name) for key, inner in value.items())


def _is(value: Any, name: str) -> bool:
    if isinstance(value, list):
        return any(_is(item, name) for item in value)
    return bool(value == name or (isinstance(value, dict) and value.get("name") == name))
