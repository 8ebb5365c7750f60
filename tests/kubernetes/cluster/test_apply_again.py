"""Applying what is applied: who else wrote into it, and whose the fields are."""

import threading
from pathlib import Path

from kuberay import cluster as client
from tests.kubernetes.cluster.served import (
    NAME,
    RunCommand,
    container,
    groups,
    live,
    patch,
    ray_cluster,
    ray_service,
    rendered,
)
from tests.kubernetes.clusters import Cluster


def unchanged(run: RunCommand, objects: list) -> None:
    status, out, err = run("apply", objects)
    assert status == 0, err
    assert out.splitlines() == [f"{item['kind']} {item['metadata']['name']}: unchanged" for item in objects]
    assert run("diff", objects) == (0, "", "no difference\n")


def test_a_service_twice(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    objects = rendered()
    status, out, _ = run("diff", objects)
    assert status == 1 and "+kind: RayService" in out
    status, out, _ = run("apply", objects, "--dry-run=server")
    assert status == 0 and f"RayService {NAME}: created (dry run)" in out
    status, out, _ = run("apply", objects)
    assert status == 0 and f"RayService {NAME}: created" in out.splitlines()
    ray_cluster(control_plane, namespace)  # the operator has written the object back by now
    before = live(control_plane, namespace, "rayservice")
    unchanged(run, objects)
    after = live(control_plane, namespace, "rayservice")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_a_manifest_of_others_twice(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    """Without `scaleStrategy`, the operator's write-back makes the list of groups its own."""
    objects = rendered()
    for group in groups(objects):
        del group["scaleStrategy"]
    container(objects)["resources"]["requests"]["cpu"] = container(objects)["resources"]["limits"]["cpu"] = "30000m"
    assert run("apply", objects, "--force")[0] == 0
    ray_cluster(control_plane, namespace)
    owners = [entry["manager"] for entry in live(control_plane, namespace, "rayservice")["metadata"]["managedFields"]]
    unchanged(run, objects)
    after = live(control_plane, namespace, "rayservice")["metadata"]["managedFields"]
    assert [entry["manager"] for entry in after] == owners
    container(objects)["image"] = "podslice:2"
    status, out, err = run("diff", objects)
    assert status == 1 and "+            image: podslice:2" in out and "not rolled out: group" in err
    status, out, _ = run("apply", objects)
    assert status == 0 and f"RayService {NAME}: configured" in out.splitlines()


def test_a_persons_change_is_named_and_not_taken_back(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    objects = rendered()
    run("apply", objects)
    ray_cluster(control_plane, namespace)
    change = [{"op": "replace", "path": "/spec/rayClusterConfig/workerGroupSpecs/0/maxReplicas", "value": 5}]
    patch(control_plane, namespace, "rayservice", NAME, change, "--field-manager=kubectl-edit")
    patch(
        control_plane,
        namespace,
        "rayservice",
        NAME,
        {"metadata": {"labels": {"app.kubernetes.io/instance": "theirs"}}},
        "--field-manager=kubectl-label",
    )
    status, out, err = run("apply", objects)
    assert (status, out) == (2, "")
    assert "kubectl-edit owns spec.rayClusterConfig.workerGroupSpecs" in err
    assert "kubectl-label owns metadata.labels.app.kubernetes.io/instance" in err
    assert "--force-conflicts" in err and "Nothing was changed" in err
    assert run("diff", objects)[0] == 2
    spec = live(control_plane, namespace, "rayservice")["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert spec[0]["maxReplicas"] == 5
    assert run("apply", objects, "--recreate")[0] == 2
    status, out, _ = run("apply", objects, "--force-conflicts")
    assert status == 0 and f"RayService {NAME}: configured" in out.splitlines()
    unchanged(run, objects)


def test_what_kueue_wrote_stays(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    """Admission suspends, and later resumes with node selectors and tolerations, in the object itself."""
    objects = [ray_service(rendered("v5e:2x4:8t"))]
    objects[0]["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "tpus"
    run("apply", objects)
    template = "/spec/rayClusterConfig/workerGroupSpecs/0/template"
    toleration = {"key": "cloud.google.com/gke-queued", "operator": "Exists", "effect": "NoSchedule"}
    change = [
        {"op": "add", "path": "/spec/rayClusterConfig/suspend", "value": False},
        {"op": "add", "path": f"{template}/spec/tolerations/-", "value": toleration},
        {"op": "add", "path": f"{template}/spec/nodeSelector/autoscaling.gke.io~1provisioning-request", "value": "r"},
        {"op": "add", "path": f"{template}/metadata/labels/kueue.x-k8s.io~1podset", "value": "workers"},
    ]
    patch(control_plane, namespace, "rayservice", NAME, change, "--field-manager=kueue")
    unchanged(run, objects)
    groups(objects)[0]["maxReplicas"] = 4
    assert run("apply", objects, "--force")[0] == 0
    spec = live(control_plane, namespace, "rayservice")["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    assert spec["maxReplicas"] == 4
    assert toleration in spec["template"]["spec"]["tolerations"]
    assert spec["template"]["spec"]["nodeSelector"]["autoscaling.gke.io/provisioning-request"] == "r"
    unchanged(run, objects)


def test_a_queued_job_goes_on(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "prepare"}, "spec": {"template": template}}
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "tpus"}
    job["spec"]["suspend"] = True
    assert run("apply", [job], "--force")[0] == 0
    patch(control_plane, namespace, "job", "prepare", {"spec": {"suspend": False}}, "--field-manager=kueue")
    unchanged(run, [job])
    assert live(control_plane, namespace, "job", "prepare")["spec"]["suspend"] is False


def test_two_at_once(control_plane: Cluster, namespace: str, tmp_path: Path) -> None:
    objects = rendered()
    failures: list[Exception] = []

    def apply() -> None:
        try:
            client.apply(client.Cluster.connect(None, namespace, str(control_plane.kubeconfig)), objects)
        except client.ClusterError as error:
            failures.append(error)

    threads = [threading.Thread(target=apply) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert live(control_plane, namespace, "rayservice")["spec"]["serveConfigV2"]
