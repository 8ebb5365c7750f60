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
    ("changes", "rule", "severity", "words"),
    [
        (
            [("spec shutdownAfterJobFinishes", REMOVED), ("spec ttlSecondsAfterFinished", REMOVED)],
            "ray-job-leftover",
            "warning",
            ["paying for"],
        ),
        (
            [
                (f"{GROUP} template spec nodeSelector cloud.google.com/gke-flex-start", "true"),
                ("spec rayClusterSpec enableInTreeAutoscaling", False),
            ],
            "tpu-capacity",
            "error",
            ["flex-start does not sell ct4p-hightpu-4t"],
        ),
    ],
)  # fmt: skip
def test_a_spoilt_ray_job(changes: list[Change], rule: str, severity: str, words: list[str]) -> None:
    expect(changed(good.ray_job(), *changes), rule, severity, *words)


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "words"),
    [
        ([("spec completions", 4)], "job-hosts", "error", ["slice of 8 hosts", "completions: 8"]),
        ([("spec parallelism", REMOVED)], "job-hosts", "error", ["parallelism is 1"]),
        ([("spec completions", 16), ("spec parallelism", 16)], "job-hosts", "warning", ["2 slices", "JobSet"]),
        ([("spec completionMode", REMOVED)], "job-indexed", "error", ["worker 0", "Indexed"]),
        ([("spec backoffLimit", REMOVED)], "job-retries", "warning", ["6, the default"]),
        ([(f"{POD} restartPolicy", "OnFailure")], "job-restart", "warning", ["write Never"]),
        ([(f"{POD} subdomain", REMOVED)], "job-service", "error", ["no subdomain"]),
        ([(f"{POD} subdomain", "elsewhere")], "job-service", "warning", ["no Service elsewhere"]),
        ([("Service spec clusterIP", REMOVED)], "job-service", "error", ["clusterIP: None"]),
        ([("Service spec selector", {"job-name": "other"})], "job-service", "error", ["have 'train'"]),
        ([("Service spec selector", {"app": "train"})], "job-service", "error", ["no such label"]),
        ([("Service spec selector", {})], "job-service", "error", ["selects no Pods"]),
        (
            [(f"{BOX} env 0", {"name": "TPU_WORKER_ID", "value": "0"})],
            "tpu-env",
            "error",
            ["same on every host"],
        ),
        ([(f"{POD} {TOPOLOGY}", "4x7")], "tpu-topology", "error", ["4x7"]),
    ],
)
def test_a_spoilt_indexed_job(changes: list[Change], rule: str, severity: str, words: list[str]) -> None:
    expect(changed(good.indexed_job(), *changes), rule, severity, *words)


@pytest.mark.parametrize(
    ("change", "rule", "severity", "word"),
    [
        ((f"{POD} {TOPOLOGY}", REMOVED), "tpu-selectors", "warning", "Autopilot"),
        ((f"{POD} {TOPOLOGY}", "2x4"), "job-indexed", "error", "no numbers"),
        ((f"{POD} nodeSelector cloud.google.com/gke-spot", "true"), "tpu-capacity", "error", "no node has both"),
    ],
)
def test_a_spoilt_job(change: Change, rule: str, severity: str, word: str) -> None:
    found = good.grave(changed(good.job(), change))
    assert (rule, severity) in [(f.rule, f.severity) for f in found]
    assert any(word in f.why + f.instead for f in found if f.rule == rule)


def test_a_job_that_lacks_its_service_among_the_objects() -> None:
    expect(good.indexed_job()[1:], "job-service", "warning", "unless it exists already")


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "word"),
    [
        ([("spec replicatedJobs 0 template spec parallelism", 4)], "job-hosts", "error", "parallelism: 8"),
        ([("spec replicatedJobs 0 template spec backoffLimit", 4)], "job-retries", "warning", "backoffLimit: 0"),
        (
            [("spec replicatedJobs 0 template spec completionMode", "NonIndexed")],
            "job-indexed",
            "error",
            "Indexed",
        ),
        ([("spec replicatedJob", [])], "unknown-field", "error", "replicatedJobs"),
    ],
)
def test_a_spoilt_job_set(changes: list[Change], rule: str, severity: str, word: str) -> None:
    expect(changed(good.job_set(), *changes), rule, severity, word)


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
        "completions is 1",
        "completions: 8; the replicas of a JobSet are slices",
    )


def test_a_deployment_cannot_be_a_wide_slice() -> None:
    expect(changed(good.deployment(), (f"{POD} {TOPOLOGY}", "4x4")), "tpu-workload", "error", "no stable names")


def test_a_stateful_set_of_part_of_a_slice() -> None:
    objects = changed(
        good.deployment(),
        ("kind", "StatefulSet"),
        (f"{POD} {TOPOLOGY}", "4x4"),
        ("spec replicas", 6),
        ("spec serviceName", "a"),
        ("spec strategy", REMOVED),
    )
    expect(objects, "tpu-workload", "error", "multiple of 4")
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
    expect(changed(objects, ("spec leaderWorkerTemplate size", 3)), "tpu-workload", "error", "size: 4")


def test_part_of_a_host_is_a_warning_outside_of_ray() -> None:
    part = [(f"{BOX} resources {part} google.com/tpu", 1) for part in ("limits", "requests")]
    expect(changed(good.deployment(), *part), "tpu-chips", "warning", "some chips stay idle")


def test_unknown_kinds_pass() -> None:
    assert good.check([{"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "x"}, "spec": 7}]) == []
