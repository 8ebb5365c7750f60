"""A service with every option that a config has: accepted twice, and its budgets as Kubernetes counts them."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client, config

from kuberay.render import render, to_yaml
from ray_configs.cloud import Bucket, GoogleCloud, SecretKey
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, GcsFaultTolerance, Service
from ray_configs.upgrade import Incremental, NewCluster
from tests.kubernetes.catalog_manifests import Object, expected_pods, items, objects_of, settled_pods
from tests.kubernetes.clusters import Cluster

SLICES, HOSTS = 3, 2
WAIT_S = 60


def write(folder: Path, namespace: str, **options: Any) -> Path:
    """The manifest of a service with a few slices of two hosts and an elastic CPU application."""
    slices = LLMConfig(slice="v5e:2x4:4t", min_replicas=SLICES, max_replicas=SLICES)
    apps = Application(config=slices), Application(config=LLMConfig(max_replicas=2), name="cpu", route_prefix="/cpu")
    cloud = GoogleCloud(project="some-project")
    service = Service(name="all", namespace=namespace, applications=apps, cloud=cloud, **options)
    file = folder / "all.yaml"
    file.write_text(to_yaml(render(service)))
    return file


UPGRADES = [NewCluster(), Incremental(gateway_class="istio", step_percent=10)]


@pytest.mark.parametrize("upgrade", UPGRADES, ids=lambda upgrade: upgrade.kind)
def test_every_option_is_accepted_again_and_again(
    control_plane: Cluster, namespace: str, tmp_path: Path, upgrade: NewCluster | Incremental
) -> None:
    control_plane.kubectl("create", "priorityclass", f"high-{namespace}", "--value=1000")
    try:
        file = write(
            tmp_path,
            namespace,
            bucket=Bucket(name="some-bucket", read_only=False),
            api_keys=SecretKey(secret="keys", key="all"),
            env={"EMPTY": "", "FULL": "1"},
            upgrade=upgrade,
            gcs_fault_tolerance=GcsFaultTolerance(
                redis_address="redis:6379", redis_password=SecretKey(secret="redis", key="password")
            ),
            disruption_budget=1,
            priority_class=f"high-{namespace}",
            lock_memory=True,
        )
        control_plane.podslice("apply", str(file))
        pods = settled_pods(control_plane, namespace, expected_pods(objects_of(file)))
        assert all(pod["spec"]["priorityClassName"] == f"high-{namespace}" for pod in pods)
        before = generations(control_plane, namespace)
        for _ in range(2):
            control_plane.podslice("apply", str(file))
            control_plane.kubectl("apply", "-f", str(file))
        assert generations(control_plane, namespace) == before
        control_plane.podslice("diff", str(file))
    finally:
        control_plane.kubectl("delete", "priorityclass", f"high-{namespace}")


def generations(cluster: Cluster, namespace: str) -> dict[str, int]:
    kinds = ("rayservices", "rayclusters", "poddisruptionbudgets")
    found = (item for kind in kinds for item in items(cluster, namespace, kind))
    return {f"{item['kind']}/{item['metadata']['name']}": item["metadata"]["generation"] for item in found}


def test_a_budget_lets_drains_take_one_slice_at_a_time(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    if control_plane.plane is None:
        pytest.skip("says in a kubelet's place which Pods are Ready")
    file = write(tmp_path, namespace, disruption_budget=1)
    control_plane.podslice("apply", str(file))
    pods = settled_pods(control_plane, namespace, expected_pods(objects_of(file)))
    groups = {group: [pod for pod in pods if pod["metadata"]["labels"]["ray.io/group"] == group] for group in GROUPS}
    assert [len(groups[group]) for group in GROUPS] == [1, SLICES * HOSTS, SLICES]
    head, hosts, processes = (groups[group] for group in GROUPS)
    for pod in hosts:
        report(control_plane, pod, ready=False)  # for good: it has no Serve proxy
    for pod in (*head, *processes):
        report(control_plane, pod, ready=True)
    until(lambda: healthy(control_plane, namespace) == SLICES)
    assert not evictable(control_plane, head[0]), "its loss would end every replica"
    assert evictable(control_plane, hosts[0]), "all slices serve: one may go"
    report(control_plane, processes[0], ready=False)
    until(lambda: healthy(control_plane, namespace) == SLICES - 1)
    assert not evictable(control_plane, hosts[-1]), "one has gone: the next one waits"
    assert not evictable(control_plane, processes[1])
    report(control_plane, processes[0], ready=True)
    until(lambda: evictable(control_plane, hosts[-1]))


GROUPS = ("headgroup", "tpu-v5e-2x4-4t", "cpu-v5e-2x4-4t")


def report(cluster: Cluster, pod: Object, ready: bool) -> None:
    """Say that the Pod runs, as a kubelet would."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    patch = json.dumps({"status": {"phase": "Running", "conditions": conditions}})
    where = ("-n", pod["metadata"]["namespace"], "pod", pod["metadata"]["name"])
    cluster.kubectl("patch", *where, "--subresource=status", "--type=merge", f"--patch={patch}")


def healthy(cluster: Cluster, namespace: str) -> int:
    (budget,) = [item for item in items(cluster, namespace, "pdb") if item["metadata"]["name"] == "all-tpu-v5e-2x4-4t"]
    status = budget.get("status", {})
    current = status.get("observedGeneration") == budget["metadata"]["generation"]
    return status["currentHealthy"] if current else -1


def evictable(cluster: Cluster, pod: Object) -> bool:
    """Whether a drain would take the Pod now."""
    api = client.CoreV1Api(config.new_client_from_config(str(cluster.kubeconfig)))
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    body = client.V1Eviction(metadata=client.V1ObjectMeta(name=name, namespace=namespace))
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            api.create_namespaced_pod_eviction(name, namespace, body, dry_run="All")
        except client.ApiException as error:
            # The same status says that the Pod was written meanwhile, as by the scheduler: only a count is an answer.
            assert error.status == 429 and time.monotonic() < deadline, error
            causes = json.loads(error.body)["details"].get("causes", [])
            if any(" healthy pods and has " in cause["message"] for cause in causes):
                return False
            time.sleep(0.5)
        else:
            return True


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"not within {WAIT_S} s"
        time.sleep(0.5)
