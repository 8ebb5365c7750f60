"""What of a change comes about: said before it happens, done where the operator leaves it to others, or refused."""

from copy import deepcopy

import pytest

from ray_configs.exposure import LoadBalancer
from tests.kubernetes.cluster.served import (
    NAME,
    RunCommand,
    as_active,
    container,
    groups,
    live,
    patch,
    ray_cluster,
    ray_service,
    rendered,
    there,
    until,
)
from tests.kubernetes.clusters import Cluster

GROUP = "tpu-v5e-2x4-8t"


def numbers(cluster: Cluster, namespace: str) -> list[int]:
    spec = ray_cluster(cluster, namespace)["spec"]
    (group,) = [group for group in spec["workerGroupSpecs"] if group["groupName"] == GROUP]
    return [group[field] for field in ("replicas", "minReplicas", "maxReplicas")]


@pytest.mark.parametrize("strategy", ["None", "NewCluster"])
@pytest.mark.parametrize("replicas", [4, 1])
def test_another_number_of_slices(
    control_plane: Cluster, namespace: str, run: RunCommand, strategy: str, replicas: int
) -> None:
    """The operator never passes it on, under any strategy: we do."""
    before, after = rendered(replicas=2), rendered(replicas=replicas)
    for objects in (before, after):
        ray_service(objects)["spec"]["upgradeStrategy"] = {"type": strategy}
    run("apply", before)
    name = ray_cluster(control_plane, namespace)["metadata"]["name"]
    says = f"RayCluster {name}: group {GROUP}: replicas 2 -> {replicas}, minReplicas 2 -> {replicas}, maxReplicas 2 ->"
    status, out, _ = run("diff", after)
    assert status == 1 and says in out
    status, out, _ = run("apply", after)
    lines = out.splitlines()
    assert status == 0 and lines[0].startswith(says)
    assert lines[1] == f"RayService {NAME}: configured" and lines[-1] == f"RayCluster {name}: patched"
    assert numbers(control_plane, namespace) == [replicas] * 3
    assert [item["metadata"]["name"] for item in [ray_cluster(control_plane, namespace)]] == [name]
    assert run("diff", after) == (0, "", "no difference\n")


def test_a_second_slice_brings_routers_and_a_last_one_leaves_them(
    control_plane: Cluster, namespace: str, run: RunCommand
) -> None:
    """One slice needs none by default. The operator only ever adds groups: `reconcileRayCluster` of its RayService."""
    one, two = rendered(replicas=1, routers=None), rendered(replicas=2, routers=None)
    assert [group["groupName"] for group in groups(two)] == [GROUP, "routers"]
    run("apply", one)
    name = ray_cluster(control_plane, namespace)["metadata"]["name"]
    status, out, _ = run("apply", two)
    assert status == 0 and f"the operator adds group routers to {name}" in out and "not rolled out" not in out
    until("the new group", lambda: len(ray_cluster(control_plane, namespace)["spec"]["workerGroupSpecs"]) == 2)
    assert numbers(control_plane, namespace) == [2] * 3
    assert run("diff", two) == (0, "", "no difference\n")
    status, out, _ = run("apply", one)
    assert status == 0 and f"RayService {NAME}: not rolled out: group routers: there -> not there" in out
    made = ray_cluster(control_plane, namespace)
    assert made["metadata"]["name"] == name and numbers(control_plane, namespace) == [1] * 3
    assert len(made["spec"]["workerGroupSpecs"]) == 2


