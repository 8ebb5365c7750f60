"""What the real API server, operator and webhook make of the manifests, before any Pod runs."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from clusters import Cluster
from ruamel.yaml import YAML

MANIFESTS = sorted((Path(__file__).parents[2] / "kuberay" / "manifests").glob("*.yaml"))
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
PODS_S = 60


def objects_of(manifest: Path) -> list[dict[str, Any]]:
    return [item for item in YAML(typ="safe").load_all(manifest.read_text()) if item]


def placed(manifest: Path, namespace: str, folder: Path) -> Path:
    """The same manifest, for another namespace."""
    copy = folder / manifest.name
    copy.write_text(manifest.read_text().replace("namespace: default\n", f"namespace: {namespace}\n"))
    return copy


def expected_pods(objects: list[dict[str, Any]]) -> int:
    """Pods that the objects say they want: of a RayService a head and the hosts of each group, of a Job its width."""
    count = 0
    for item in objects:
        if item["kind"] == "RayService":
            groups = item["spec"]["rayClusterConfig"]["workerGroupSpecs"]
            count += 1 + sum(group["replicas"] * group.get("numOfHosts", 1) for group in groups)
        elif item["kind"] == "Job":
            count += item["spec"].get("parallelism", 1)
    return count


def pods(cluster: Cluster, namespace: str, count: int) -> list[dict[str, Any]]:
    """The namespace's Pods, once there are so many and no more come."""
    deadline = time.monotonic() + PODS_S
    found: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        before, found = found, json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json").stdout)["items"]
        if len(found) == len(before) >= count:
            return found
        time.sleep(1)
    events = cluster.kubectl("-n", namespace, "get", "events").stdout
    raise AssertionError(f"{len(found)} of {count} Pods after {PODS_S} s:\n{events}")


@every_manifest
def test_the_operator_makes_every_pod_of_a_manifest(
    control_plane: Cluster, namespace: str, manifest: Path, tmp_path: Path
) -> None:
    control_plane.kubectl("apply", "--server-side", "-f", str(placed(manifest, namespace, tmp_path)))
    count = expected_pods(objects_of(manifest))
    assert len(pods(control_plane, namespace, count)) == count
    warnings = json.loads(
        control_plane.kubectl("-n", namespace, "get", "events", "--field-selector=type=Warning", "-o", "json").stdout
    )
    assert [item["message"] for item in warnings["items"] if item["reason"] != "FailedScheduling"] == []
