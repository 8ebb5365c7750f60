"""TPU slices: what the GKE webhook refuses, what no node can satisfy, and what hangs."""

from typing import Any

import pytest

from ray_configs.tpu import GENERATIONS, TpuSlice, every_slice
from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed, expect

GROUP = "spec workerGroupSpecs 0"
POD = f"{GROUP} template spec"
BOX = f"{POD} containers 0"
ACCELERATOR = f"{POD} nodeSelector cloud.google.com/gke-tpu-accelerator"
TOPOLOGY = f"{POD} nodeSelector cloud.google.com/gke-tpu-topology"
AT_CHIPS = "requests[google.com/tpu]"
AT_ACCELERATOR, AT_TOPOLOGY = (
    f"nodeSelector[cloud.google.com/gke-tpu-{label}]" for label in ("accelerator", "topology")
)
LABELS = f"{GROUP} labels"


def chips(count: Any) -> list[Change]:
    return [(f"{BOX} resources {part} google.com/tpu", count) for part in ("limits", "requests")]


def env(name: str, value: Any) -> Change:
    return (f"{BOX} env 0", {"name": name, "value": value})


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        ([(ACCELERATOR, "tpu-v6-slice")], "tpu-accelerator", "error", [AT_ACCELERATOR, "tpu-v6e-slice"]),
        ([(ACCELERATOR, "ct6e-standard-4t")], "tpu-accelerator", "error", [AT_ACCELERATOR, "tpu-v6e-slice"]),
        ([(ACCELERATOR, "v5e")], "tpu-accelerator", "error", [AT_ACCELERATOR, "tpu-v5-lite-podslice"]),
        ([(ACCELERATOR, "nvidia-l4")], "tpu-accelerator", "error", [AT_ACCELERATOR, "nvidia-l4"]),
        ([(TOPOLOGY, "4x3")], "tpu-topology", "error", [AT_TOPOLOGY, "tpu-v6e-slice", "4x3"]),
        ([(TOPOLOGY, "8x4")], "tpu-topology", "error", [AT_TOPOLOGY, "4x8"]),
        ([(TOPOLOGY, "2x2x4")], "tpu-topology", "error", [AT_TOPOLOGY]),
        ([(TOPOLOGY, "sixteen")], "tpu-topology", "error", [AT_TOPOLOGY]),
        (chips(3), "tpu-chips", "error", [AT_CHIPS, "3", "5", "4"]),
        (chips("1.5"), "tpu-chips", "error", [AT_CHIPS]),
        (chips(8), "tpu-chips", "error", [AT_CHIPS, "4", "8"]),
        ([(f"{GROUP} numOfHosts", 2)], "tpu-hosts", "error", ["numOfHosts", "4", "2"]),
        ([(f"{GROUP} numOfHosts", REMOVED)], "tpu-hosts", "error", ["numOfHosts", "1"]),
        ([(f"{GROUP} numOfHosts", 0)], "tpu-hosts", "error", ["numOfHosts", "4", "0"]),
        (
            [(f"{GROUP} numOfHosts", 1), (f"{GROUP} replicas", 4), (f"{GROUP} maxReplicas", 4)],
            "tpu-hosts",
            "error",
            ["numOfHosts"],
        ),
        (
            [*chips(1), (TOPOLOGY, "2x2"), (f"{GROUP} numOfHosts", 4)],
            "tpu-chips",
            "error",
            [AT_CHIPS, "4", "1"],
        ),
        ([(TOPOLOGY, "2x2")], "tpu-hosts", "error", ["numOfHosts", "1", "4"]),
        ([(TOPOLOGY, "2x4")], "tpu-hosts", "error", ["numOfHosts", "google.com/tpu", "8", "1", "2"]),
        ([(TOPOLOGY, REMOVED)], "tpu-selectors", "error", [AT_TOPOLOGY]),
        ([(ACCELERATOR, REMOVED)], "tpu-selectors", "error", [AT_ACCELERATOR, "Autopilot"]),
        (
            [(f"{BOX} resources {part} google.com/tpu", REMOVED) for part in ("limits", "requests")],
            "tpu-selectors",
            "warning",
            [AT_TOPOLOGY, "google.com/tpu"],
        ),
        ([(f"{BOX} resources limits google.com/tpu", REMOVED)], "tpu-requests", "error", [AT_CHIPS]),
        ([(f"{BOX} resources limits google.com/tpu", 8)], "tpu-requests", "error", [AT_CHIPS, "4", "8"]),
        (
            [(f"{POD} initContainers", [{"name": "warm", "resources": {"limits": {"google.com/tpu": 4}}}])],
            "tpu-containers",
            "warning",
            ["initContainers[0].resources"],
        ),
        ([(f"{BOX} resources limits cpu", "180"), (f"{BOX} resources requests cpu", "180")], "machine-size", "error",
         ["cpu", "ct6e-standard-4t", "180"]),
        ([(f"{BOX} resources {part} memory", "800Gi") for part in ("limits", "requests")],
         "machine-size", "error", ["memory", "800", "720"]),
        ([(f"{POD} affinity", {"podAffinity": {}})], "tpu-affinity", "warning", ["affinity", "nodeSelector"]),
        ([env("TPU_WORKER_ID", "0")], "tpu-env", "error", ["env[0].value", "ai-on-gke#858"]),
        ([env("TPU_WORKER_HOSTNAMES", "a,b")], "tpu-env", "error", ["env[0].value", "TPU_WORKER_HOSTNAMES"]),
        ([env("TPU_NAME", "mine")], "tpu-env", "error", ["env[0].value"]),
        ([env("MEGASCALE_SLICE_ID", "0")], "megascale-env", "warning", ["env[0].value", "ray#62893"]),
        ([env("MEGASCALE_COORDINATOR_ADDRESS", "a:1")], "megascale-env", "warning", ["env[0].value"]),
        ([env("MEGASCALE_NUM_SLICES", "4")], "megascale-env", "warning", ["env[0].value", "2"]),
        ([env("JAX_PLATFORMS", "tpu")], "jax-platforms", "warning", ["env[0].value"]),
        ([env("JAX_PLATFORMS", "cpu")], "jax-platforms", "warning", ["env[0].value"]),
        ([(f"{BOX} securityContext privileged", True)], "privileged", "warning", ["privileged", "Autopilot"]),
        ([(f"{LABELS} ray.io/tpu-worker-id", "0")], "group-labels", "error", ["labels[ray.io/tpu-worker-id]"]),
        ([(f"{LABELS} ray.io/tpu-slice-name", "a")], "group-labels", "error", ["labels[ray.io/tpu-slice-name]"]),
        ([(f"{LABELS} ray.io/tpu-pod-type", "v6e-32")], "group-labels", "error", ["tpu-pod-type]", "v6e-32", "v6e-16"]),
        ([(f"{LABELS} ray.io/accelerator-type", "v6e")], "group-labels", "error", ["accelerator-type]", "TPU-V6E"]),
        (
            [
                (f"{POD} nodeSelector cloud.google.com/gke-spot", "true"),
                (f"{POD} terminationGracePeriodSeconds", 15),
                (f"{POD} nodeSelector cloud.google.com/gke-flex-start", "true"),
            ],
            "tpu-capacity",
            "error",
            ["nodeSelector[cloud.google.com/gke-flex-start]"],
        ),
        (
            [("spec headGroupSpec template spec containers 0 resources limits google.com/tpu", 4),
             ("spec headGroupSpec template spec nodeSelector",
              {"cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice", "cloud.google.com/gke-tpu-topology": "2x2"})],
            "tpu-on-head",
            "warning",
            ["containers[0].resources"],
        ),
    ],
)  # fmt: skip
def test_a_spoilt_slice(changes: list[Change], rule: str, severity: str, expected: list[str]) -> None:
    expect(changed(good.cluster(), *changes), rule, severity, *expected)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_slice_that_gke_sells_passes(generation: str) -> None:
    for slice in every_slice():
        if slice.generation == generation:
            assert_passes(slice)


