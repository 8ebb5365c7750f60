"""What applies and starts, and goes wrong later: memory, rights, queues, slices that are torn apart."""

from typing import Any

import pytest

from kuberay.check import Finding, check
from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed, expect

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
        changed(good.service(), *shared_memory("2G")), "object-store", "warning", "sizeLimit", "2.5", "/tmp"
    )
    assert finding.where.endswith("headGroupSpec.template.spec.volumes[0].emptyDir.sizeLimit")
    params = (f"{HEAD} rayStartParams", {"object-store-memory": "4000000000"})
    expect(changed(good.service(), *shared_memory("3Gi"), params), "object-store", "warning", "sizeLimit", "4")
    expect(changed(good.service(), *shared_memory("9G", GROUP)), "object-store", "warning", "sizeLimit", "10")


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
    assert "trainer" in note.why
    expect([account("trainr"), *named], "service-account", "warning", "serviceAccountName", "trainr")
    assert noted([account("trainer"), *named], "service-account") == []
    elsewhere = account("trainer")
    elsewhere["metadata"]["namespace"] = "other"
    assert len(noted([elsewhere, *named], "service-account")) == 1


def test_workers_do_not_share_the_rights_of_the_autoscaler() -> None:
    both = [(f"{place} template spec serviceAccountName", "ray") for place in (HEAD, GROUP)]
    (note,) = noted(changed(good.service(), *both), "shared-rights")
    assert "workerGroupSpecs[0]" in note.where
    assert noted(changed(good.service(), *both, (f"{CLUSTER} enableInTreeAutoscaling", False)), "shared-rights") == []
    apart = (f"{HEAD} template spec serviceAccountName", "head")
    assert noted(changed(good.service(), *both, apart), "shared-rights") == []


def test_queued_services_and_versions_of_kueue() -> None:
    queued = ("metadata labels", {"kueue.x-k8s.io/queue-name": "tpus"})
    fixed = [(f"{CLUSTER} enableInTreeAutoscaling", False), (f"{CLUSTER} autoscalerOptions", REMOVED)]
    (note,) = noted(changed(good.service(), queued, *fixed), "kueue-service")
    assert "Kueue 0.17" in note.why and "0.16.9" in note.instead
    assert noted(changed(good.ray_job(), queued), "kueue-service") == []


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


