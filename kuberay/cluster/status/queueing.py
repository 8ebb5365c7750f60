"""What keeps a workload of any kind from starting: Kueue, `suspend`, or a missing operator."""

from kuberay.cluster.manifests import Manifest, condition, is_true, labels
from kuberay.cluster.status.snapshot import Snapshot, one_line, since
from kuberay.cluster.status.state import Health, Phase
from ray_configs.cluster.labels import QUEUE

UNSEEN = Health(
    Phase.STARTING,
    "is applied, but no operator has picked it up yet; if that lasts, the Ray operator add-on is off or down",
)


def held(live: Manifest, snapshot: Snapshot) -> Health | None:
    """The verdict on a workload that may not start; None if it may."""
    if waits := _queued(live, snapshot):
        return Health(Phase.WAITING, f"waits for quota: {waits}")
    suspended = live["spec"].get("suspend") or is_true(live, "Suspended") or is_true(live, "Suspending")
    return Health(Phase.WAITING, "is suspended (spec.suspend)") if suspended else None


def _queued(live: Manifest, snapshot: Snapshot) -> str:
    """Why Kueue has not admitted it; empty if it has, or the workload is not queued."""
    queue = labels(live).get(QUEUE)
    if queue is None:
        return ""
    entry = snapshot.queue_entry_of([live, *snapshot.ray_clusters_of(live)])
    if entry is None:
        lack = "is not installed in this cluster" if snapshot.queue_entries is None else "has not processed it yet"
        return f"it is suspended for queue {queue}, but Kueue {lack}" if live["spec"].get("suspend") else ""
    if is_true(entry, "Admitted") or is_true(entry, "Finished"):
        return ""
    if is_true(entry, "QuotaReserved"):
        checks = "; ".join(
            f"{check['name']} is {check.get('state', 'Pending')}: {one_line(check.get('message')) or 'no message'}"
            for check in entry["status"].get("admissionChecks", [])
            if check.get("state") != "Ready"
        )
        return f"queue {queue} has reserved quota and waits for admission checks: {checks}"
    reserved, evicted = condition(entry, "QuotaReserved"), condition(entry, "Evicted")
    message, waits = one_line(reserved.get("message")), since(reserved.get("lastTransitionTime"))
    if is_true(entry, "Evicted"):
        message = f"it was evicted ({evicted.get('reason')}: {one_line(evicted.get('message'))}); {message}"
    return f"queue {queue} has not admitted it{waits}: {message or 'no reason given'}"
