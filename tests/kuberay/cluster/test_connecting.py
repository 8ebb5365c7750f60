"""From a kubeconfig to a client: each way that fails is one error that says what to do. Nothing here needs a server."""

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import yaml

from kuberay.cluster import ClusterError, connection
from kuberay.cluster.connection import Cluster
from kuberay.cluster.credentials import load
from kuberay.cluster.gke import remedy_for_missing

NIGHT = "gke_proj_us-central2-b_night"


@pytest.fixture(autouse=True)
def no_cluster_of_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine is logged in to stays out of the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connection, "RETRIES", connection.RETRIES.new(backoff_factor=0.01, backoff_jitter=0))


def kubeconfig(folder: Path, server: str = "http://127.0.0.1:9", **user: Any) -> str:
    config = {
        "current-context": NIGHT,
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user or {"token": "t"}}],
        "contexts": [{"name": NIGHT, "context": {"cluster": "c", "user": "u", "namespace": "models"}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(config))
    return str(path)


def refusal(context: str | None = None, path: str | None = None) -> str:
    with pytest.raises(ClusterError) as caught:
        Cluster.connect(context, None, path)
    return str(caught.value)


def test_no_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "The kubeconfig ~/.kube/config is not there" in refusal()
    assert "gcloud container clusters get-credentials CLUSTER --location=LOCATION" in refusal()
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    assert str(tmp_path / "nowhere") in refusal()


@pytest.mark.parametrize("text", ["{{", "", "just words", "a: 1", "contexts: 3", "contexts: [{nonsense: 1}]"])
def test_broken_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    said = refusal(path=str(path))
    assert str(path) in said and "get-credentials" in said


def test_unknown_context(tmp_path: Path) -> None:
    said = refusal("gke_p_l_other", kubeconfig(tmp_path))
    assert "gke_p_l_other" in said and "--context" in said
    assert "get-credentials other --location=l --project=p" in said


def test_kubeconfig_from_the_environment_and_its_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", f"/nowhere:{kubeconfig(tmp_path)}")
    configuration, context, namespace = load(None, None)
    assert (configuration.host, context, namespace) == ("http://127.0.0.1:9", NIGHT, "models")


def test_a_pod_without_a_service_account(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    assert "service account cannot be used" in refusal()


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["sh", "-c", "echo Reauthentication required >&2; exit 1"], "Reauthentication required"),
        (["no-such-plugin"], "No such file or directory"),
        (["sh", "-c", "echo not json"], "failed to decode"),
    ],
)
def test_a_credential_plugin_fails(tmp_path: Path, caplog, command: list[str], says: str) -> None:
    """The client alone would log it and go on as nobody."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": command[0], "args": command[1:]}
    said = refusal(path=kubeconfig(tmp_path, exec=plugin))
    assert says in caplog.text
    assert f"The credential plugin of context {NIGHT} failed" in said
    assert "gcloud components install gke-gcloud-auth-plugin" in said and "gcloud auth login" in said


def test_a_proxy_that_has_the_credentials(tmp_path: Path) -> None:
    """`kubectl proxy`: the kubeconfig's user needs none."""
    configuration, _, _ = load(None, kubeconfig(tmp_path, auth="none"))
    assert not configuration.api_key


def test_a_credential_plugin_works(tmp_path: Path) -> None:
    token = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"right"}}'
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "echo", "args": [token]}
    configuration, _, _ = load(None, kubeconfig(tmp_path, exec=plugin))
    assert "Bearer right" in configuration.api_key.values()


def test_a_server_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(connection, "READ_TIMEOUT_S", 0.05)
        server = f"http://127.0.0.1:{silent.getsockname()[1]}"
        assert "Read timed out" in refusal(path=kubeconfig(tmp_path, server))


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "cannot reach the cluster at http://127.0.0.1"),
        (b"HTTP/1.1 503 Unavailable\r\nContent-Length: 0\r\n\r\n", "answered 503"),
        (b"HTTP/1.1 407 Proxy\r\nContent-Length: 5\r\n\r\nlogin", "answered 407"),
    ],
)
def test_what_proxies_answer(tmp_path: Path, answer: bytes, says: str) -> None:
    """Passing trouble is tried again; what stays is said."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    asked.append(peer.recv(65536))
                    peer.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        server = f"http://127.0.0.1:{listener.getsockname()[1]}"
        assert says in refusal(path=kubeconfig(tmp_path, server))
        listener.shutdown(socket.SHUT_RDWR)
    assert len(asked) > 2 or b"407" in answer


@pytest.mark.parametrize(
    ("group", "says"),
    [
        ("ray.io", "update night --location=us-central2-b --project=proj --update-addons=RayOperator=ENABLED"),
        ("monitoring.googleapis.com", "--enable-managed-prometheus"),
        ("monitoring.coreos.com", "kube-prometheus-stack"),
        ("kueue.x-k8s.io", "install Kueue"),
        ("gateway.networking.k8s.io", "--gateway-api=standard"),
        ("example.com", "misspelt"),
    ],
)
def test_what_installs_a_kind(group: str, says: str) -> None:
    assert says in remedy_for_missing(group, NIGHT)