def assert_passes(slice: TpuSlice) -> None:
    objects = changed(
        good.cluster(),
        (ACCELERATOR, slice.accelerator),
        (TOPOLOGY, slice.topology),
        (f"{GROUP} numOfHosts", slice.hosts),
        (LABELS, slice.ray_labels),
        *chips(slice.chips_per_host),
    )
    found = {finding.rule for finding in good.grave(objects)}
    assert found <= {"ray-topology"}, slice
    assert ("ray-topology" in found) == (slice.ray_refusal is not None and "autoscaler" not in slice.ray_refusal)


def test_slices_that_ray_does_not_know() -> None:
    accelerators = [(ACCELERATOR, "tpu7x"), (TOPOLOGY, "4x4x12"), (f"{GROUP} numOfHosts", 48), (LABELS, {})]
    expect(
        changed(good.cluster(), *accelerators),
        "ray-topology",
        "warning",
        AT_TOPOLOGY,
        "7x",
        "4x4x12",
        "Job",
    )
    scaled = [
        (ACCELERATOR, "tpu-v3-slice"),
        (LABELS, {}),
        ("spec enableInTreeAutoscaling", True),
        ("spec autoscalerOptions version", "v2"),
        *[(f"{BOX} resources {part} cpu", "10") for part in ("limits", "requests")],
    ]
    expect(
        changed(good.cluster(), *scaled),
        "ray-topology",
        "warning",
        AT_ACCELERATOR,
        "tpu-v3-slice",
    )
    expect(
        changed(good.cluster(), (ACCELERATOR, "tpu7"), (LABELS, {})),
        "ray-topology",
        "warning",
        AT_ACCELERATOR,
        "tpu7x",
    )


