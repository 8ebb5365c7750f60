"""A cluster as the tests see it: a kubeconfig, kubectl, a client, and addresses of Services."""

import atexit
import re
import shutil
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kubernetes import config, dynamic

if TYPE_CHECKING:
    from tests.kubernetes.harness.plane import ControlPlane

REPOSITORY = Path(__file__).parents[2]


class Cluster:
    """Any cluster with KubeRay's operator, by its kubeconfig.

    `plane` is the control plane where the harness started it, else None: what only the harness can do (faults, other
    operators) needs it.
    """

    def __init__(self, kubeconfig: Path, kubectl: Path | None = None, plane: "ControlPlane | None" = None) -> None:
        self.kubeconfig = kubeconfig
        self.plane = plane
        found = kubectl or shutil.which("kubectl")
        if found is None:
            raise FileNotFoundError("kubectl is not on the PATH")
        self._kubectl = str(found)

    def kubectl(
        self, *arguments: str, input: str | None = None, check: bool = True, timeout: float = 180
    ) -> subprocess.CompletedProcess[str]:
        """What kubectl said, as text. A status other than 0 is an AssertionError, unless `check` is False."""
        done = subprocess.run(
            [self._kubectl, f"--kubeconfig={self.kubeconfig}", *arguments],
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        if check and done.returncode:
            said = (done.stdout + done.stderr).strip()
            raise AssertionError(f"kubectl {' '.join(arguments)} ended with {done.returncode}: {said}")
        return done

    def podslice(self, *arguments: str, check: bool = True, timeout: float = 180) -> subprocess.CompletedProcess[str]:
        """What `python -m kuberay` said about this cluster. A status other than 0 is an AssertionError, as above."""
        command = [sys.executable, "-m", "kuberay", *arguments, f"--kubeconfig={self.kubeconfig}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, cwd=REPOSITORY)
        if check and done.returncode:
            said = (done.stdout + done.stderr).strip()
            raise AssertionError(f"python -m kuberay {' '.join(arguments)} ended with {done.returncode}: {said}")
        return done

    def start_kubectl(self, *arguments: str) -> "subprocess.Popen[str]":
        """A kubectl that goes on, such as `port-forward`; the caller ends it."""
        command = [self._kubectl, f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    @cached_property
    def api(self) -> dynamic.DynamicClient:
        """A client for every kind that the API server knows."""
        return dynamic.DynamicClient(config.new_client_from_config(str(self.kubeconfig)))

    def service_url(self, name: str, port: str | int, namespace: str = "default") -> str:
        """Where a Service's port (its name or number) answers, each connection at one of its Ready endpoints.

        The ClusterIP where the harness runs the cluster, a load balancer's address where there is one, else the API
        server's proxy of Services, through `kubectl proxy`.
        """
        service = self.api.resources.get(api_version="v1", kind="Service").get(name=name, namespace=namespace)
        number = next(item.port for item in service.spec.ports if port in (item.name, item.port))
        if self.plane is not None:
            return f"http://{service.spec.clusterIP}:{number}"
        balancer = service.status.loadBalancer.ingress if service.status.loadBalancer else None
        if balancer:
            return f"http://{balancer[0].ip or balancer[0].hostname}:{number}"
        return f"{self._proxy}/api/v1/namespaces/{namespace}/services/{name}:{number}/proxy"

    @cached_property
    def _proxy(self) -> str:
        proxy = subprocess.Popen(
            [self._kubectl, f"--kubeconfig={self.kubeconfig}", "proxy", "--port=0"], stdout=subprocess.PIPE, text=True
        )
        atexit.register(proxy.terminate)
        assert proxy.stdout is not None
        said = proxy.stdout.readline()
        port = re.search(r":(\d+)", said)
        if port is None:
            raise AssertionError(f"kubectl proxy said {said!r}")
        return f"http://127.0.0.1:{port[1]}"
