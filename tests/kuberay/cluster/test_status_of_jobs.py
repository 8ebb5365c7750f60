"""RayJobs and Jobs in words: waiting, at work, ended well or badly, and why."""

from typing import Any

import pytest

from kuberay.cluster.status import describe
from kuberay.cluster.status.state import Phase
from tests.kuberay.cluster.night import Manifest, Night, container, terminated, up

RAY_JOB: Manifest = {
    "apiVersion": "ray.io/v1",
    "kind": "RayJob",
    "metadata": {"name": "prepare", "uid": "job"},
    "spec": {"entrypoint": "python -m apps.jobs", "rayClusterSpec": {}},
}
JOB: Manifest = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "prepare", "uid": "job"},
    "spec": {"completions": 1, "parallelism": 1, "template": {"spec": {"containers": [{"name": "prepare"}]}}},
}


def told(night: Night, live: Manifest, **more: Any) -> tuple[Phase, str]:
    state = night.state(live | more)
    return state.phase, describe(state)[0]


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
        ({"jobDeploymentStatus": "Complete", "jobStatus": "STOPPED"}, Phase.FAILED, "has failed (STOPPED)"),
        ({"jobDeploymentStatus": "Retrying", "failed": 2}, Phase.STARTING, "has failed 2 times and is being retried"),
        ({"jobDeploymentStatus": "ValidationFailed", "message": "bad"}, Phase.FAILED, "refused by the operator: bad"),
    ],
)
def test_ray_jobs(status, phase, says):
    found, verdict = told(Night(), RAY_JOB, status=status)
    assert found == phase
    assert says in verdict


@pytest.mark.parametrize(
    ("status", "phase", "says"),
    [
        ({}, Phase.STARTING, "is applied, but has no Pod yet"),
        ({"active": 1, "ready": 1}, Phase.RUNNING, "prepare runs (0 of 1 completions)"),
        (
            {"succeeded": 1, "conditions": [{"type": "Complete", "status": "True"}]},
            Phase.DONE,
            "prepare has succeeded (1 of 1 completions)",
        ),
    ],
)
def test_jobs(status, phase, says):
    found, verdict = told(Night(), JOB, status=status)
    assert found == phase
    assert says in verdict


def test_a_failed_job_tells_the_exit_code():
    night = Night()
    night.pods = [
        {
            "kind": "Pod",
            "metadata": {"name": "prepare-x", "uid": "x", "labels": {"batch.kubernetes.io/job-name": "prepare"}},
            "spec": {"nodeName": "n", "containers": []},
            "status": container(terminated(3, message="disk full"), phase="Failed"),
        }
    ]
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "too often"}
    phase, verdict = told(night, JOB, status={"failed": 1, "conditions": [failed]})
    assert phase == Phase.FAILED
    assert "BackoffLimitExceeded: too often" in verdict
    assert "Pod prepare-x failed: container ray ended with exit code 3: disk full" in verdict


def test_queued():
    night = Night()
    labelled = {"name": "prepare", "uid": "job", "labels": {"kueue.x-k8s.io/queue-name": "tpus"}}
    queued = RAY_JOB | {"metadata": labelled, "spec": {"suspend": True}}
    queued["status"] = {"jobDeploymentStatus": "Suspended"}
    assert "suspended for queue tpus, but Kueue is not installed in this cluster" in told(night, queued)[1]
    night.entries = [{"metadata": {"name": "other"}, "status": {}}]
    assert "suspended for queue tpus, but Kueue has not processed it yet" in told(night, queued)[1]
    reserved = {"type": "QuotaReserved", "status": "False", "message": "insufficient quota for google.com/tpu"}
    owners = {"name": "w", "ownerReferences": [{"uid": "job"}]}
    night.entries = [{"metadata": owners, "status": {"conditions": [reserved]}}]
    phase, verdict = told(night, queued)
    assert phase == Phase.WAITING
    assert "prepare waits for quota: queue tpus has not admitted it: insufficient quota for google.com/tpu" in verdict
    reserved["status"] = "True"
    night.entries[0]["status"]["admissionChecks"] = [{"name": "dws", "state": "Pending", "message": "no capacity yet"}]
    assert "waits for admission checks: dws is Pending: no capacity yet" in told(night, queued)[1]


def test_the_gravest_workload_comes_first():
    night = Night()
    night.head()
    night.worker()
    night.status(True, "RUNNING")
    failed = JOB | {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "x", "message": "y"}]}}
    verdict, *rest = describe(night.state(night.service, failed))
    assert verdict.startswith("prepare has failed")
    assert any(line.startswith("llama is ready") for line in rest)


def test_each_pod_of_a_job_without_completions_is_a_host():
    night = Night()
    labels = {"batch.kubernetes.io/job-name": "prepare"}
    night.pods = [
        {
            "kind": "Pod",
            "metadata": {"name": f"prepare-{name}", "uid": name, "labels": labels},
            "spec": {"nodeName": "n", "containers": []},
            "status": up(),
        }
        for name in "abc"
    ]
    spec = {"parallelism": 3, "template": {"spec": {"containers": [{"name": "prepare"}]}}}
    state = night.state(JOB | {"spec": spec, "status": {"active": 3, "ready": 3}})
    assert "  the job is ready" in describe(state)
