"""What the API server refuses, and clusters that cannot be reached: one clear error, and nothing half done."""

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kuberay import cluster as client
from tests.kubernetes.cluster.served import (
    NAME,
    Manifest,
    RunCommand,
    groups,
    live,
    ray_cluster,
    ray_service,
    rendered,
    there,
)
from tests.kubernetes.clusters import Cluster

JOB: Manifest = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "prepare"},
    "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b:1"}]}}},
}


def edited(control_plane: Cluster, path: Path, **entries: Any) -> Path:
    """The kubeconfig with another server, authority or token."""
    config = yaml.safe_load(control_plane.kubeconfig.read_text())
    for entry in (config["clusters"][0]["cluster"], config["users"][0]["user"]):
        entry.update({key: value for key, value in entries.items() if key in entry})
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ({"server": "https://127.0.0.1:9"}, "cannot reach the cluster at https://127.0.0.1:9: "),
        ({"token": "old"}, "the cluster does not accept the credentials (401)"),
        ({"certificate-authority": "/etc/ssl/certs/ca-certificates.crt"}, "CERTIFICATE_VERIFY_FAILED"),
    ],
)
def test_no_way_to_the_cluster(
    control_plane: Cluster, run: RunCommand, tmp_path: Path, entries: dict[str, str], says: str
) -> None:
    for command in ("apply", "status", "delete"):
        status, _, err = run(command, rendered(), kubeconfig=edited(control_plane, tmp_path / "config", **entries))
        assert status == 2 and says in err
        assert "gcloud container clusters get-credentials" in err and "Traceback" not in err


def test_a_role_that_may_not(control_plane: Cluster, namespace: str, run: RunCommand, tmp_path: Path) -> None:
    """Who may apply a RayService and not patch its Ray cluster hears so before anything is half changed."""
    run("apply", rendered(replicas=2))
    ray_cluster(control_plane, namespace)
    rules = [
        {"apiGroups": ["ray.io"], "resources": ["rayservices"], "verbs": ["get", "list", "patch", "create"]},
        {"apiGroups": ["ray.io"], "resources": ["rayclusters"], "verbs": ["get", "list"]},
        {"apiGroups": ["monitoring.googleapis.com"], "resources": ["podmonitorings"], "verbs": ["get", "patch"]},
        {"apiGroups": [""], "resources": ["services", "pods", "events"], "verbs": ["get", "list"]},
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": {"name": "r"}, "rules": rules}
    control_plane.kubectl("-n", namespace, "create", "-f", "-", input=json.dumps(role))
    control_plane.kubectl("-n", namespace, "create", "serviceaccount", "someone")
    control_plane.kubectl(
        *("-n", namespace, "create", "rolebinding", "b", "--role=r", f"--serviceaccount={namespace}:someone")
    )
    token = control_plane.kubectl("-n", namespace, "create", "token", "someone").stdout.strip()
    theirs = edited(control_plane, tmp_path / "config", token=token)
    status, _, err = run("apply", rendered(replicas=3), kubeconfig=theirs)
    assert status == 2 and "changing RayCluster" in err and "not allowed (403)" in err and "rayclusters" in err
    assert groups([live(control_plane, namespace, "rayservice")])[0]["replicas"] == 2
    assert "waits for capacity" in run("status", rendered(), kubeconfig=theirs)[1]  # without a look at the nodes
    status, _, err = run("delete", rendered(), kubeconfig=theirs)
    assert status == 2 and "not allowed (403)" in err


def test_a_kind_that_is_not_installed(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    queue = {"apiVersion": "kueue.x-k8s.io/v1beta9", "kind": "ClusterQueue", "metadata": {"name": "q"}, "spec": {}}
    objects = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "first"}}, queue]
    status, _, err = run("apply", objects, "--force")
    assert status == 2
    assert "the cluster does not know kueue.x-k8s.io/v1beta9 ClusterQueue: install Kueue" in err
    assert "configmap/first" not in there(control_plane, namespace, "configmaps")
    status, out, _ = run("status", [queue])
    assert status == 1 and out.startswith("ClusterQueue q is not applied: the cluster does not know kueue.x-k8s.io")
    assert run("delete", [queue])[0] == 0


