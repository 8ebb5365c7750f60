"""Connecting, and requests that fail: each failure is one ClusterError that says what to do."""

import logging
import socket
from pathlib import Path

import pytest
import yaml
from api_server import ApiServer
from manifests_of_a_service import ACCOUNT, service
from object_store import CORE, RAY

from kuberay.cluster import connection
from kuberay.cluster.connection import Cluster, Outcome
from kuberay.cluster.errors import ClusterError, Refused, UnknownKind

NIGHT = "gcloud container clusters get-credentials night --location=us-central2-b --project=proj"


def refusal(**how) -> str:
    with pytest.raises(ClusterError) as caught:
        Cluster.connect(**how)
    return str(caught.value)


def test_no_kubeconfig(tmp_path, monkeypatch):
    assert "There is no kubeconfig" in refusal()
    assert "gcloud container clusters get-credentials CLUSTER --location=LOCATION" in refusal()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in refusal()


@pytest.mark.parametrize("text", ["{{", "", "just words", "a: 1", "contexts: 3", "contexts: [{nonsense: 1}]"])
def test_broken_kubeconfig(tmp_path, text):
    path = tmp_path / "config"
    path.write_text(text)
    said = refusal(kubeconfig=str(path))
    assert str(path) in said
    assert "get-credentials" in said


def test_unknown_context(server, tmp_path):
    said = refusal(kubeconfig=server.kubeconfig(tmp_path / "config"), context="gke_p_l_other")
    assert "no context gke_p_l_other; it has: gke_proj_us-central2-b_night" in said
    assert "get-credentials other --location=l --project=p" in said


def test_context_without_its_cluster(server, tmp_path):
    path = Path(server.kubeconfig(tmp_path / "config"))
    config = yaml.safe_load(path.read_text())
    config["clusters"] = []
    path.write_text(yaml.safe_dump(config))
    assert "cannot be read" in refusal(kubeconfig=str(path))


def test_kubeconfig_from_the_environment_and_its_namespace(server, tmp_path, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", f"/nowhere:{server.kubeconfig(tmp_path / 'config')}")
    assert Cluster.connect().namespace == "default"
    assert Cluster.connect(namespace="models").namespace == "models"


def test_pod_without_a_service_account(monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    assert "service account cannot be read" in refusal()


def test_nobody_listens(server, tmp_path):
    kubeconfig = server.kubeconfig(tmp_path / "config")
    server.stop()
    said = refusal(kubeconfig=kubeconfig)
    assert f"cannot talk to the cluster at {server.url}: nothing listens" in said
    assert NIGHT in said


def test_server_that_never_answers(server, tmp_path, monkeypatch):
    silent = socket.create_server(("127.0.0.1", 0))
    monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.05)
    server.url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    assert "did not answer in time" in refusal(kubeconfig=server.kubeconfig(tmp_path / "config"))
    silent.close()


def test_expired_token(server, tmp_path):
    said = refusal(kubeconfig=server.kubeconfig(tmp_path / "config", token="old"))
    assert "does not accept the credentials (401)" in said
    assert NIGHT in said
    assert "\n" not in said


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["sh", "-c", "echo Reauthentication required >&2; exit 1"], "Reauthentication required"),
        (["no-such-plugin"], "gcloud components install gke-gcloud-auth-plugin"),
        (["sh", "-c", "echo not json"], "failed to decode"),
    ],
)
def test_credential_plugin_fails(server, tmp_path, command, says, caplog):
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": command[0], "args": command[1:]}
    said = refusal(kubeconfig=server.kubeconfig(tmp_path / "config", exec=plugin))
    assert says in said
    assert "The credential plugin of context gke_proj_us-central2-b_night failed" in said
    assert server.requests == []  # and does not go on as nobody
    assert not logging.getLogger().filters


def test_credential_plugin_works(server, tmp_path):
    token = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}'
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [token % "the-right-token"],
    }
    cluster = Cluster.connect(kubeconfig=server.kubeconfig(tmp_path / "config", exec=plugin))
    assert cluster.get(ACCOUNT) is None


def test_forbidden(server, cluster):
    server.forbidden.add("serviceaccounts")
    with pytest.raises(Refused, match=r"reading ServiceAccount llama: not allowed \(403\).*roles/container.developer"):
        cluster.get(ACCOUNT)


@pytest.mark.parametrize(
    "how",
    [
        {"kind": "status", "code": 503},
        {"kind": "status", "code": 500, "times": 2},
        {"kind": "status", "code": 429, "headers": {"Retry-After": "0"}},
        {"kind": "reset"},
        {"kind": "slow", "seconds": 0.05},
    ],
)
@pytest.mark.parametrize("method", ["GET", "PATCH", "DELETE"])
def test_passing_trouble_is_tried_again(server, cluster, how, method):
    trouble = server.trouble(**how, method=method, path="serviceaccounts/llama")
    assert cluster.apply(ACCOUNT).outcome == Outcome.CREATED
    assert cluster.apply(ACCOUNT).outcome == Outcome.UNCHANGED
    assert cluster.delete(cluster.get(ACCOUNT))
    assert cluster.get(ACCOUNT) is None
    assert trouble.times == 0


@pytest.mark.parametrize(
    ("how", "says"),
    [({"kind": "status", "code": 503}, "answered 503 again and again"), ({"kind": "reset"}, "connection broke again")],
)
def test_lasting_trouble(server, cluster, how, says):
    server.trouble(**how, times=99, path="serviceaccounts/llama")
    with pytest.raises(ClusterError, match=says):
        cluster.get(ACCOUNT)


def test_answer_of_a_proxy(server, cluster):
    server.trouble("status", code=407, path="serviceaccounts/llama")
    with pytest.raises(ClusterError, match="407"):
        cluster.get(ACCOUNT)


def test_only_the_groups_in_use_are_asked_for(server, cluster):
    cluster.get(ACCOUNT)
    cluster.get(service())
    assert server.calls("GET", "/apis/batch/v1") == 0
    assert server.calls("GET", "/apis/ray.io/v1?") + server.calls("GET", "/apis/ray.io/v1") > 0


def test_a_kind_installed_later_is_found(server, tmp_path):
    server.store.kinds = CORE
    cluster = Cluster.connect(kubeconfig=server.kubeconfig(tmp_path / "config"))
    with pytest.raises(UnknownKind, match=r"does not know ray.io/v1 RayService.*night .*--update-addons=RayOperator"):
        cluster.get(service())
    server.store.kinds = (*CORE, *RAY)
    assert cluster.get(service()) is None


def test_lists_come_in_pages(server, cluster, monkeypatch):
    monkeypatch.setattr(connection, "PAGE", 2)
    for number in range(5):
        server.store.put(ACCOUNT | {"metadata": {"name": f"a{number}", "labels": {"odd": str(number % 2)}}})
    assert [item["metadata"]["name"] for item in cluster.list("v1", "ServiceAccount")] == [f"a{n}" for n in range(5)]
    odd = cluster.list("v1", "ServiceAccount", labels="odd=1")
    assert [(item["kind"], item["metadata"]["name"]) for item in odd] == [
        ("ServiceAccount", "a1"),
        ("ServiceAccount", "a3"),
    ]
    assert cluster.list("v1", "ServiceAccount", namespace="elsewhere") == []


def test_no_two_clusters_share_what_they_know(tmp_path):
    for kinds in (CORE, (*CORE, *RAY)):
        server = ApiServer(kinds)
        cluster = Cluster.connect(kubeconfig=server.kubeconfig(tmp_path / "config"))
        assert cluster.knows("ray.io/v1", "RayService") == (kinds != CORE)
        server.stop()
