"""The catalog's manifests, each made ready for a namespace of a test's own, and what becomes of them."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.kubernetes.clusters import Cluster

Object = dict[str, Any]
MANIFESTS = sorted((Path(__file__).parents[2] / "kuberay" / "manifests").glob("*.yaml"))
every_manifest = pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda path: path.stem)
PLACEHOLDERS = {"PROJECT_ID": "some-project", "BUCKET_NAME": "some-bucket"}
PODS_S = 60


def placed(manifest: Path, namespace: str, folder: Path) -> Path:
    """The same manifest for another namespace, with its placeholders filled in."""
    text = manifest.read_text()
    for placeholder, value in PLACEHOLDERS.items():
        text = text.replace(placeholder, value)
    copy = folder / manifest.name
    copy.write_text(text.replace("namespace: default\n", f"namespace: {namespace}\n"))
    return copy


def objects_of(manifest: Path) -> list[Object]:
    return [item for item in YAML(typ="safe").load_all(manifest.read_text()) if item]


def items(cluster: Cluster, namespace: str, kind: str, *options: str) -> list[Object]:
    """The namespace's objects of a kind."""
    return json.loads(cluster.kubectl("-n", namespace, "get", kind, "-o", "json", *options).stdout)["items"]


def expected_pods(objects: list[Object]) -> int:
    """Pods that the objects say they want: of a RayService a head and the hosts of each group, of a Job its width."""
    count = 0
    for item in objects:
        if item["kind"] == "RayService":
            groups = item["spec"]["rayClusterConfig"]["workerGroupSpecs"]
            count += 1 + sum(group["replicas"] * group.get("numOfHosts", 1) for group in groups)
        elif item["kind"] == "Job":
            count += item["spec"].get("parallelism", 1)
    return count


def settled_pods(cluster: Cluster, namespace: str, count: int) -> list[Object]:
    """The namespace's Pods, once there are so many and no more come."""
    deadline = time.monotonic() + PODS_S
    found: list[Object] = []
    while time.monotonic() < deadline:
        before, found = found, items(cluster, namespace, "pods")
        if len(found) == len(before) >= count:
            return found
        time.sleep(1)
    events = cluster.kubectl("-n", namespace, "get", "events").stdout
    raise AssertionError(f"{len(found)} of {count} Pods after {PODS_S} s:\n{events}")
