"""Delete: with all that the operator made of it, and nothing that podslice did not apply."""

from pathlib import Path

import pytest

from kuberay import cluster as client
from tests.kubernetes.cluster.served import (
    NAME,
    RunCommand,
    live,
    patch,
    ray_cluster,
    ray_service,
    rendered,
    there,
    until,
)
from tests.kubernetes.clusters import Cluster

RAY = "rayservices,rayclusters,pods,services,secrets,jobs,endpointslices"
KINDS = f"{RAY},serviceaccounts,roles,rolebindings,podmonitorings"


def test_nothing_is_left(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    before = set(there(control_plane, namespace, KINDS))
    objects = rendered()
    ray_service(objects)["spec"]["rayClusterConfig"]["enableInTreeAutoscaling"] = True
    run("apply", objects, "--force")
    ray_cluster(control_plane, namespace)
    made = until("the operator's Pods", lambda: there(control_plane, namespace, "pods"))
    assert made and there(control_plane, namespace, "secrets") and there(control_plane, namespace, "roles")
    status, out, _ = run("delete", objects)
    assert status == 0 and f"RayService {NAME}: gone" in out
    assert set(there(control_plane, namespace, KINDS)) == before
    status, out, _ = run("delete", objects)
    assert status == 0 and out.count("already gone") == len(objects)
    assert run("status", objects)[0] == 1


def test_what_others_applied_stays(control_plane: Cluster, namespace: str, run: RunCommand, tmp_path: Path) -> None:
    text = '{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}, "data": {"a": "b"}}'
    control_plane.kubectl("-n", namespace, "create", "--field-manager=helm", "-f", "-", input=text)
    theirs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "theirs"}}
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "ours"}}
    run("apply", [account])
    status, _, err = run("delete", [account, theirs])
    assert status == 2 and "ConfigMap theirs is managed by" in err and "Nothing was deleted" in err
    assert "serviceaccount/ours" in there(control_plane, namespace, "serviceaccounts")
    assert run("delete", [account, theirs], "--force")[0] == 0


def test_a_finalizer_that_stays_is_named(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "held"}}
    run("apply", [account])
    held = {"metadata": {"finalizers": ["example.com/held"]}}
    patch(control_plane, namespace, "serviceaccount", "held", held)
    status, _, err = run("delete", [account], "--timeout", "1")
    assert status == 2 and "Not gone after 1 s: ServiceAccount held waits for example.com/held" in err
    status, _, err = run("apply", [account])
    assert status == 2 and "ServiceAccount held: it is being deleted" in err
    connected = client.Cluster.connect(None, namespace, str(control_plane.kubeconfig))

    def interrupt(line: str) -> None:
        if "waits" in line:
            raise KeyboardInterrupt

    with pytest.raises(client.Interrupted, match=r"in the cluster: ServiceAccount held.*Deleting again is safe"):
        client.delete(connected, [account], progress=interrupt)
    patch(control_plane, namespace, "serviceaccount", "held", {"metadata": {"finalizers": None}})
    until("it is gone", lambda: connected.get(account) is None)


def test_one_of_the_same_name_made_since_is_not_ours(control_plane: Cluster, namespace: str) -> None:
    connected = client.Cluster.connect(None, namespace, str(control_plane.kubeconfig))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a"}}
    client.apply(connected, [account])
    before = connected.get(account)
    control_plane.kubectl("-n", namespace, "delete", "serviceaccount", "a")
    control_plane.kubectl("-n", namespace, "create", "serviceaccount", "a")
    with pytest.raises(client.ClusterError, match="changed at the same time"):
        connected.delete(before)
    assert live(control_plane, namespace, "serviceaccount", "a")["metadata"]["uid"] != before["metadata"]["uid"]
