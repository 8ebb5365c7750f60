"""PodDisruptionBudgets: how many Pods of a service node drains may evict at once."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.objects import kubernetes_object, metadata
from kuberay.render.ray.pods import INSTANCE_LABEL
from ray_configs.cluster.labels import RAY_GROUP
from ray_configs.service import Service

HEAD_GROUP = "headgroup"


def disruption_budgets(service: Service) -> list[dict[str, Any]]:
    """One budget for the head and one for each group of slices. A Pod in two budgets could not be evicted at all.

    Ray's Pods belong to an object without a scale subresource, so Kubernetes supports only `minAvailable` for them.
    """
    allowed = service.disruption_budget
    if allowed is None:
        return []
    budgets = []
    if service.gcs_fault_tolerance is None:
        why = "Its loss ends every replica: without gcs_fault_tolerance no drain may evict it."
        budgets.append(_budget(service, "head", [HEAD_GROUP], 1, why))
    for group in service.worker_groups:
        if group.leads is not None:  # counted with the slices that they lead
            continue
        processes = [other.name for other in service.worker_groups if other.leads == group.name]
        if group.hosts == 1:
            least, why = group.minimum - allowed, f"Of {group.minimum}: {allowed} at a time."
        else:
            least = group.minimum - allowed + 1
            why = (
                f"Of {group.minimum} processes that lead slices. Hosts of a slice are never Ready, and may be evicted "
                f"while at least this many processes are Ready: {allowed} slice{'s' * (allowed > 1)} at a time."
            )
        if least > 0:
            budgets.append(_budget(service, group.name, [group.name, *processes], least, why))
    return budgets


def _budget(service: Service, suffix: str, groups: list[str], least: int, why: str) -> dict[str, Any]:
    spec = {
        noted("minAvailable", why): least,
        "selector": {
            "matchLabels": {INSTANCE_LABEL: service.name},
            "matchExpressions": [{"key": RAY_GROUP, "operator": "In", "values": groups}],
        },
        "unhealthyPodEvictionPolicy": "IfHealthyBudget",
    }
    return kubernetes_object("policy/v1", "PodDisruptionBudget", metadata(service, f"{service.name}-{suffix}"), spec)
