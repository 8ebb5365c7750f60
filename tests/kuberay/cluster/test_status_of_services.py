"""Status in words: what a person reads first, for each way in which a service is up, half up or down."""

import pytest

from kuberay.cluster.status import describe
from kuberay.cluster.status.snapshot import since
from kuberay.cluster.status.state import Phase
from tests.kuberay.cluster.night import (
    CLUSTER,
    GROUP,
    Night,
    container,
    group,
    service,
    terminated,
    unready,
    unscheduled,
    up,
    waiting,
)

SINCE = since("2026-01-01T02:14:00Z")


def told(night: Night) -> tuple[Phase, str, str]:
    """The phase, the verdict and the rest."""
    state = night.state()
    verdict, *rest = describe(state)
    return state.phase, verdict, "\n".join(rest)


def serving(*groups, applications: str | None = None, **status) -> Night:
    """Of two slices of two hosts each, or these groups, with its head up: the operator calls it Ready."""
    groups = groups or (group(replicas=2, hosts=2),)
    night = Night(service(*groups, applications=applications) if applications else service(*groups))
    night.head()
    night.status(True, status.pop("application", "RUNNING"), **status)
    return night


def a_slice(night: Night, index: int, *hosts, of: str = GROUP) -> None:
    for host, status in enumerate(hosts):
        night.worker(index, host, of, **status)


SERVES, IDLE = (up(), unready()), (unready(), unready())  # one host of a slice that serves has the Serve proxy
GONE = (unscheduled("no room"), unscheduled("no room"))
CREATING = (waiting("ContainerCreating"), waiting("ContainerCreating"))


@pytest.mark.parametrize(
    ("slices", "phase", "verdict"),
    [
        ([SERVES, SERVES], Phase.READY, "llama is ready: 2 of 2 slices serve."),
        ([SERVES, IDLE], Phase.READY, "llama serves at reduced capacity (1 of 2 slices serve): slice 1 of group "),
        ([SERVES, GONE], Phase.READY, "llama serves at reduced capacity (1 of 2 slices serve): slice 1 of group "),
        ([SERVES], Phase.READY, "llama serves at reduced capacity (1 of 2 slices serve): slice 1 of group "),
        ([IDLE, IDLE], Phase.STARTING, "llama does not serve (0 of 2 slices serve): slice 0 of group"),
        ([CREATING, CREATING], Phase.STARTING, "llama does not serve (0 of 2 slices serve): slice 0 of group"),
        ([GONE, GONE], Phase.WAITING, "llama does not serve (0 of 2 slices serve): slice 0 of group"),
        ([IDLE, GONE], Phase.WAITING, "llama does not serve (0 of 2 slices serve): slice 1 of group"),
        ([], Phase.STARTING, "llama does not serve (0 of 2 slices serve): slice 0 of group"),
        ([SERVES, SERVES, IDLE], Phase.READY, "llama is ready: 2 of 2 slices serve."),
    ],
)
def test_the_operator_calls_it_ready(slices, phase, verdict):
    """It does as soon as anything listens, and on the head something always does."""
    night = serving()
    for index, hosts in enumerate(slices):
        a_slice(night, index, *hosts)
    found, words, _ = told(night)
    assert found == phase
    assert words.startswith(verdict)
    assert night.state().ready == (phase == Phase.READY)


def test_a_slice_that_serves_nothing_is_named():
    night = serving()
    a_slice(night, 0, *SERVES)
    a_slice(night, 1, *IDLE)
    _, verdict, rest = told(night)
    assert verdict.endswith("slice 1 of group tpu-v4-2x2x1 runs but serves nothing: no replica on it answers.")
    assert "slice 0 of group tpu-v4-2x2x1 (tpu-v4-podslice 2x2x1) serves" in rest


@pytest.mark.parametrize(
    ("application", "phase", "verdict"),
    [
        ("DEPLOYING", Phase.STARTING, "application llm is DEPLOYING: a replica is loading."),
        ("DEPLOY_FAILED", Phase.TROUBLE, "application llm is DEPLOY_FAILED."),
        ("UNHEALTHY", Phase.TROUBLE, "application llm is UNHEALTHY."),
    ],
)
def test_what_was_applied_last_does_not_serve_yet(application, phase, verdict):
    """The replicas of before go on: whoever waits for the change must not be told that it is ready."""
    night = serving(application=application)
    a_slice(night, 0, *SERVES)
    a_slice(night, 1, *SERVES)
    expected = f"llama serves, but has problems (2 of 2 slices serve): {verdict}"
    assert told(night)[:2] == (phase, expected)


