"""The operator ends, starts again, and is upgraded, while a service is there."""

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.catalog_manifests import MANIFESTS, Object, expected_pods, items, objects_of, placed, settled_pods
from tests.kubernetes.clusters import Cluster

MANIFEST, ONE_HOST = (path for name in ("spmd_175b", "gemma_7b_it_v5e") for path in MANIFESTS if path.stem == name)
QUIET_S = 15  # the operator looks at a service that is not Ready every two seconds


@pytest.fixture
def older(control_plane: Cluster, tmp_path: Path) -> Iterator[Cluster]:
    """A control plane of the test's own, with KubeRay 1.5.1."""
    if control_plane.plane is None:
        pytest.skip("needs the harness: the operator is replaced")
    from tests.kubernetes.harness.plane import ControlPlane

    with ControlPlane(tmp_path / "older", operator="1.5.1") as plane:
        yield plane.cluster


def uids(objects: list[Object]) -> set[str]:
    return {item["metadata"]["uid"] for item in objects}


def ray_cluster(cluster: Cluster, namespace: str) -> Object:
    (found,) = items(cluster, namespace, "rayclusters")
    return found


def test_a_restarted_operator_goes_on(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    if control_plane.plane is None:
        pytest.skip("needs the harness: the operator is ended")
    plane, file = control_plane.plane, placed(MANIFEST, namespace, tmp_path)
    control_plane.kubectl("apply", "--server-side", "-f", str(file))
    before = settled_pods(control_plane, namespace, count := expected_pods(objects_of(file)))
    cluster = ray_cluster(control_plane, namespace)["metadata"]["uid"]
    plane.stop_operator()
    lost = next(pod for pod in before if pod["metadata"]["labels"]["ray.io/node-type"] == "worker")
    group = lost["metadata"]["labels"]["ray.io/group"]
    others = [pod for pod in before if pod["metadata"]["labels"]["ray.io/group"] != group]
    control_plane.kubectl("-n", namespace, "delete", "pod", lost["metadata"]["name"])
    plane.start_operator(plane.operator)
    after = settled_pods(control_plane, namespace, count)
    assert len(after) == count
    assert uids(others) < uids(after) and lost["metadata"]["uid"] not in uids(after)
    assert ray_cluster(control_plane, namespace)["metadata"]["uid"] == cluster


@pytest.mark.timeout(900)  # another control plane starts, beside the tests' own
def test_an_upgraded_operator_keeps_what_is_there(older: Cluster, tmp_path: Path) -> None:
    """1.5.1 to the newest here, with slices of one host and of several."""
    from tests.kubernetes.harness import building

    assert older.plane is not None
    older.kubectl("create", "namespace", "several")
    one, several = placed(ONE_HOST, "default", tmp_path), placed(MANIFEST, "several", tmp_path)
    before = {}
    for namespace, file in {"default": one, "several": several}.items():
        older.kubectl("apply", "--server-side", "-f", str(file))
        before[namespace] = settled_pods(older, namespace, expected_pods(objects_of(file)))
    cluster = ray_cluster(older, "default")
    older.plane.start_operator(building.operator())
    hosts = [pod for pod in before["several"] if "replicaIndex" in pod["metadata"]["labels"]]
    twice = settled_pods(older, "several", len(before["several"]) + len(hosts))
    time.sleep(QUIET_S)

    assert uids(items(older, "default", "pods")) == uids(before["default"])
    assert ray_cluster(older, "default")["metadata"]["uid"] == cluster["metadata"]["uid"]
    older.kubectl("apply", "--server-side", "-f", str(one))
    older.podslice("diff", str(one))

    # KubeRay 1.6 makes slices of several hosts again, and forgets the Pods that 1.5 made. Then status says it.
    assert uids(before["several"]) < uids(twice) and len(hosts) == 16
    said = older.podslice("status", str(several), check=False).stdout
    assert "16 Pods of group tpu-v5e-4x8 are from an older operator" in " ".join(said.split())
    (selector,) = re.findall(r"kubectl delete pods -l '([^']+)'", " ".join(said.split()))
    older.kubectl("-n", "several", "delete", "pods", "-l", selector)
    assert uids(items(older, "several", "pods")) == uids(twice) - uids(hosts)
    assert "older operator" not in older.podslice("status", str(several), check=False).stdout