def test_the_autoscalers_number_is_its_own(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    objects = rendered(replicas=1)
    config = ray_service(objects)["spec"]["rayClusterConfig"]
    config["enableInTreeAutoscaling"] = True
    groups(objects)[0]["maxReplicas"] = 3
    run("apply", objects, "--force")
    name = ray_cluster(control_plane, namespace)["metadata"]["name"]
    scaled = [{"op": "replace", "path": "/spec/workerGroupSpecs/0/replicas", "value": 2}]
    patch(control_plane, namespace, "raycluster", name, scaled)
    assert run("diff", objects) == (0, "", "no difference\n")
    groups(objects)[0]["maxReplicas"] = 4
    assert run("apply", objects, "--force")[0] == 0
    assert numbers(control_plane, namespace) == [2, 1, 4]


def test_an_image_is_not_rolled_out_and_everybody_says_so(
    control_plane: Cluster, namespace: str, run: RunCommand
) -> None:
    objects = rendered()
    run("apply", objects)
    cluster = ray_cluster(control_plane, namespace)
    old = container(objects)["image"]
    container(objects)["image"] = "podslice:2"
    says = f"not rolled out: group {GROUP} containers[ray-worker].image: {old} -> podslice:2"
    status, _, err = run("diff", objects)
    assert status == 1 and f"RayService {NAME}: {says}" in err
    status, out, _ = run("apply", objects)
    assert status == 0 and out.splitlines()[:2] == [f"RayService {NAME}: {says}", f"RayService {NAME}: configured"]
    status, out, _ = run("status", objects)
    assert says in out
    assert ray_cluster(control_plane, namespace)["metadata"]["generation"] == cluster["metadata"]["generation"]
    assert run("apply", objects)[0] == 0  # the second time it is still said, and nothing changed
    status, _, err = run("diff", objects)
    assert status == 0 and says in err


def test_the_operator_adds_a_group_at_the_end(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    objects = rendered()
    run("apply", objects)
    name = ray_cluster(control_plane, namespace)["metadata"]["name"]
    groups(objects).append(deepcopy(groups(objects)[0]) | {"groupName": "more"})
    status, out, _ = run("apply", objects, "--force")
    assert status == 0 and f"the operator adds group more to {name}" in out and "not rolled out" not in out
    until("the new group", lambda: len(ray_cluster(control_plane, namespace)["spec"]["workerGroupSpecs"]) == 2)


def test_another_slice_would_stop_the_service(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    """Serve stops the old replicas first; the new ones would wait for a slice that no Ray cluster of it gets."""
    before, after = rendered("v5e:2x4:8t"), rendered("v5e:2x2")
    run("apply", before)
    name = ray_cluster(control_plane, namespace)["metadata"]["name"]
    config = live(control_plane, namespace, "rayservice")["spec"]["serveConfigV2"]
    status, _, err = run("apply", after)
    assert status == 1
    assert f"application llm needs slices v5e:2x2, and the running Ray cluster has {GROUP}" in err
    assert "--recreate" in err and "Nothing was changed" in err
    assert live(control_plane, namespace, "rayservice")["spec"]["serveConfigV2"] == config
    assert run("diff", after)[0] == 1
    assert run("apply", after, "--dry-run=server")[0] == 1
    status, out, _ = run("apply", after, "--recreate")
    assert status == 0
    lines = [line for line in out.splitlines() if line.startswith("RayService")]
    assert (lines[0], lines[-1]) == (f"RayService {NAME}: deleting", f"RayService {NAME}: created")
    made = ray_cluster(control_plane, namespace)
    assert made["metadata"]["name"] != name
    assert [group["groupName"] for group in made["spec"]["workerGroupSpecs"]] == ["tpu-v5e-2x2"]


def test_a_new_cluster_is_left_to_the_operator(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    before, after = rendered("v5e:2x4:8t"), rendered("v5e:2x2")
    for objects in (before, after):
        ray_service(objects)["spec"]["upgradeStrategy"] = {"type": "NewCluster"}
    run("apply", before)
    name = as_active(control_plane, namespace)
    status, out, _ = run("apply", after)
    assert status == 0 and f"the operator starts a new Ray cluster beside {name}" in out
    assert "not rolled out" not in out
    until("a second Ray cluster", lambda: len(there(control_plane, namespace, "rayclusters")) == 2)


def test_another_exposure(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    """NAME-serve-svc is the operator's, who makes it once and then lets it be."""
    objects = rendered()
    run("apply", objects)
    cluster = ray_cluster(control_plane, namespace)["metadata"]["name"]
    owner = live(control_plane, namespace, "rayservice")
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": f"{NAME}-serve-svc",
            "labels": {"ray.io/originated-from-cr-name": NAME, "ray.io/serve": f"{NAME}-serve"},
            "ownerReferences": [
                {
                    "apiVersion": "ray.io/v1",
                    "kind": "RayService",
                    "name": NAME,
                    "uid": owner["metadata"]["uid"],
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
        },
        "spec": {
            "type": "ClusterIP",
            "ports": [{"name": "serve", "port": 8000}],
            "selector": {"ray.io/cluster": cluster, "ray.io/serve": "true"},
        },
    }
    control_plane.kubectl("-n", namespace, "create", "-f", "-", input=str(service).replace("True", "true"))
    assert run("diff", objects) == (0, "", "no difference\n")
    for exposure, kind, port, internal in (
        (LoadBalancer(port=8888), "LoadBalancer", 8888, "Internal"),
        (LoadBalancer(port=8888, internal=False), "LoadBalancer", 8888, None),
        (LoadBalancer(port=80, internal=False), "LoadBalancer", 80, None),
        (None, "ClusterIP", 8000, None),
    ):
        changed = rendered(exposure=exposure) if exposure else objects
        status, out, _ = run("diff", changed)
        assert status == 1 and f"Service {NAME}-serve-svc: recreated (" in out
        status, out, _ = run("apply", changed, "--force")
        assert status == 0 and out.splitlines()[-1] == f"Service {NAME}-serve-svc: recreated"
        made = live(control_plane, namespace, "service", f"{NAME}-serve-svc")
        assert made["spec"]["type"] == kind
        assert [(item["port"], item["targetPort"]) for item in made["spec"]["ports"]] == [(port, 8000)]
        notes = made["metadata"].get("annotations") or {}
        assert notes.get("networking.gke.io/load-balancer-type") == internal
        assert made["spec"]["selector"] == service["spec"]["selector"]
        assert made["metadata"]["ownerReferences"] == service["metadata"]["ownerReferences"]
        assert run("diff", changed) == (0, "", "no difference\n")


def test_an_upgraded_operator_leaves_old_pods(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    """Another version of it copies the present spec into the running Ray cluster, and leaves its Pods as they are."""
    objects = rendered()
    run("apply", objects)
    name = as_active(control_plane, namespace)
    selector = f"--selector=ray.io/cluster={name}"
    until("its Pods", lambda: len(control_plane.kubectl("-n", namespace, "get", "pods", selector, "-o", "name").stdout))
    container(objects)["image"] = "podslice:2"
    run("apply", objects)
    version = {"metadata": {"annotations": {"ray.io/kuberay-version": "v1.0.0"}}}
    patch(control_plane, namespace, "raycluster", name, version)

    def copied() -> bool:
        spec = live(control_plane, namespace, "raycluster", name)["spec"]["workerGroupSpecs"][0]
        return spec["template"]["spec"]["containers"][0]["image"] == "podslice:2"

    until("the spec in the Ray cluster", copied)
    status, out, _ = run("status", objects)
    assert status == 1 and "not rolled out" not in out
    assert "its Pods are older than its spec (2 of group tpu-v5e-2x4-8t: us-docker.pkg.dev/p/podslice/llm" in out
    assert "its spec says podslice:2)" in out
