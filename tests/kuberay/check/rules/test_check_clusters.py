"""What the KubeRay operator refuses in a RayCluster, and what it takes and should not."""

from typing import Any

import pytest

from kuberay.check import check
from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed, expect

CLUSTER = "spec rayClusterConfig"
HEAD = "spec headGroupSpec"
HEAD_BOX = f"{HEAD} template spec containers 0"
GROUP = "spec workerGroupSpecs 0"
BOX = f"{GROUP} template spec containers 0"
SCALING: list[Change] = [("spec enableInTreeAutoscaling", True), ("spec autoscalerOptions version", "v2")]


def env(name: str, value: Any = "x") -> dict[str, Any]:
    return {"name": name, "value": value}


@pytest.mark.parametrize("manifest", good.ALL)
def test_a_good_manifest_has_nothing_to_complain_about(manifest: Any) -> None:
    assert good.grave(manifest()) == []


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        ([("metadata name", "r" * 42)], "name-multi-host", "error", ["metadata.name", "-headless", "41"]),
        ([("apiVersion", "ray.io/v1alpha1")], "object", "warning", ["apiVersion", "numOfHosts"]),
        ([(f"{GROUP} groupName", "TPU_Group")], "group-name", "error", ["groupName"]),
        ([(f"{GROUP} groupName", "t" * 60)], "group-name", "error", ["groupName", "64", "63"]),
        ([(f"{BOX} ports 0 name", "a-name-of-18-chars")], "wrong-value", "error", ["ports[0].name", "15"]),
        (
            [(f"{BOX} volumeMounts", [{"name": "data", "mountPath": "/d"}])],
            "volume",
            "error",
            ["volumeMounts[0].name", "data"],
        ),
        (
            [
                (f"{GROUP} template spec volumes", [{"name": "models", "emptyDir": {}}]),
                (f"{BOX} volumeMounts", [{"name": "model", "mountPath": "/d"}]),
            ],
            "volume",
            "error",
            ["volumeMounts[0].name", "models"],
        ),
        (
            [(f"{GROUP} replicas", REMOVED), (f"{GROUP} minReplicas", 0)],
            "replicas",
            "warning",
            ["workerGroupSpecs[0].replicas", "minReplicas"],
        ),
        ([*SCALING, (f"{GROUP} maxReplicas", REMOVED)], "replicas", "warning", ["maxReplicas", "2147483647"]),
        ([(f"{GROUP} resources", {"TPU": "8"})], "ray-resources", "warning", ["resources.TPU", "8", "4"]),
        (
            [(f"{GROUP} rayStartParams resources", '"{\\"TPU\\": 1}"')],
            "ray-resources",
            "warning",
            ["rayStartParams.resources", "1", "4"],
        ),
        ([("spec rayVersion", "2.59.0")], "ray-version", "warning", ["containers[0].image", "2.60.0", "rayVersion"]),
        ([("spec rayVersion", "latest")], "ray-version", "error", ["rayVersion"]),
        (
            [(f"{BOX} image", "rayproject/ray:2.60.0-py312")],
            "ray-version",
            "error",
            ["containers[0].image", "3.12", "3.11"],
        ),
        ([(f"{BOX} image", "rayproject/ray:latest")], "image-tag", "warning", ["containers[0].image"]),
        ([(f"{BOX} image", "ghcr.io/me/ray")], "image-tag", "warning", ["containers[0].image"]),
        ([("spec authOptions", {})], "auth", "warning", ["authOptions", "token"]),
        (
            [*SCALING, (f"{GROUP} minReplicas", 0)],
            "autoscaler-multi-host",
            "warning",
            ["minReplicas", "ray#39781", "ray#38595"],
        ),
        (
            [*SCALING, ("spec autoscalerOptions version", "v1")],
            "autoscaler-multi-host",
            "warning",
            ["autoscalerOptions.version", "replicaIndex", "v2"],
        ),
    ],
)
def test_a_spoilt_cluster(changes: list[Change], rule: str, severity: str, expected: list[str]) -> None:
    expect(changed(good.cluster(), *changes), rule, severity, *expected)


def test_two_groups_of_one_name() -> None:
    objects = good.cluster()
    objects[0]["spec"]["workerGroupSpecs"] *= 2
    finding = expect(objects, "group-name", "error", "groupName", "tpu", "TPU_NAME")
    assert finding.where == "RayCluster/research spec.workerGroupSpecs[1].groupName"


def test_two_objects_of_one_name() -> None:
    objects = good.cluster() * 2
    assert check(objects) == [], "the same object twice is applied twice, which changes nothing"
    objects[1] = objects[1] | {"spec": objects[1]["spec"] | {"suspend": True}}
    expect(objects, "duplicate-object", "error", "metadata.name", "RayCluster")
    other = changed(good.cluster(), ("metadata namespace", "elsewhere"))
    assert good.grave(good.cluster() + other) == []


def test_another_ray_in_the_head() -> None:
    objects = changed(good.cluster(), ("spec rayVersion", REMOVED), (f"{HEAD_BOX} image", "rayproject/ray:2.53.0"))
    expect(objects, "ray-version", "error", "containers[0].image", "2.60.0", "2.53.0")


def test_nodes_of_a_queue_are_tolerated() -> None:
    queued = ("metadata labels", {"kueue.x-k8s.io/queue-name": "tpus"})
    assert [finding.rule for finding in good.check(changed(good.cluster(), queued))] == ["kueue-toleration"]