def test_every_refusal_is_told_and_nothing_changed(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    misspelt, wrong = deepcopy(JOB), deepcopy(JOB)
    misspelt["spec"]["paralelism"] = 2
    wrong["metadata"]["name"] = "other"
    wrong["spec"]["template"]["spec"]["restartPolicy"] = "Sometimes"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "first"}}
    status, _, err = run("apply", [account, misspelt, wrong], "--force")
    assert status == 2
    assert "Job prepare" in err and "paralelism" in err
    assert "Job other" in err and "restartPolicy" in err
    assert "2 of 3 objects were refused. Nothing was changed." in err
    assert "serviceaccount/first" not in there(control_plane, namespace, "serviceaccounts")


def test_a_job_cannot_be_changed_and_can_be_made_anew(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    run("apply", [JOB], "--force")
    uid = live(control_plane, namespace, "job", "prepare")["metadata"]["uid"]
    changed = deepcopy(JOB)
    changed["spec"]["template"]["spec"]["containers"][0]["image"] = "b:2"
    status, _, err = run("apply", [changed], "--force")
    assert status == 2 and "field is immutable" in err and "--recreate" in err
    status, out, _ = run("apply", [changed], "--force", "--recreate", "--dry-run=server")
    assert live(control_plane, namespace, "job", "prepare")["metadata"]["uid"] == uid
    status, out, _ = run("apply", [changed], "--force", "--recreate")
    assert status == 0 and out.splitlines()[-1] == "Job prepare: created"
    assert live(control_plane, namespace, "job", "prepare")["metadata"]["uid"] != uid


def test_namespaces(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    other = f"{namespace}-other"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": other}}
    status, _, err = run("apply", [account])
    assert status == 2 and f"kubectl create namespace {other}" in err
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": other}}
    assert run("apply", [made, account])[0] == 0
    assert run("delete", [made, account])[0] == 0


def test_what_secrets_hold_is_not_shown(run: RunCommand) -> None:
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys"}, "data": {"api-keys": "c2VjcmV0"}}
    run("apply", [secret])
    status, out, _ = run("diff", [secret | {"data": {"api-keys": "b3RoZXI="}}])
    assert status == 1 and out.count("api-keys: '*** (") == 2
    assert "c2VjcmV0" not in out and "b3RoZXI" not in out


def test_an_interrupt_says_how_far_it_came(control_plane: Cluster, namespace: str) -> None:
    def interrupt(line: str) -> None:
        if line == f"RayService {NAME}: created":
            raise KeyboardInterrupt

    connected = client.Cluster.connect(None, namespace, str(control_plane.kubeconfig))
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "first"}}
    last = account | {"metadata": {"name": "last"}}
    objects = [account, ray_service(rendered()), last]
    with pytest.raises(client.Interrupted) as caught:
        client.apply(connected, objects, say=interrupt)
    assert str(caught.value).startswith(
        f"Interrupted. Done: ServiceAccount first. In progress, possibly done: RayService {NAME}. Not done: "
        "ServiceAccount last, a last look at them. Applying again is safe"
    )
    assert [item.outcome for item in client.apply(connected, objects)] == ["unchanged", "unchanged", "created"]


@pytest.fixture(scope="module")
def older(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose operator, and its CRDs, are of another version."""
    if control_plane.plane is None:
        pytest.skip("needs a control plane of its own, with KubeRay 1.5.1")
    from tests.kubernetes.harness.plane import ControlPlane

    with ControlPlane(tmp_path_factory.mktemp("older"), operator="1.5.1") as plane:
        yield plane.cluster


def test_an_operator_that_lacks_a_field(older: Cluster, run: RunCommand) -> None:
    older.kubectl("create", "namespace", "older")
    objects = [ray_service(rendered())]
    options = ("--namespace=older", "--force")
    ray_service(objects)["spec"]["rayClusterConfig"]["networkPolicy"] = {"mode": "DenyAll"}
    status, _, err = run("apply", objects, *options, kubeconfig=older.kubeconfig)
    assert status == 2
    assert "has no field spec.rayClusterConfig.networkPolicy" in err and "older than the field: upgrade it" in err
