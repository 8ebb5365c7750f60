"""Status in words: what a person reads first, for each way in which a service or job is not up."""

import pytest
from manifests_of_a_service import ACCOUNT, job, service
from night import CLUSTER, Night, container, terminated, unready, unscheduled, waiting
from object_store import CORE

from kuberay.cluster.events import since
from kuberay.cluster.state import Phase
from kuberay.cluster.status import describe, observe

SINCE = since("2026-01-01T02:14:00Z")
RAY_JOB = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "metadata": {"name": "prepare"},
    "spec": {"entrypoint": "python -m apps.batch", "rayClusterSpec": {}},
}


def told(cluster, *objects) -> tuple[Phase, str, str]:
    """The phase, the verdict and the rest."""
    state = observe(cluster, objects or [service()])
    verdict, *rest = describe(state)
    return state.phase, verdict, "\n".join(rest)


def test_not_applied(cluster):
    assert told(cluster)[:2] == (Phase.ABSENT, "llama is not applied.")
    assert told(cluster, ACCOUNT) == (Phase.ABSENT, "ServiceAccount llama is not applied.", "")


def test_kind_not_installed(server, cluster):
    server.store.kinds = CORE
    phase, verdict, _ = told(cluster)
    assert phase == Phase.ABSENT
    assert "--update-addons=RayOperator=ENABLED" in verdict


def test_no_operator(server, cluster):
    server.store.put(service(), "podslice")
    assert "no operator has picked it up yet" in told(cluster)[1]


def test_pods_up_and_no_application_yet(server, cluster):
    night = Night(server)
    night.head()
    night.worker()
    assert "Serve has not been given the applications yet" in told(cluster)[1]
    night.status(False, "RUNNING", said="no endpoints")
    assert told(cluster)[1].endswith("and no Pod serves yet (no endpoints).")
    night.status(False, pendingServiceStatus={}, activeServiceStatus={})
    night.worker(**unscheduled())
    assert "waits for capacity" in told(cluster)[1]


def test_ready(server, cluster):
    night = Night(server, replicas=2)
    night.head()
    night.worker(0)
    night.worker(1)
    night.status(True, "RUNNING")
    phase, verdict, rest = told(cluster)
    assert (phase, verdict) == (Phase.READY, "llama is ready: 2 of 2 slices serve.")
    assert "application llm is RUNNING" in rest
    assert "slice 1 of group tpu-v4-2x2x1 (tpu-v4-podslice 2x2x1) is ready" in rest


def test_ready_with_hosts_that_have_no_proxy(server, cluster):
    night = Night(server, hosts=2)
    night.head()
    night.worker(0, 0)
    night.worker(0, 1, **unready())
    night.status(True, "RUNNING")
    phase, verdict, rest = told(cluster)
    assert (phase, verdict) == (Phase.READY, "llama is ready: 1 of 1 slices serve.")
    assert "has 1 of 2 hosts up: host 1 runs but is not ready" in rest


def test_waits_for_capacity(server, cluster):
    night = Night(server)
    night.head()
    night.worker(**unscheduled(), selector={"cloud.google.com/gke-spot": "true"})
    assert told(cluster)[:2] == (
        Phase.WAITING,
        "llama waits for capacity: slice 0 of group tpu-v4-2x2x1 needs a node with tpu-v4-podslice 2x2x1, spot"
        f"{SINCE} (there is no such node; 0/3 nodes are available: 3 Insufficient google.com/tpu).",
    )


@pytest.mark.parametrize(
    ("reason", "message", "says"),
    [
        ("TriggeredScaleUp", "pod triggered scale-up: [{https://x/ig-1 0->2 (max: 4)}]", "is adding nodes (0 -> 2)"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 in backoff after failed scale-up", "got none"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 1 max node group size reached", "at its maximum"),
        ("NotTriggerScaleUp", "pod didn't trigger scale-up: 2 node(s) didn't match", "cannot help: pod didn't"),
        ("FailedScaleUp", "Node scale up in zones x failed: GCE out of resources.", "GCE out of resources"),
    ],
)
def test_what_the_autoscaler_says(server, cluster, reason, message, says):
    night = Night(server)
    night.head()
    pod = night.worker(**unscheduled())
    server.event(pod, "NotTriggerScaleUp", "old news", "Normal", at="2025-12-31T00:00:00Z")
    server.event(pod, reason, message, "Normal")
    server.event(pod, "FailedScheduling", "0/9 nodes are available: 9 gone. preemption: 0/9 nodes are available")
    verdict = told(cluster)[1]
    assert says in verdict
    assert "old news" not in verdict
    assert verdict.endswith("9 gone).")


