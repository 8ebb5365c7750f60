"""Which node a Pod needs, and why it has none yet."""

import re

from kuberay.cluster.manifests import Manifest, condition
from kuberay.cluster.status.events import Events, one_line
from ray_configs.labels import ACCELERATOR, TOPOLOGY


def slice_shape(pod_spec: Manifest) -> str:
    """`tpu-v4-podslice 2x2x1`; empty for Pods without TPUs."""
    selector = pod_spec.get("nodeSelector") or {}
    return " ".join(selector[key] for key in (ACCELERATOR, TOPOLOGY) if key in selector)


def wanted_node(pod: Manifest) -> str:
    """The slice's shape and the other labels that the node must have; without any, the Pod's requests."""
    selector = pod["spec"].get("nodeSelector") or {}
    others = (f"{key}={value}" for key, value in selector.items() if key not in (ACCELERATOR, TOPOLOGY))
    wants = [want for want in (slice_shape(pod["spec"]), *others) if want]
    containers = [] if wants else pod["spec"].get("containers", [])
    for container in containers:
        requests = container.get("resources", {}).get("requests") or {}
        wants += [f"{value} {name}" for name, value in requests.items()]
    return ", ".join(wants) or "free room"


def capacity(pod: Manifest, events: Events) -> str:
    """Why there is no node, as the autoscaler and the scheduler report it."""
    scheduler = events.last(pod, "FailedScheduling") or condition(pod, "PodScheduled")
    # Cut the scheduler's text on preempting other Pods, which never frees a TPU slice.
    message = re.sub(r"\.? *preemption: .*", "", one_line(scheduler.get("message"))).rstrip(".")
    return "; ".join(filter(None, (_autoscaler(pod, events), message))) or "no reason given yet"


def _autoscaler(pod: Manifest, events: Events) -> str:
    event = events.last(pod, "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp")
    if event is None:
        return ""
    message = one_line(event.get("message"))
    if event["reason"] == "TriggeredScaleUp":
        sizes = re.search(r"(\d+)->(\d+)", message)
        return f"the autoscaler is adding nodes{f' ({sizes[1]} -> {sizes[2]})' if sizes else ''}"
    why = " (no capacity or no quota; it will try again)" if "in backoff after failed scale-up" in message else ""
    return f"the autoscaler cannot add nodes: {message}{why}"