CPUS = {
    "groupName": "cpu",
    "replicas": 1,
    "minReplicas": 1,
    "maxReplicas": 1,
    "template": {
        "spec": {
            "terminationGracePeriodSeconds": 150,
            "containers": [
                {
                    "name": "ray-worker",
                    "image": "rayproject/ray:2.60.0-py311",
                    "env": [{"name": "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "value": "125"}],
                }
            ],
        }
    },
}


def autoscaler(**env: str) -> Change:
    return (f"{CLUSTER} autoscalerOptions env", [{"name": name, "value": value} for name, value in env.items()])


def test_from_zero_something_must_ask_for_a_whole_slice() -> None:
    zero = changed(good.wide_service(), (f"{GROUP} minReplicas", 0), (f"{GROUP} replicas", 0))
    finding = expect(zero, "autoscaler-multi-host", "warning", "minReplicas")
    assert "CPU worker group" in finding.instead and "all hosts of a slice at once" in finding.instead
    cpus = (f"{CLUSTER} workerGroupSpecs 1", CPUS)
    expect(changed(zero, cpus), "autoscaler-multi-host", "warning", "minReplicas")
    ours = (f"{CLUSTER} workerGroupSpecs 1", {**CPUS, "labels": {"podslice/group": "cpu"}})
    assert good.grave(changed(zero, ours)) == []


@pytest.mark.parametrize("key", ["cloud.google.com/gke-flex-start", "cloud.google.com/gke-spot"])
def test_the_autoscaler_waits_as_long_as_machines_take(key: str) -> None:
    group = f"{GROUP} template spec nodeSelector {key}"
    scarce = changed(good.service(), (group, "true"))
    if key.endswith("spot"):
        scarce = changed(scarce, (f"{GROUP} template spec terminationGracePeriodSeconds", 105))
    finding = expect(scarce, "autoscaler-patience", "warning", "autoscalerOptions.env")
    patient = autoscaler(RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S="604800")
    assert "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S" in finding.instead
    assert good.grave(changed(scarce, patient)) == []


def test_queued_machines_are_waited_for_too() -> None:
    queued = {"key": "cloud.google.com/gke-queued", "operator": "Exists", "effect": "NoSchedule"}
    expect(
        changed(good.service(), (f"{GROUP} template spec tolerations 1", queued)),
        "autoscaler-patience",
        "warning",
        "autoscalerOptions.env",
    )


def test_a_slice_of_more_than_ten_hosts_is_asked_for_at_once() -> None:
    wide = [
        (f"{GROUP} numOfHosts", 16),
        (f"{GROUP} labels", {"ray.io/tpu-topology": "8x8"}),
        (f"{GROUP} template spec nodeSelector cloud.google.com/gke-tpu-topology", "8x8"),
    ]
    assert good.grave(changed(good.wide_service(), *wide)) == [], "a group that does not grow"
    grows = [*wide, (f"{GROUP} maxReplicas", 3)]
    expect(changed(good.wide_service(), *grows), "autoscaler-launches", "warning", "autoscalerOptions.env", "16", "10")
    assert good.grave(changed(good.wide_service(), *grows, autoscaler(AUTOSCALER_MAX_CONCURRENT_LAUNCHES="1000"))) == []


def drain(seconds: int) -> Change:
    deployment = f"  - {{name: Model, graceful_shutdown_timeout_s: {seconds}}}\n"
    return ("spec serveConfigV2", f"applications:\n- name: a\n  import_path: a:b\n  deployments:\n{deployment}")


def test_a_pod_lives_until_its_requests_end() -> None:
    assert good.grave(changed(good.service(), drain(120))) == []
    late = changed(good.service(), drain(120), (f"{GROUP} template spec terminationGracePeriodSeconds", 60))
    finding = expect(late, "drain", "warning", "terminationGracePeriodSeconds", "120", "60")
    assert finding.instead == "write terminationGracePeriodSeconds: 150"
    late = changed(good.service(), drain(120), (f"{GROUP} template spec containers 0 env 1 value", "100"))
    expect(late, "drain", "warning", "env[1].value", "100", '"125"')
    unsaid = [
        (f"{GROUP} template spec terminationGracePeriodSeconds", REMOVED),
        (f"{GROUP} template spec containers 0 env 1", REMOVED),
    ]
    assert len(good.grave(changed(good.service(), drain(60), *unsaid))) == 2
    assert good.grave(changed(good.service(), drain(20), *unsaid)) == [], "within everybody's 30 s"


def test_spot_leaves_what_it_leaves_whatever_is_written() -> None:
    """GKE's page on Spot VMs: 15 s for Pods, and 105 s with the pool's shutdownGracePeriodSeconds: 120."""
    grace = f"{GROUP} template spec terminationGracePeriodSeconds"
    spot = (f"{GROUP} template spec nodeSelector cloud.google.com/gke-spot", "true")
    fixed = (f"{CLUSTER} enableInTreeAutoscaling", False)
    finding = expect(
        changed(good.service(), drain(120), spot, fixed),
        "spot-shutdown",
        "warning",
        "terminationGracePeriodSeconds",
        "15 s",
    )
    assert finding.instead == "write 105 or less, and be done by then"
    short = changed(good.service(), drain(120), spot, fixed, (grace, 15))
    assert good.grave(short) == [] and noted(short, "spot-shutdown") == []
    pool = changed(good.service(), drain(120), spot, fixed, (grace, 105))
    assert good.grave(pool) == [] and len(noted(pool, "spot-shutdown")) == 1
    bound = {"key": "podslice-capacity", "operator": "Equal", "value": "spot", "effect": "NoSchedule"}
    ours = changed(pool, (f"{GROUP} template spec tolerations 1", bound))
    assert noted(ours, "spot-shutdown") == [], "`node-pools` makes such a pool"
    assert noted(changed(good.service(), (grace, 105)), "spot-shutdown") == [], "it is not on Spot"


def test_our_own_builders_say_how_long_they_drain() -> None:
    args = (
        "applications:\n- name: llm\n  import_path: apps.llm:build\n  args: {model: /models/a, slice: 'v5e:2x4:8t'}\n"
    )
    short = (f"{GROUP} template spec terminationGracePeriodSeconds", 100)
    expect(
        changed(good.service(), ("spec serveConfigV2", args), short),
        "drain",
        "warning",
        "terminationGracePeriodSeconds",
        "120",
    )
    told = args.replace("}", ", drain_timeout_s: 20}")
    assert good.grave(changed(good.service(), ("spec serveConfigV2", told), short)) == []