@pytest.mark.parametrize(
    ("ready", "says"),
    [("True", "there are 1 such nodes, none free"), ("False", "of 1 such nodes 1 are not ready")],
)
def test_what_the_nodes_say(server, cluster, ready, says):
    night = Night(server)
    night.head()
    pod = night.worker(**unscheduled())
    labels = pod["spec"]["nodeSelector"]
    status = {"conditions": [{"type": "Ready", "status": ready}]}
    server.store.put(
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n", "labels": labels}, "status": status}
    )
    assert says in told(cluster)[1]
    server.forbidden.add("nodes")
    assert "such node" not in told(cluster)[1]


def test_a_slice_of_which_some_hosts_are_up(server, cluster):
    night = Night(server, hosts=4)
    night.head()
    night.worker(0, 0)
    for host in (1, 2, 3):
        night.worker(0, host, **unscheduled("no room"))
    phase, verdict, _ = told(cluster)
    assert phase == Phase.WAITING
    assert "slice 0 of group tpu-v4-2x2x1 has 1 of 4 hosts up: hosts 1 to 3 need" in verdict.replace("needs", "need")


def test_a_slice_that_the_operator_has_not_made(server, cluster):
    night = Night(server, hosts=2)
    night.head()
    assert "slice 0 of group tpu-v4-2x2x1 (each of its 2 hosts) has no Pod yet" in told(cluster)[1]


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (waiting("ImagePullBackOff", 'Back-off pulling image "ray:2.60"'), "cannot pull the image ray:2.60: Back-off"),
        (
            waiting("CreateContainerConfigError", 'secret "keys" not found'),
            'CreateContainerConfigError): secret "keys"',
        ),
        (
            waiting("CrashLoopBackOff", restartCount=7, phase="Running", lastState=terminated(137, "OOMKilled")),
            "crashes again and again (7 restarts): container ray was killed for memory (OOMKilled, exit code 137)",
        ),
        (
            waiting("CrashLoopBackOff", restartCount=2, phase="Running", lastState=terminated(1, message="no jax\n")),
            "container ray ended with exit code 1: no jax.",
        ),
        (container(terminated(3), phase="Running"), "crashed: container ray ended with exit code 3"),
        ({"phase": "Failed", "reason": "Evicted", "message": "disk is full"}, "failed: Evicted: disk is full"),
    ],
)
def test_pods_in_trouble(server, cluster, status, says):
    night = Night(server, replicas=2)
    night.head()
    night.worker(0, **status)
    night.worker(1, **unscheduled())  # less grave
    phase, verdict, _ = told(cluster)
    assert phase == Phase.TROUBLE
    assert verdict.startswith("llama does not come up: slice 0 of group tpu-v4-2x2x1 ")
    assert says in verdict


def test_spot_node_taken_away(server, cluster):
    night = Night(server)
    night.head()
    taken = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager", "message": "spot"}
    night.worker(phase="Failed", conditions=[taken])
    assert "its node was taken away (DeletionByTaintManager: spot)" in told(cluster)[1]


def test_pulling_and_mounting(server, cluster):
    night = Night(server)
    night.head()
    pod = night.worker(**waiting("ContainerCreating"))
    assert told(cluster)[:2] == (
        Phase.STARTING,
        "llama is starting: slice 0 of group tpu-v4-2x2x1 is starting on node node-1.",
    )
    server.event(pod, "Pulling", 'Pulling image "ray:2.60"', "Normal")
    assert 'is pulling image "ray:2.60"' in told(cluster)[1]
    server.event(pod, "FailedMount", "bucket llama: permission denied", at="2026-01-01T03:00:00Z")
    assert "cannot start on its node yet: bucket llama: permission denied" in told(cluster)[1]