def test_a_head_that_is_gone():
    night = serving()
    a_slice(night, 0, *SERVES)
    a_slice(night, 1, *SERVES)
    night.head(**waiting("CrashLoopBackOff", restartCount=3, lastState=terminated(1)))
    phase, verdict, _ = told(night)
    assert phase == Phase.TROUBLE
    assert verdict.startswith("llama serves, but has problems (2 of 2 slices serve): the head keeps crashing")


def test_one_application_of_two_has_no_slice():
    other = group("tpu-v4-2x2x2")
    night = serving(group(), other)
    night.worker()
    night.worker(of="tpu-v4-2x2x2", **unscheduled("no room"))
    phase, verdict, _ = told(night)
    assert phase == Phase.WAITING
    assert verdict.startswith("llama serves, but has problems (1 of 2 slices serve; none of tpu-v4-2x2x2 does)")


def test_slices_wait_for_a_cell_to_publish():
    night = serving(
        group(replicas=2, hosts=2),
        applications="- {name: cell, import_path: 'apps.cell:build', args: {slice: 'v4:2x2x1'}}",
    )
    a_slice(night, 0, *IDLE)
    a_slice(night, 1, *SERVES)
    verdict = "llama is ready: 2 of 2 slices are up for what the cell publishes."
    assert told(night)[:2] == (Phase.READY, verdict)
    night.ray_cluster["spec"]["workerGroupSpecs"].append(group("cpu-v4-2x2x1", replicas=2, selector={}))
    night.worker(0, of="cpu-v4-2x2x1")  # the cell's own processes
    night.worker(1, of="cpu-v4-2x2x1", **unready())
    assert told(night)[:2] == (Phase.READY, verdict)


@pytest.mark.parametrize(
    ("processes", "phase", "verdict"),
    [
        ([up(), up()], Phase.READY, "llama is ready: 2 of 2 slices serve."),
        ([up(), unready()], Phase.READY, "llama serves at reduced capacity (1 of 2 slices serve): worker 1 of"),
        ([unready()] * 2, Phase.STARTING, "llama does not serve (0 of 2 slices serve): worker 0 of group cpu-v4-2x2x1"),
    ],
)
def test_slices_that_processes_on_cpus_lead(processes, phase, verdict):
    """Their own hosts have no Serve proxy, and are never ready."""
    night = serving(group(replicas=2, hosts=2), group("cpu-v4-2x2x1", replicas=2, selector={}))
    for index, status in enumerate(processes):
        a_slice(night, index, *IDLE)
        night.worker(index, of="cpu-v4-2x2x1", **status)
    found, words, _ = told(night)
    assert found == phase
    assert words.startswith(verdict)


def test_a_first_slice_that_loads():
    """From nothing to one: the application is RUNNING all the while, and the operator calls it Ready."""
    night = serving(group(hosts=2), deployment="UPSCALING", message="1 replicas take more than 30s.\nA slow __init__?")
    a_slice(night, 0, *IDLE)
    assert told(night)[:2] == (
        Phase.STARTING,
        "llama does not serve (0 of 1 slices serve): application llm is RUNNING; deployment LLMServer is UPSCALING: "
        "1 replicas take more than 30s.",
    )
    a_slice(night, 0, *SERVES)
    assert told(night)[:2] == (Phase.READY, "llama is ready: 1 of 1 slices serve.")


def test_only_the_head_listens():
    night = serving()
    night.service["spec"]["serveConfigV2"] = "proxy_location: HeadOnly\n"
    a_slice(night, 0, *IDLE)
    a_slice(night, 1, *IDLE)
    assert told(night)[1] == "llama is ready: 2 of 2 slices serve."


def test_nothing_is_asked_for():
    """Scaled to nothing: the next request brings a slice, with a process that waits for it already."""
    night = serving(group(replicas=0, hosts=2), group("cpu-v4-2x2x1", selector={}))
    night.worker(of="cpu-v4-2x2x1", **unready())
    assert told(night)[:2] == (Phase.READY, "llama is ready: no slices are requested.")
    assert told(serving(group(replicas=0)))[1] == "llama is ready: no slices are requested."


def test_no_operator():
    night = Night()
    del night.service["status"]
    night.ray_cluster["metadata"]["labels"] = {}
    assert "no operator has picked it up yet" in told(night)[1]


def test_pods_up_and_no_application_yet():
    night = Night()
    night.head()
    night.worker()
    assert "Serve does not have the applications yet" in told(night)[1]
    night.status(False, "RUNNING", said="no endpoints")
    assert told(night)[1].endswith("but no Pod serves yet (no endpoints).")
    night.status(False, pendingServiceStatus={}, activeServiceStatus={})
    night.worker(**unscheduled())
    assert "waits for capacity" in told(night)[1]


