"""What Kueue says about a workload that it holds back."""

from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.status.events import one_line, since
from kuberay.cluster.status.state import Finding, Phase
from kuberay.cluster.status.surroundings import Surroundings
from ray_configs.labels import QUEUE


def finding(live: Manifest, around: Surroundings) -> Finding | None:
    """Why Kueue has not admitted it; None if it has, or has no say."""
    queue = live["metadata"].get("labels", {}).get(QUEUE)
    if queue is None:
        return None
    entry = around.queue_entry_of([live, *around.ray_clusters_of(live)])
    if entry is None:
        if not live["spec"].get("suspend"):
            return None
        lack = "has not looked at it yet" if around.has_kueue else "is not installed in this cluster"
        return Finding(Phase.WAITING, f"it is suspended for queue {queue}, and Kueue {lack}")
    if is_true(entry, "Admitted") or is_true(entry, "Finished"):
        return None
    if is_true(entry, "QuotaReserved"):
        checks = "; ".join(
            f"{check['name']} is {check.get('state', 'Pending')}: {one_line(check.get('message')) or 'no message'}"
            for check in entry["status"].get("admissionChecks", [])
            if check.get("state") != "Ready"
        )
        return Finding(Phase.WAITING, f"queue {queue} has reserved quota and waits for admission checks: {checks}")
    reserved = condition(entry, "QuotaReserved")
    said = one_line(reserved.get("message"))
    waits = since(reserved.get("lastTransitionTime"))
    evicted = condition(entry, "Evicted")
    if evicted.get("status") == "True":
        said = f"it was evicted ({evicted.get('reason')}: {one_line(evicted.get('message'))}); {said}"
    return Finding(Phase.WAITING, f"queue {queue} has not admitted it{waits}: {said or 'no reason given'}")
