"""Which node a Pod wants, and why it does not have one yet."""

import re
from collections.abc import Sequence

from kuberay.cluster.manifests import Manifest, condition, is_true, labels
from kuberay.cluster.status.events import Events, one_line
from kuberay.cluster.status.surroundings import Surroundings
from ray_configs.labels import ACCELERATOR, FLEX_START, RESERVATION, SPOT, TOPOLOGY

CAPACITY = {SPOT: "spot", FLEX_START: "flex-start", RESERVATION: "reservation"}


def slice_shape(pod_spec: Manifest) -> str:
    """`tpu-v4-podslice 2x2x1`; empty for Pods without TPUs."""
    selector = pod_spec.get("nodeSelector") or {}
    return " ".join(selector[key] for key in (ACCELERATOR, TOPOLOGY) if key in selector)


def wanted_node(pod: Manifest) -> str:
    """The slice's shape and the kind of capacity; for other Pods the selector as it is, or its requests."""
    selector = pod["spec"].get("nodeSelector") or {}
    wants = [slice_shape(pod["spec"])]
    for key, word in CAPACITY.items():
        if key in selector:
            wants.append(word if selector[key] == "true" else f"{word} {selector[key]}")
    known = (ACCELERATOR, TOPOLOGY, *CAPACITY)
    wants += [f"{key}={value}" for key, value in selector.items() if key not in known]
    if not any(wants):
        requests = [
            f"{value} {name}"
            for container in pod["spec"].get("containers", [])
            for name, value in (container.get("resources", {}).get("requests") or {}).items()
        ]
        wants = requests or ["free room"]
    return ", ".join(want for want in wants if want)


def capacity(pod: Manifest, around: Surroundings) -> str:
    """Why there is no node: what the scheduler, the autoscaler and the nodes themselves say."""
    reasons = [_such_nodes(pod, around.nodes), _autoscaler(pod, around.events)]
    scheduler = around.events.last(pod, "FailedScheduling")
    said = one_line((scheduler or condition(pod, "PodScheduled")).get("message"))
    # What follows is about evicting other Pods, which is never the answer for TPUs.
    reasons.append(re.sub(r"\.? *preemption: .*", "", said).rstrip("."))
    return "; ".join(reason for reason in reasons if reason) or "no reason given yet"


def _such_nodes(pod: Manifest, nodes: Sequence[Manifest] | None) -> str:
    selector = pod["spec"].get("nodeSelector") or {}
    if nodes is None or ACCELERATOR not in selector:
        return ""
    fitting = [node for node in nodes if selector.items() <= labels(node).items()]
    if not fitting:
        return "there is no such node"
    unready = [node for node in fitting if not is_true(node, "Ready")]
    if unready:
        return f"of {len(fitting)} such nodes {len(unready)} are not ready"
    return f"there are {len(fitting)} such nodes, none free"


def _autoscaler(pod: Manifest, events: Events) -> str:
    event = events.last(pod, "TriggeredScaleUp", "NotTriggerScaleUp", "FailedScaleUp")
    if event is None:
        return ""
    said = one_line(event.get("message"))
    if event["reason"] == "TriggeredScaleUp":
        sizes = re.search(r"(\d+)->(\d+)", said)
        return f"the autoscaler is adding nodes{f' ({sizes[1]} -> {sizes[2]})' if sizes else ''}"
    if event["reason"] == "FailedScaleUp":
        return f"the autoscaler could not add nodes: {said}"
    if "in backoff after failed scale-up" in said:
        return "the autoscaler tried to add nodes, got none (capacity or quota), and will try again"
    if "max node group size reached" in said or "limit reached" in said:
        return f"the autoscaler may not add nodes, the pool is at its maximum: {said}"
    return f"the autoscaler cannot help: {said}"
