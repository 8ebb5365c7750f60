"""A real control plane for the tests of this folder, once for all of them, or a cluster that somebody has.

`make test-kubernetes` runs them, in namespaces of their own (harness/namespace.py).
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.clusters import Cluster

HERE = Path(__file__).parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--record", action="store_true", help="write tests/kubernetes/recorded again")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.kubernetes)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """API server, controllers, scheduler, KubeRay's operator and the TPU webhook. Without Nodes: Pods stay Pending."""
    if kubeconfig := os.environ.get("PODSLICE_TEST_KUBECONFIG"):
        yield Cluster(Path(kubeconfig))
        return
    from tests.kubernetes.harness import namespace as namespaces
    from tests.kubernetes.harness.plane import ControlPlane

    if namespaces.MARK not in os.environ:
        pytest.exit("tests/kubernetes run in namespaces of their own: `make test-kubernetes`", returncode=2)
    with ControlPlane(tmp_path_factory.mktemp("plane")) as plane:
        yield plane.cluster


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A Kubernetes namespace for one test. What is left in it goes with it."""
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def cluster(control_plane: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """The same with a kubelet and a network: Pods run on whatever Nodes there are. At first there are none."""
    if control_plane.plane is None:
        yield control_plane
        return
    from tests.kubernetes.harness.kubelet.process import KubeletProcess

    with KubeletProcess(control_plane.kubeconfig, tmp_path_factory.mktemp("kubelet")):
        yield control_plane
