"""Queued provisioning: Kueue holds a workload back until GKE has all its machines at once.

Every config renders the same objects for a queue, so several configs can share one.
"""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.objects import MANAGED, kubernetes_object
from kuberay.render.ray.pods import Config
from ray_configs.capacity import KUEUE_VERSION, WHY_NO_NEWER_KUEUE, Queued
from ray_configs.cluster.labels import MAX_RUN_DURATION, PROVISIONING_REQUEST, QUEUE, QUEUED, TPU
from ray_configs.service import Service

ANY, ANY_MEMORY = "1G", "1000000000Gi"
"""Quotas that are never reached: the limit is what GKE can provide."""


def queued(config: Config) -> Queued | None:
    """The config's queued capacity; None if it is not queued."""
    return next((g.capacity for g in config.worker_groups if isinstance(g.capacity, Queued)), None)


def queue_labels(config: Config) -> dict[str, dict[str, str]]:
    """Labels and annotations that put the workload into its queue; empty if it has none."""
    capacity = queued(config)
    if capacity is None:
        return {}
    annotations = {MAX_RUN_DURATION: str(capacity.max_run_hours * 3600)}
    name = QUEUE
    if isinstance(config, Service):
        name = noted(name, f"Needs Kueue {KUEUE_VERSION} or older: {WHY_NO_NEWER_KUEUE}.")
    return {"labels": {name: capacity.queue}, "annotations": annotations}


def queue_objects(config: Config) -> list[dict[str, Any]]:
    """The LocalQueue and all objects that it depends on."""
    capacity = queued(config)
    if capacity is None or not capacity.create_queue:
        return []
    name = capacity.queue
    ordinary, dynamic = f"{name}-ordinary", f"{name}-queued"

    def kueue(kind: str, name: str, spec: dict[str, Any], namespace: str | None = None) -> dict[str, Any]:
        meta: dict[str, Any] = {"name": name} | ({"namespace": namespace} if namespace else {})
        return kubernetes_object("kueue.x-k8s.io/v1beta1", kind, meta | {"labels": MANAGED}, spec)

    def quota(tpus: str) -> list[dict[str, Any]]:
        return [
            {"name": "cpu", "nominalQuota": ANY},
            {"name": "memory", "nominalQuota": ANY_MEMORY},
            {"name": "ephemeral-storage", "nominalQuota": ANY_MEMORY},
            {"name": TPU, "nominalQuota": tpus},
        ]

    covered = ["cpu", "memory", "ephemeral-storage", TPU]
    flavors = [{"name": ordinary, "resources": quota("0")}, {"name": dynamic, "resources": quota(ANY)}]
    parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig", "name": name}
    requests = {"provisioningClassName": "queued-provisioning.gke.io", "managedResources": [TPU]}
    queue = {
        "namespaceSelector": {},
        "resourceGroups": [{"coveredResources": covered, "flavors": flavors}],
        "admissionChecksStrategy": {"admissionChecks": [{"name": name, "onFlavors": [dynamic]}]},
    }
    tolerated = {"key": QUEUED, "operator": "Exists", "effect": "NoSchedule"}
    return [
        # No TPU fits the first flavor, so the head takes it and the slices take the second.
        kueue("ResourceFlavor", ordinary, {}),
        kueue("ResourceFlavor", dynamic, {"tolerations": [tolerated]}),
        kueue("ProvisioningRequestConfig", name, requests),
        kueue("AdmissionCheck", name, {"controllerName": PROVISIONING_REQUEST, "parameters": parameters}),
        kueue("ClusterQueue", name, queue),
        kueue("LocalQueue", name, {"clusterQueue": name}, config.namespace),
    ]