def test_a_model_that_loads():
    """Its slice serves nothing, of course; that it loads is the news."""
    night = Night()
    night.head()
    night.worker(**unready())
    night.status(False, "DEPLOYING", "UPDATING")
    assert told(night)[:2] == (
        Phase.STARTING,
        "llama is starting: application llm is DEPLOYING: a replica is loading; deployment LLMServer is UPDATING.",
    )


def test_waits_for_capacity():
    night = Night()
    night.head()
    night.worker(**unscheduled(), selector={"cloud.google.com/gke-spot": "true"})
    assert told(night)[:2] == (
        Phase.WAITING,
        "llama waits for capacity: slice 0 of group tpu-v4-2x2x1 needs a node with tpu-v4-podslice 2x2x1, "
        f"cloud.google.com/gke-spot=true{SINCE} (0/3 nodes are available: 3 Insufficient google.com/tpu).",
    )


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{https://x/ig-1 0->2 (max: 4)}]", "is adding nodes (0 -> 2)"),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 in backoff after failed scale-up",
            "no capacity or no quota",
        ),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 1 max node group size reached",
            "cannot add nodes: pod didn't trigger scale-up: 1 max",
        ),
        (
            "NotTriggerScaleUp",
            "pod didn't trigger scale-up: 2 node(s) didn't match",
            "cannot add nodes: pod didn't trigger scale-up: 2",
        ),
        ("FailedScaleUp", "Node scale up in zones x failed: GCE out of resources.", "GCE out of resources"),
    ],
)
def test_what_the_autoscaler_says(reason, message, says):
    night = Night()
    night.head()
    pod = night.worker(**unscheduled())
    night.event(pod, "NotTriggerScaleUp", "old news", "Normal", at="2025-12-31T00:00:00Z")
    night.event(pod, reason, message, "Normal")
    night.event(pod, "FailedScheduling", "0/9 nodes are available: 9 gone. preemption: 0/9 nodes are available")
    verdict = told(night)[1]
    assert says in verdict
    assert "old news" not in verdict
    assert verdict.endswith("9 gone).")


def test_a_slice_of_which_some_hosts_are_up():
    night = Night(service(group(hosts=4)))
    night.head()
    a_slice(night, 0, unready(), *[unscheduled("no room")] * 3)
    phase, verdict, _ = told(night)
    assert phase == Phase.WAITING
    assert "slice 0 of group tpu-v4-2x2x1 has 1 of 4 hosts up: hosts 1 to 3 need" in verdict.replace("needs", "need")


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (
            waiting("ImagePullBackOff", 'Back-off pulling image "ray:2.60"'),
            "cannot start container ray: ImagePullBackOff: Back",
        ),
        (
            waiting("CreateContainerConfigError", 'secret "keys" not found'),
            'CreateContainerConfigError: secret "keys"',
        ),
        (
            waiting("CrashLoopBackOff", restartCount=7, phase="Running", lastState=terminated(137, "OOMKilled")),
            "keeps crashing (7 restarts): container ray was killed for memory (OOMKilled, exit code 137)",
        ),
        (
            waiting("CrashLoopBackOff", restartCount=2, phase="Running", lastState=terminated(1, message="no jax\n")),
            "container ray ended with exit code 1: no jax.",
        ),
        (container(terminated(3), phase="Running"), "crashed: container ray ended with exit code 3"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk is full"}, "failed: Evicted: disk is full"),
        (
            {
                "phase": "Failed",
                "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "Taint", "message": "spot"}],
            },
            "its node was taken away (Taint: spot)",
        ),
    ],
)
def test_pods_in_trouble(status, says):
    night = Night(service(group(replicas=2)))
    night.head()
    night.worker(0, **status)
    night.worker(1, **unscheduled())  # less grave
    phase, verdict, _ = told(night)
    assert phase == Phase.TROUBLE
    assert verdict.startswith("llama does not come up: slice 0 of group tpu-v4-2x2x1 ")
    assert says in verdict


def test_pulling_and_mounting():
    night = Night()
    night.head()
    pod = night.worker(**waiting("ContainerCreating"))
    assert told(night)[:2] == (
        Phase.STARTING,
        "llama is starting: slice 0 of group tpu-v4-2x2x1 is starting on node node-1.",
    )
    night.event(pod, "Pulling", 'Pulling image "ray:2.60"', "Normal")
    assert 'is pulling image "ray:2.60"' in told(night)[1]
    night.event(pod, "FailedMount", "bucket llama: permission denied", at="2026-01-01T03:00:00Z")
    assert "cannot start on its node yet: bucket llama: permission denied" in told(night)[1]


