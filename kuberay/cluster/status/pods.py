"""What a Pod is doing or waiting for, from its status and events: which node it needs, and why it has none yet."""

import re

from kuberay.cluster.manifests import Manifest, condition, is_true
from kuberay.cluster.status.snapshot import Events, Snapshot, one_line, since
from kuberay.cluster.status.state import Health, Phase
from ray_configs.cluster.labels import ACCELERATOR, TOPOLOGY

STARTING = ("", "ContainerCreating", "PodInitializing")
"""Reasons why a container waits without a fault."""
MOUNT_TROUBLE = ("FailedMount", "FailedAttachVolume", "FailedCreatePodSandBox")


def read(pod: Manifest, snapshot: Snapshot) -> Health:
    status = pod.get("status", {})
    if pod["metadata"].get("deletionTimestamp"):
        return Health(Phase.STARTING, f"is being deleted{since(pod['metadata']['deletionTimestamp'])}")
    if status.get("phase") == "Succeeded":
        return Health(Phase.DONE, "has succeeded")
    if status.get("phase") == "Failed":
        return Health(Phase.TROUBLE, _failed(pod))
    if not pod.get("spec", {}).get("nodeName"):
        return _unscheduled(pod, snapshot.events)
    if trouble := next(filter(None, map(_container_trouble, _containers(pod))), ""):
        return Health(Phase.TROUBLE, trouble)
    if is_true(pod, "Ready"):
        return Health(Phase.READY, "is ready")
    if status.get("phase") == "Running":
        return Health(Phase.RUNNING, _not_ready(pod, snapshot.events))
    return Health(Phase.STARTING, _creating(pod, snapshot.events))


def _containers(pod: Manifest) -> list[Manifest]:
    """Container statuses, init containers first."""
    status = pod.get("status", {})
    return [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]


def _unscheduled(pod: Manifest, events: Events) -> Health:
    scheduled = condition(pod, "PodScheduled")
    if scheduled.get("reason") == "SchedulingGated":
        gates = ", ".join(gate["name"] for gate in pod["spec"].get("schedulingGates", [])) or "a scheduling gate"
        return Health(Phase.WAITING, f"is held back by {gates}{since(scheduled.get('lastTransitionTime'))}")
    if scheduled.get("status") == "False":
        waits = since(scheduled.get("lastTransitionTime"))
        return Health(Phase.WAITING, f"needs a node with {wanted_node(pod)}{waits} ({capacity(pod, events)})")
    return Health(Phase.STARTING, "has not been seen by the scheduler yet")


def _container_trouble(container: Manifest) -> str:
    waiting = container.get("state", {}).get("waiting") or {}
    reason = waiting.get("reason", "")
    if reason == "CrashLoopBackOff":
        last = (container.get("lastState") or {}).get("terminated") or {}
        times = container.get("restartCount", 0)
        return f"keeps crashing ({times} restarts): container {container['name']} {ending(last)}"
    if reason not in STARTING:
        return f"cannot start container {container['name']}: {_with_message(reason, waiting)}"
    ended = container.get("state", {}).get("terminated") or {}
    if ended and ended.get("exitCode") != 0:
        return f"crashed: container {container['name']} {ending(ended)}"
    return ""


def ending(terminated: Manifest) -> str:
    """`was killed for memory (OOMKilled, exit code 137)`, and its termination message."""
    code, reason = terminated.get("exitCode", "unknown"), terminated.get("reason", "")
    words = f"ended with exit code {code}{f' ({reason})' if reason not in ('', 'Error', 'Completed') else ''}"
    if reason == "OOMKilled":
        words = f"was killed for memory (OOMKilled, exit code {code}): raise its memory limit"
    return _with_message(words, terminated)


def _with_message(words: str, state: Manifest) -> str:
    """The words, with the state's own message if there is one."""
    return ": ".join(filter(None, (words, one_line(state.get("message")))))


def _failed(pod: Manifest) -> str:
    status = pod["status"]
    ended = [
        f"container {container['name']} {ending(container['state']['terminated'])}"
        for container in _containers(pod)
        if (container.get("state", {}).get("terminated") or {}).get("exitCode")
    ]
    disrupted = condition(pod, "DisruptionTarget")
    if is_true(pod, "DisruptionTarget"):
        ended.insert(0, f"its node was taken away ({_with_message(disrupted.get('reason', ''), disrupted)})")
    elif status.get("reason"):
        ended.insert(0, _with_message(status["reason"], status))
    return f"failed: {'; '.join(ended) or 'no reason given'}"


def _not_ready(pod: Manifest, events: Events) -> str:
    words = f"runs but is not ready{since(condition(pod, 'Ready').get('lastTransitionTime'))}"
    probe = events.last(pod, "Unhealthy")
    if probe is not None:
        words += f": {one_line(probe.get('message'))}"
    for container in _containers(pod):
        last = (container.get("lastState") or {}).get("terminated")
        if last and container.get("restartCount"):
            words += f"; container {container['name']} restarted {container['restartCount']} times, {ending(last)}"
    return words


def _creating(pod: Manifest, events: Events) -> str:
    trouble = events.last_warning(pod)
    if trouble is not None and trouble.get("reason") in MOUNT_TROUBLE:
        return f"cannot start on its node yet: {one_line(trouble.get('message'))}"
    pulling, pulled = events.last(pod, "Pulling"), events.last(pod, "Pulled")
    if pulling is not None and pulled is None:
        return f"is {one_line(pulling.get('message')) or 'pulling its image'}".replace("is Pulling", "is pulling")
    return f"is starting on node {pod['spec']['nodeName']}"


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