def test_not_ready_and_why(server, cluster):
    night = Night(server)
    pod = night.head(**unready())
    night.worker()
    server.event(pod, "Unhealthy", "Readiness probe failed: connection refused")
    assert f"the head runs but is not ready{SINCE}: Readiness probe failed: connection refused" in told(cluster)[1]


def test_head_comes_before_equally_grave_workers(server, cluster):
    night = Night(server)
    night.head(**waiting("ErrImagePull"))
    night.worker(**waiting("ErrImagePull"))
    assert told(cluster)[1].startswith("llama does not come up: the head cannot pull")


def test_a_webhook_keeps_pods_from_being_made(server, cluster):
    night = Night(server)
    night.head()
    server.event(night.ray_cluster, "FailedToCreateWorkerPod", "admission webhook denied: no topology")
    phase, verdict, _ = told(cluster)
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
def test_what_serve_says(server, cluster, application, deployment, phase, says):
    night = Night(server)
    night.head()
    night.worker()
    night.status(False, application, deployment, "Traceback\n  File x\nValueError: no such model")
    found, verdict, rest = told(cluster)
    assert found == phase
    assert says in verdict
    assert "Traceback" not in verdict
    assert "File x" in rest


def test_ready_but_a_slice_is_gone(server, cluster):
    night = Night(server, replicas=2)
    night.head()
    night.worker(0)
    night.worker(1, **unscheduled("no room"))
    night.status(True, "RUNNING")
    phase, verdict, _ = told(cluster)
    assert phase == Phase.READY
    assert verdict.startswith("llama serves, but not with all it has (1 of 2 slices serve): slice 1 of group")


def test_upgrade_that_waits(server, cluster):
    night = Night(server)
    night.head()
    night.worker()
    night.status(
        True,
        "RUNNING",
        conditions=[{"type": "UpgradeInProgress", "status": "True"}],
        pendingServiceStatus={"rayClusterName": "llama-new", "trafficRoutedPercent": 20},
    )
    phase, verdict, _ = told(cluster)
    assert phase == Phase.STARTING
    assert verdict.startswith("llama serves (1 of 1 slices serve) and is being upgraded, 20 % of the traffic")
    assert "Ray cluster llama-new is not there yet" in verdict


@pytest.mark.parametrize(
    ("reason", "says"),
    [("InitializingTimeout", "Delete it and apply it again"), ("ValidationFailed", "was refused by the operator: bad")],
)
def test_given_up(server, cluster, reason, says):
    Night(server).status(False, reason=reason, said="bad")
    state = observe(cluster, [service()])
    assert state.failed
    assert says in describe(state)[0]


def test_a_change_that_the_operator_has_not_seen(server, cluster):
    night = Night(server)
    night.status(True, "RUNNING", observedGeneration=0)
    phase, verdict, _ = told(cluster)
    assert phase == Phase.STARTING
    assert "has not looked at the change yet" in verdict


def test_suspended_and_deleted(server, cluster):
    night = Night(server)
    night.status(False, conditions=[{"type": "Suspended", "status": "True"}])
    assert told(cluster)[0] == Phase.SUSPENDED
    live = server.store.find("RayService", "llama")
    live["metadata"]["finalizers"] = ["ray.io/rayservice-finalizer"]
    server.store.put(live)
    server.store.remove(service())
    assert told(cluster)[:2] == (Phase.DELETING, "llama is being deleted.")


def test_queued(server, cluster):
    queued = RAY_JOB | {"metadata": {"name": "prepare", "labels": {"kueue.x-k8s.io/queue-name": "tpus"}}}
    live = server.store.put(queued | {"spec": {"suspend": True}, "status": {"jobDeploymentStatus": "Suspended"}})
    assert "suspended for queue tpus, and Kueue has not looked at it yet" in told(cluster, RAY_JOB)[1]
    entry = {
        "apiVersion": "kueue.x-k8s.io/v1beta1",
        "kind": "Workload",
        "metadata": {"name": "w", "ownerReferences": [{"uid": live["metadata"]["uid"]}]},
        "spec": {},
    }
    reserved = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for google.com/tpu"}
    server.store.put(entry | {"status": {"conditions": [reserved]}})
    phase, verdict, _ = told(cluster, RAY_JOB)
    assert phase == Phase.WAITING
    assert "prepare waits for quota: queue tpus has not admitted it: insufficient quota for google.com/tpu" in verdict
    checks = [{"name": "dws", "state": "Pending", "message": "no capacity yet"}]
    reserved["status"] = "True"
    server.store.put(entry | {"status": {"conditions": [reserved], "admissionChecks": checks}})
    assert "waits for admission checks: dws is Pending: no capacity yet" in told(cluster, RAY_JOB)[1]


