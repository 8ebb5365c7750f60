"""What applies and starts, and goes wrong later: memory, rights, queues, slices that are torn apart."""

from typing import Any

import good_manifests as good
import pytest
from good_manifests import REMOVED, Change, changed, expect

from kuberay.check import Finding, check

CLUSTER = "spec rayClusterConfig"
HEAD = f"{CLUSTER} headGroupSpec"
GROUP = f"{CLUSTER} workerGroupSpecs 0"


def shared_memory(size: str | None, place: str = HEAD) -> list[Change]:
    pod = f"{place} template spec"
    volume = {"name": "dshm", "emptyDir": {"medium": "Memory", **({"sizeLimit": size} if size else {})}}
    return [
        (f"{pod} volumes", [volume]),
        (f"{pod} containers 0 volumeMounts", [{"name": "dshm", "mountPath": "/dev/shm"}]),
    ]


def noted(objects: list[Any], rule: str) -> list[Finding]:
    return [finding for finding in check(objects) if finding.rule == rule and finding.severity == "note"]


def test_the_object_store_fits_into_shared_memory() -> None:
    finding = expect(
        changed(good.service(), *shared_memory("2G")), "object-store", "warning", "2.5 GB", "/tmp, on disk"
    )
    assert finding.where.endswith("headGroupSpec.template.spec.volumes[0].emptyDir.sizeLimit")
    params = (f"{HEAD} rayStartParams", {"object-store-memory": "4000000000"})
    expect(
        changed(good.service(), *shared_memory("3Gi"), params), "object-store", "warning", "4 GB (object-store-memory)"
    )
    expect(changed(good.service(), *shared_memory("9G", GROUP)), "object-store", "warning", "10 GB")


@pytest.mark.parametrize(
    "changes",
    [
        shared_memory("2800M"),
        shared_memory(None),
        shared_memory("11G", GROUP),  # Ray makes a store of that size no larger than /dev/shm
        [*shared_memory("2G"), (f"{HEAD} rayStartParams", {"object-store-memory": "1000000000"})],
        [*shared_memory("2G"), (f"{HEAD} template spec containers 0 volumeMounts 0 mountPath", "/scratch")],
    ],
)
def test_shared_memory_that_is_enough(changes: list[Change]) -> None:
    assert good.grave(changed(good.service(), *changes)) == []


def account(name: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}


def test_a_service_account_that_nobody_makes() -> None:
    named = changed(good.service(), (f"{GROUP} template spec serviceAccountName", "trainer"))
    (note,) = noted(named, "service-account")
    assert "there is no ServiceAccount trainer" in note.why
    expect([account("trainr"), *named], "service-account", "warning", "write trainr")
    assert noted([account("trainer"), *named], "service-account") == []
    elsewhere = account("trainer")
    elsewhere["metadata"]["namespace"] = "other"
    assert len(noted([elsewhere, *named], "service-account")) == 1


def test_workers_do_not_share_the_rights_of_the_autoscaler() -> None:
    both = [(f"{place} template spec serviceAccountName", "ray") for place in (HEAD, GROUP)]
    (note,) = noted(changed(good.service(), *both), "shared-rights")
    assert "delete Pods" in note.why and "workerGroupSpecs[0]" in note.where
    assert noted(changed(good.service(), *both, (f"{CLUSTER} enableInTreeAutoscaling", False)), "shared-rights") == []
    apart = (f"{HEAD} template spec serviceAccountName", "head")
    assert noted(changed(good.service(), *both, apart), "shared-rights") == []


def test_a_group_without_scale_strategy_is_applied_once() -> None:
    (note,) = noted(good.service(), "write-back")
    assert "conflict" in note.why and note.instead.startswith("write scaleStrategy: {}")
    assert noted(changed(good.service(), (f"{GROUP} scaleStrategy", {})), "write-back") == []
    assert len(noted(good.ray_job(), "write-back")) == 1
    assert noted(good.cluster(), "write-back") == [], "a RayCluster alone gets no finalizer"
    redis = ("spec gcsFaultToleranceOptions", {"redisAddress": "redis:6379"})
    assert len(noted(changed(good.cluster(), redis), "write-back")) == 1


def test_queued_services_and_versions_of_kueue() -> None:
    queued = ("metadata labels", {"kueue.x-k8s.io/queue-name": "tpus"})
    fixed = [(f"{CLUSTER} enableInTreeAutoscaling", False), (f"{CLUSTER} autoscalerOptions", REMOVED)]
    (note,) = noted(changed(good.service(), queued, *fixed), "kueue-service")
    assert "Kueue 0.17" in note.why and "0.16.9" in note.instead
    assert noted(changed(good.ray_job(), queued), "kueue-service") == []
    elastic = ("metadata annotations", {"kueue.x-k8s.io/elastic-job": "true"})
    (note,) = noted(changed(good.service(), queued, elastic), "kueue")
    assert "ElasticJobsViaWorkloadSlices" in note.why


AFFINITY = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": []}}
EXCLUSIVE = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}


def test_hosts_of_a_job_stay_on_one_slice() -> None:
    (note,) = noted(good.indexed_job(), "job-slice")
    assert "podAffinity" in note.instead and "gke-nodepool" in note.instead
    (note,) = noted(good.job_set(), "job-slice")
    assert "exclusive-topology" in note.instead
    for objects in (
        changed(good.indexed_job(), ("spec template spec affinity", AFFINITY)),
        changed(good.indexed_job(), ("spec template spec nodeSelector cloud.google.com/gke-nodepool", "pool-1")),
        changed(good.job_set(), ("metadata annotations", EXCLUSIVE)),
        changed(good.job_set(), ("spec replicatedJobs 0 template metadata annotations", EXCLUSIVE)),
        good.job(),
    ):
        assert noted(objects, "job-slice") == []