def test_the_first_container_runs_ray() -> None:
    objects = changed(good.cluster(), *[(path, REMOVED) for path, _ in chips(0)])
    boxes = objects[0]["spec"]["workerGroupSpecs"][0]["template"]["spec"]["containers"]
    boxes.append({"name": "second", "resources": {"limits": {"google.com/tpu": 4}}, "image": "me/mine:1"})
    expect(objects, "tpu-containers", "error", "containers[1].resources")


def test_chips_split_over_two_containers() -> None:
    objects = changed(good.cluster(), *chips(1), (TOPOLOGY, "2x4"), (f"{GROUP} numOfHosts", 2), (LABELS, {}))
    pod = objects[0]["spec"]["workerGroupSpecs"][0]["template"]["spec"]
    pod["containers"].append({"name": "b", "image": "a:1", "resources": {"limits": {"google.com/tpu": 3}}})
    expect(objects, "tpu-containers", "warning", "containers[1].resources")
    pod["nodeSelector"] = {
        "cloud.google.com/gke-tpu-accelerator": "tpu7x",
        "cloud.google.com/gke-tpu-topology": "2x2x2",
    }
    assert good.grave(objects) == []  # 7x runs a container for each half of a host


def test_2x4_of_two_hosts_is_worth_a_note() -> None:
    objects = changed(good.cluster(), (TOPOLOGY, "2x4"), (f"{GROUP} numOfHosts", 2))
    assert [(f.rule, f.severity) for f in good.check(objects)] == [("tpu-2x4", "note")]


@pytest.mark.parametrize(
    "value",
    ["$ACCELERATOR", "${ACCELERATOR}", "{{ accelerator }}", "{accelerator}", "<accelerator>", "ACCELERATOR_TYPE"],
)
def test_a_placeholder_is_one_note(value: str) -> None:
    objects = changed(good.cluster(), (ACCELERATOR, value), (TOPOLOGY, "TPU_TOPOLOGY"), *chips("NUM_CHIPS"))
    (finding,) = good.check(objects)
    assert (finding.rule, finding.severity) == ("placeholder", "note")
    assert value in finding.why and "NUM_CHIPS" in finding.why


def test_a_compilation_cache_in_a_bucket() -> None:
    bucket = {"name": "cache", "csi": {"driver": "gcsfuse.csi.storage.gke.io"}}
    objects = changed(
        good.cluster(),
        (f"{POD} volumes", [bucket]),
        (f"{GROUP} template metadata", {"annotations": {"gke-gcsfuse/volumes": "true"}}),
        (f"{BOX} volumeMounts", [{"name": "cache", "mountPath": "/data/"}]),
        env("VLLM_XLA_CACHE_PATH", "/data/xla"),
    )
    expect(objects, "compile-cache", "warning", "env[0].value", "/tmp")
    assert good.grave(changed(objects, env("VLLM_XLA_CACHE_PATH", "/database/xla"))) == []


def test_a_worker_id_from_the_pods_own_label_is_fine() -> None:
    reference = {"fieldRef": {"fieldPath": "metadata.labels['ray.io/replica-host-index']"}}
    objects = changed(good.cluster(), (f"{BOX} env 0", {"name": "TPU_WORKER_ID", "valueFrom": reference}))
    assert good.grave(objects) == []


def test_gke_adds_the_toleration() -> None:
    assert good.check(changed(good.cluster(), (f"{POD} tolerations", REMOVED))) == []