def test_gated_pod(server, cluster):
    night = Night(server)
    night.head()
    pod = night.worker(**unscheduled(reason="SchedulingGated"))
    server.store.put(pod | {"spec": pod["spec"] | {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}})
    assert "is held back by kueue.x-k8s.io/admission" in told(cluster)[1]


@pytest.mark.parametrize(
    ("status", "phase", "says"),
    [
        ({}, Phase.STARTING, "no operator has picked it up yet"),
        ({"jobDeploymentStatus": "Initializing"}, Phase.STARTING, "prepare is starting"),
        ({"jobDeploymentStatus": "Running", "jobStatus": "RUNNING"}, Phase.RUNNING, "prepare runs (RUNNING)"),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, Phase.DONE, "prepare has succeeded"),
        (
            {"jobDeploymentStatus": "Failed", "jobStatus": "FAILED", "reason": "AppFailed", "message": "exit 1"},
            Phase.FAILED,
            "prepare has failed (AppFailed: exit 1)",
        ),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, Phase.FAILED, "was stopped"),
        ({"jobDeploymentStatus": "Retrying", "failed": 2}, Phase.STARTING, "has failed 2 times and is tried again"),
        ({"jobDeploymentStatus": "ValidationFailed", "message": "bad"}, Phase.FAILED, "refused by the operator: bad"),
    ],
)
def test_ray_jobs(server, cluster, status, phase, says):
    server.store.put(RAY_JOB | {"status": status})
    found, verdict, _ = told(cluster, RAY_JOB)
    assert found == phase
    assert says in verdict


@pytest.mark.parametrize(
    ("status", "phase", "says"),
    [
        ({}, Phase.STARTING, "is applied, and has no Pod yet"),
        ({"active": 1, "ready": 1}, Phase.RUNNING, "prepare runs (0 of 1 completions)"),
        (
            {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]},
            Phase.DONE,
            "prepare has succeeded (1 of 1 completions)",
        ),
    ],
)
def test_jobs(server, cluster, status, phase, says):
    server.store.put(job() | {"status": status})
    found, verdict, _ = told(cluster, job())
    assert found == phase
    assert says in verdict


def test_failed_job_tells_the_exit_code(server, cluster):
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}
    server.store.put(job() | {"status": {"failed": 1, "conditions": [failed]}})
    server.store.put(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "prepare-x", "labels": {"batch.kubernetes.io/job-name": "prepare"}},
            "spec": {"nodeName": "n", "containers": []},
            "status": container(terminated(3, message="disk full"), phase="Failed"),
        }
    )
    phase, verdict, _ = told(cluster, job())
    assert phase == Phase.FAILED
    assert "BackoffLimitExceeded: too often" in verdict
    assert "its last Pod failed: container ray ended with exit code 3: disk full" in verdict


def test_the_gravest_workload_comes_first(server, cluster):
    night = Night(server)
    night.head()
    night.worker()
    night.status(True, "RUNNING")
    phase, verdict, rest = told(cluster, service(), job())
    assert (phase, verdict) == (Phase.ABSENT, "prepare is not applied.")
    assert "llama is ready" in rest


def test_a_ray_cluster_alone(server, cluster):
    night = Night(server)
    night.head()
    night.worker()
    alone = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": {"name": CLUSTER}}
    assert told(cluster, alone)[:2] == (Phase.READY, f"{CLUSTER} is ready: 1 of 1 slices up.")


def test_however_many_pods_a_handful_of_requests(server, cluster):
    night = Night(server, hosts=32)
    for host in range(32):
        night.worker(0, host, **unscheduled())
    observe(cluster, [service()])
    before = len(server.requests)
    observe(cluster, [service()])
    assert len(server.requests) - before <= 7