def test_a_head_that_is_not_ready_and_why():
    night = Night()
    pod = night.head(**unready())
    night.worker()
    night.event(pod, "Unhealthy", "Readiness probe failed: connection refused")
    assert f"the head runs but is not ready{SINCE}: Readiness probe failed: connection refused" in told(night)[1]


def test_the_head_comes_before_equally_grave_workers():
    night = Night()
    night.head(**waiting("ErrImagePull"))
    night.worker(**waiting("ErrImagePull"))
    assert told(night)[1].startswith("llama does not come up: the head cannot start container ray: ErrImagePull")


def test_a_webhook_keeps_pods_from_being_made():
    night = Night()
    night.head()
    night.event(night.ray_cluster, "FailedToCreateWorkerPod", "admission webhook denied: no topology")
    phase, verdict, _ = told(night)
    assert phase == Phase.TROUBLE
    assert "the operator says FailedToCreateWorkerPod: admission webhook denied: no topology" in verdict


@pytest.mark.parametrize(
    ("application", "deployment", "phase", "says"),
    [
        ("DEPLOYING", "UPDATING", Phase.STARTING, "is starting: application llm is DEPLOYING: a replica is loading"),
        ("DEPLOY_FAILED", "DEPLOY_FAILED", Phase.TROUBLE, "does not come up: application llm is DEPLOY_FAILED"),
        ("UNHEALTHY", "UNHEALTHY", Phase.TROUBLE, "deployment LLMServer is UNHEALTHY: ValueError: no such model"),
    ],
)
def test_what_serve_says(application, deployment, phase, says):
    night = Night()
    night.head()
    night.worker()
    night.status(False, application, deployment, "Traceback\n  File x\nValueError: no such model")
    found, verdict, rest = told(night)
    assert found == phase
    assert says in verdict
    assert "Traceback" not in verdict
    assert "File x" in rest


def test_an_upgrade_that_waits():
    night = serving(
        group(),
        conditions=[{"type": "UpgradeInProgress", "status": "True"}],
        pendingServiceStatus={"rayClusterName": "llama-new", "trafficRoutedPercent": 20},
    )
    night.worker()
    phase, verdict, _ = told(night)
    assert phase == Phase.STARTING
    assert verdict.startswith("llama serves (1 of 1 slices serve) and is being upgraded, 20 % of the traffic")
    assert "Ray cluster llama-new is not there yet" in verdict


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        ("InitializingTimeout", "The operator gave up: apply with --recreate"),
        ("ValidationFailed", "was refused by the operator: bad"),
    ],
)
def test_given_up(reason, says):
    night = Night()
    night.status(False, reason=reason, said="bad")
    assert night.state().failed
    assert says in told(night)[1]


def test_a_change_that_the_operator_has_not_seen():
    night = serving(observedGeneration=0)
    phase, verdict, _ = told(night)
    assert phase == Phase.STARTING
    assert "has not processed the change yet" in verdict


def test_suspended_and_deleted():
    night = Night()
    night.status(False, conditions=[{"type": "Suspended", "status": "True"}])
    assert told(night)[:2] == (Phase.WAITING, "llama is suspended (spec.suspend).")
    night.service["metadata"]["deletionTimestamp"] = "2026-01-01T02:14:00Z"
    assert told(night)[:2] == (Phase.STARTING, "llama is being deleted.")


def test_a_gated_pod():
    night = Night()
    night.head()
    pod = night.worker(**unscheduled(reason="SchedulingGated"))
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    assert "is held back by kueue.x-k8s.io/admission" in told(night)[1]


def test_a_ray_cluster_alone():
    night = Night()
    night.head()
    night.worker()
    state = night.state(night.ray_cluster)
    assert (state.phase, describe(state)[0]) == (Phase.READY, f"{CLUSTER} is ready: 1 of 1 slices up.")


def test_slices_that_an_upgraded_operator_forgot() -> None:
    """KubeRay 1.5 does not name slices of several hosts; 1.6 makes them again, and leaves the old Pods."""
    night = serving(group(replicas=1, hosts=2))
    for host in range(2):
        old = night.worker(host=host)["metadata"]
        old["name"] = old["uid"] = f"old-{host}"
        old["labels"] = {key: value for key, value in old["labels"].items() if "index" not in key}
    for host in range(2):
        night.worker(host=host, **unready())["metadata"]["labels"]["ray.io/worker-group-replica-name"] = (
            f"{GROUP}-x7k2p"
        )
    _, verdict, rest = told(night)
    assert f"2 Pods of group {GROUP} are from an older operator" in verdict + rest
    assert f"'ray.io/cluster={CLUSTER},ray.io/group={GROUP},!ray.io/worker-group-replica-name'" in verdict + rest
    assert f"slice 0 of group {GROUP}" in rest and f"slice 1 of group {GROUP}" not in rest
