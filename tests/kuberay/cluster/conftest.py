"""An API server double for each test, and a Cluster connected to it through a real kubeconfig file."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_server import ApiServer

from kuberay.cluster import connection
from kuberay.cluster.connection import Cluster


@pytest.fixture(autouse=True)
def no_cluster_of_our_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whatever the machine is logged in to stays out of the tests."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(connection, "RETRIES", connection.RETRIES.new(backoff_factor=0.01, backoff_jitter=0))


@pytest.fixture
def server() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.stop()


@pytest.fixture
def cluster(server: ApiServer, tmp_path: Path) -> Cluster:
    return Cluster.connect(kubeconfig=server.kubeconfig(tmp_path / "config"))
