"""RayJobs, batch Jobs, JobSets and other workloads."""

import pytest

from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed, expect

POD = "spec template spec"
BOX = f"{POD} containers 0"
TOPOLOGY = "nodeSelector cloud.google.com/gke-tpu-topology"
GROUP = "spec rayClusterSpec workerGroupSpecs 0"
HEAD = "spec rayClusterSpec headGroupSpec"


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        (
            [("spec shutdownAfterJobFinishes", REMOVED), ("spec ttlSecondsAfterFinished", REMOVED)],
            "ray-job-leftover",
            "warning",
            ["shutdownAfterJobFinishes"],
        ),
        (
            [
                (f"{GROUP} template spec nodeSelector cloud.google.com/gke-flex-start", "true"),
                ("spec rayClusterSpec enableInTreeAutoscaling", False),
            ],
            "tpu-capacity",
            "error",
            ["nodeSelector[cloud.google.com/gke-flex-start]", "ct4p-hightpu-4t"],
        ),
    ],
)  # fmt: skip
def test_a_spoilt_ray_job(changes: list[Change], rule: str, severity: str, expected: list[str]) -> None:
    expect(changed(good.ray_job(), *changes), rule, severity, *expected)


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        ([("spec completions", 4)], "job-hosts", "error", ["completions", "8"]),
        ([("spec parallelism", REMOVED)], "job-hosts", "error", ["parallelism", "1"]),
        ([("spec completions", 16), ("spec parallelism", 16)], "job-hosts", "warning", ["completions", "2", "JobSet"]),
        ([("spec completionMode", REMOVED)], "job-indexed", "error", ["completionMode", "0", "Indexed"]),
        ([("spec backoffLimit", REMOVED)], "job-retries", "warning", ["backoffLimit", "6"]),
        ([(f"{POD} restartPolicy", "OnFailure")], "job-restart", "warning", ["restartPolicy", "Never"]),
        ([(f"{POD} subdomain", REMOVED)], "job-service", "error", ["subdomain"]),
        ([(f"{POD} subdomain", "elsewhere")], "job-service", "warning", ["subdomain", "elsewhere"]),
        ([("Service spec clusterIP", REMOVED)], "job-service", "error", ["clusterIP", "None"]),
        ([("Service spec selector", {"job-name": "other"})], "job-service", "error", ["job-name", "'train'"]),
        ([("Service spec selector", {"app": "train"})], "job-service", "error", ["app"]),
        ([("Service spec selector", {})], "job-service", "error", ["spec.selector"]),
        (
            [(f"{BOX} env 0", {"name": "TPU_WORKER_ID", "value": "0"})],
            "tpu-env",
            "error",
            ["env[0].value"],
        ),
        (
            [(f"{POD} {TOPOLOGY}", "4x7")],
            "tpu-topology",
            "error",
            ["nodeSelector[cloud.google.com/gke-tpu-topology]", "4x7"],
        ),
    ],
)
def test_a_spoilt_indexed_job(changes: list[Change], rule: str, severity: str, expected: list[str]) -> None:
    expect(changed(good.indexed_job(), *changes), rule, severity, *expected)


@pytest.mark.parametrize(
    ("change", "rule", "severity", "expected"),
    [
        (
            (f"{POD} {TOPOLOGY}", REMOVED),
            "tpu-selectors",
            "warning",
            ["gke-tpu-topology]", "Autopilot"],
        ),
        ((f"{POD} {TOPOLOGY}", "2x4"), "job-indexed", "error", ["spec.completionMode"]),
        (
            (f"{POD} nodeSelector cloud.google.com/gke-spot", "true"),
            "tpu-capacity",
            "error",
            ["nodeSelector[cloud.google.com/gke-flex-start]"],
        ),
    ],
)
def test_a_spoilt_job(change: Change, rule: str, severity: str, expected: list[str]) -> None:
    found = good.grave(changed(good.job(), change))
    assert (rule, severity) in [(f.rule, f.severity) for f in found]
    (finding,) = (f for f in found if f.rule == rule)
    where, *facts = expected
    assert finding.where.endswith(where)
    good.mentions([finding], *facts)


def test_a_job_that_lacks_its_service_among_the_objects() -> None:
    expect(good.indexed_job()[1:], "job-service", "warning", "subdomain")


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        ([("spec replicatedJobs 0 template spec parallelism", 4)], "job-hosts", "error", ["spec.parallelism", "8"]),
        ([("spec replicatedJobs 0 template spec backoffLimit", 4)], "job-retries", "warning", ["backoffLimit", "0"]),
        (
            [("spec replicatedJobs 0 template spec completionMode", "NonIndexed")],
            "job-indexed",
            "error",
            ["completionMode", "Indexed"],
        ),
        ([("spec replicatedJob", [])], "unknown-field", "error", ["replicatedJob", "replicatedJobs"]),
    ],
)
def test_a_spoilt_job_set(changes: list[Change], rule: str, severity: str, expected: list[str]) -> None:
    expect(changed(good.job_set(), *changes), rule, severity, *expected)


def test_hosts_counted_as_slices() -> None:
    counted = [
        ("spec replicatedJobs 0 replicas", 8),
        ("spec replicatedJobs 0 template spec parallelism", 1),
        ("spec replicatedJobs 0 template spec completions", 1),
    ]
    expect(
        changed(good.job_set(), *counted),
        "job-hosts",
        "error",
        "completions",
        "1",
        "8",
        "JobSet",
    )


def test_a_deployment_cannot_be_a_wide_slice() -> None:
    expect(
        changed(good.deployment(), (f"{POD} {TOPOLOGY}", "4x4")),
        "tpu-workload",
        "error",
        "nodeSelector[cloud.google.com/gke-tpu-topology]",
    )


def test_a_stateful_set_of_part_of_a_slice() -> None:
    objects = changed(
        good.deployment(),
        ("kind", "StatefulSet"),
        (f"{POD} {TOPOLOGY}", "4x4"),
        ("spec replicas", 6),
        ("spec serviceName", "a"),
        ("spec strategy", REMOVED),
    )
    expect(objects, "tpu-workload", "error", "spec.replicas", "4")
    assert good.grave(changed(objects, ("spec replicas", 8))) == []


def test_a_leader_worker_set_is_one_slice() -> None:
    pod = changed(good.deployment(), (f"{POD} {TOPOLOGY}", "4x4"))[0]["spec"]["template"]
    objects = [
        {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": "lws"},
            "spec": {"replicas": 1, "leaderWorkerTemplate": {"size": 4, "workerTemplate": pod}},
        }
    ]
    assert good.grave(objects) == []
    expect(
        changed(objects, ("spec leaderWorkerTemplate size", 3)),
        "tpu-workload",
        "error",
        "leaderWorkerTemplate.size",
        "4",
    )


def test_part_of_a_host_is_a_warning_outside_of_ray() -> None:
    part = [(f"{BOX} resources {part} google.com/tpu", 1) for part in ("limits", "requests")]
    expect(changed(good.deployment(), *part), "tpu-chips", "warning", "requests[google.com/tpu]")


def test_unknown_kinds_pass() -> None:
    assert good.check([{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": 7}]) == []
