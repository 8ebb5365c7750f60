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
    ("changes", "rule", "severity", "words"),
    [
        ([("metadata name", "r" * 42)], "name-multi-host", "error", ["-headless", "shorten it to 41"]),
        ([("apiVersion", "ray.io/v1alpha1")], "object", "warning", ["older than numOfHosts", "drops"]),
        ([(f"{GROUP} groupName", "TPU_Group")], "group-name", "error", ["hostnames", "lower-case"]),
        ([(f"{GROUP} groupName", "t" * 60)], "group-name", "error", ["64 characters", "more than 63"]),
        ([(f"{BOX} ports 0 name", "a-name-of-18-chars")], "wrong-value", "error", ["not a port name", "at most 15"]),
        ([(f"{BOX} volumeMounts", [{"name": "data", "mountPath": "/d"}])], "volume", "error", ["no volume data"]),
        (
            [
                (f"{GROUP} template spec volumes", [{"name": "models", "emptyDir": {}}]),
                (f"{BOX} volumeMounts", [{"name": "model", "mountPath": "/d"}]),
            ],
            "volume",
            "error",
            ["mount models"],
        ),
        (
            [(f"{GROUP} replicas", REMOVED), (f"{GROUP} minReplicas", 0)],
            "replicas",
            "warning",
            ["neither replicas nor minReplicas", "empty"],
        ),
        ([*SCALING, (f"{GROUP} maxReplicas", REMOVED)], "replicas", "warning", ["2147483647"]),
        ([(f"{GROUP} resources", {"TPU": "8"})], "ray-resources", "warning", ["8 TPUs", "has 4"]),
        (
            [(f"{GROUP} rayStartParams resources", '"{\\"TPU\\": 1}"')],
            "ray-resources",
            "warning",
            ["1 TPUs", "has 4"],
        ),
        ([("spec rayVersion", "2.59.0")], "ray-version", "warning", ["runs Ray 2.60.0", "rayVersion: 2.60.0"]),
        ([("spec rayVersion", "latest")], "ray-version", "error", ["not a version"]),
        ([(f"{BOX} image", "rayproject/ray:2.60.0-py312")], "ray-version", "error", ["Python 3.12", "3.11"]),
        ([(f"{BOX} image", "rayproject/ray:latest")], "image-tag", "warning", ["latest moves", "digest"]),
        ([(f"{BOX} image", "ghcr.io/me/ray")], "image-tag", "warning", ["latest"]),
        ([("spec authOptions", {})], "auth", "warning", ["does not turn authentication on", "mode: token"]),
        ([*SCALING, (f"{GROUP} minReplicas", 0)], "autoscaler-multi-host", "warning", ["ray#39781", "ray#38595"]),
        (
            [*SCALING, ("spec autoscalerOptions version", "v1")],
            "autoscaler-multi-host",
            "warning",
            ["replicaIndex", "v2"],
        ),
    ],
)
def test_a_spoilt_cluster(changes: list[Change], rule: str, severity: str, words: list[str]) -> None:
    expect(changed(good.cluster(), *changes), rule, severity, *words)


def test_two_groups_of_one_name() -> None:
    objects = good.cluster()
    objects[0]["spec"]["workerGroupSpecs"] *= 2
    finding = expect(objects, "group-name", "error", "two worker groups are named tpu", "TPU_NAME")
    assert finding.where == "RayCluster/research spec.workerGroupSpecs[1].groupName"


def test_two_objects_of_one_name() -> None:
    objects = good.cluster() * 2
    assert check(objects) == [], "the same object twice is applied twice, which changes nothing"
    objects[1] = objects[1] | {"spec": objects[1]["spec"] | {"suspend": True}}
    expect(objects, "duplicate-object", "error", "another RayCluster of this name")
    other = changed(good.cluster(), ("metadata namespace", "elsewhere"))
    assert good.grave(good.cluster() + other) == []


def test_another_ray_in_the_head() -> None:
    objects = changed(good.cluster(), ("spec rayVersion", REMOVED), (f"{HEAD_BOX} image", "rayproject/ray:2.53.0"))
    expect(objects, "ray-version", "error", "runs Ray 2.60.0", "head runs 2.53.0")


def test_nodes_of_a_queue_are_tolerated() -> None:
    queued = ("metadata labels", {"kueue.x-k8s.io/queue-name": "tpus"})
    assert [finding.rule for finding in good.check(changed(good.cluster(), queued))] == ["kueue-toleration"]
