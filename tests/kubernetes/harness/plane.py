"""etcd, kube-apiserver, kube-controller-manager, kube-scheduler, KubeRay's operator and the TPU webhook, as processes.

There are no Nodes: Pods stay Pending until a kubelet registers some. Everything listens on free ports, so several
planes can run side by side in one namespace (namespace.py).
"""

import json
import os
import secrets
import shutil
import signal
import ssl
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.kubernetes.clusters import Cluster
from tests.kubernetes.harness import building
from tests.kubernetes.harness.namespace import NODE_ADDRESS
from tests.kubernetes.harness.webhook import Webhook
from tests.ports import free_port

SERVICE_CIDR = "10.96.0.0/16"
API_SERVER_CLUSTER_IP = "10.96.0.1"
START_S = 120
CONTROLLERS = (
    "clusterrole-aggregation-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "ttl-after-finished-controller",
)
# Kinds of GKE, Kueue and prometheus-operator that our manifests use, whose schemas Go's module proxy does not have: any
# content is accepted.
OTHER_KINDS = (
    ("monitoring.googleapis.com", "v1", "PodMonitoring", "podmonitorings", "Namespaced"),
    ("monitoring.googleapis.com", "v1", "Rules", "rules", "Namespaced"),
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors", "Namespaced"),
    ("monitoring.coreos.com", "v1", "PrometheusRule", "prometheusrules", "Namespaced"),
    ("networking.gke.io", "v1", "HealthCheckPolicy", "healthcheckpolicies", "Namespaced"),
    ("networking.gke.io", "v1", "GCPBackendPolicy", "gcpbackendpolicies", "Namespaced"),
    ("kueue.x-k8s.io", "v1beta1", "LocalQueue", "localqueues", "Namespaced"),
    ("kueue.x-k8s.io", "v1beta1", "ClusterQueue", "clusterqueues", "Cluster"),
    ("kueue.x-k8s.io", "v1beta1", "ResourceFlavor", "resourceflavors", "Cluster"),
    ("kueue.x-k8s.io", "v1beta1", "AdmissionCheck", "admissionchecks", "Cluster"),
    ("kueue.x-k8s.io", "v1beta1", "ProvisioningRequestConfig", "provisioningrequestconfigs", "Cluster"),
)


class PlaneError(Exception):
    """A part of the control plane did not start; the message has the path of its log."""


class ControlPlane:
    """A control plane with its state and logs in one folder.

    with ControlPlane(folder) as plane:
        plane.cluster.kubectl("get", "pods")
    """

    def __init__(self, folder: Path, operator: str = building.DEFAULT_OPERATOR) -> None:
        self.folder = folder
        self.pki = folder / "pki"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.webhook = Webhook(self)
        self._binary = building.control_plane_binary()
        self.kubectl = self._binary.with_name("kubectl")
        self.operator = building.operator(operator)
        self.url = f"https://127.0.0.1:{free_port()}"
        self.kubeconfig = folder / "kubeconfig"
        self.cluster: Cluster

    def __enter__(self) -> "ControlPlane":
        self.pki.mkdir(parents=True)
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    # -- starting and stopping

    def _start(self) -> None:
        make_authority(self.pki)
        make_certificate(
            self.pki,
            "server",
            names=["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"],
            addresses=["127.0.0.1", API_SERVER_CLUSTER_IP, NODE_ADDRESS],
        )
        token = secrets.token_hex(16)
        (self.folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
        self._write_kubeconfig(token)
        self._start_api_server(token)
        self.run(
            "controller-manager",
            *(self._binary, "controller-manager", "--leader-elect=false", f"--controllers={','.join(CONTROLLERS)}"),
            *(f"--kubeconfig={self.kubeconfig}", f"--root-ca-file={self.pki}/ca.crt"),
            *(f"--service-account-private-key-file={self.pki}/accounts.key", f"--secure-port={free_port()}"),
            f"--cert-dir={self.folder}/certificates",
        )
        self.run(
            "scheduler",
            *(self._binary, "scheduler", "--leader-elect=false", f"--kubeconfig={self.kubeconfig}"),
            *(f"--secure-port={free_port()}", f"--cert-dir={self.folder}/certificates"),
        )
        self.cluster = Cluster(self.kubeconfig, self.kubectl, plane=self)
        wait_until("the default service account", lambda: self._has_service_account(), self.alive)
        gateway = [yaml.safe_load(path.read_text()) for path in sorted(building.gateway_crds().glob("*.yaml"))]
        self.apply(*(definition(*kind) for kind in OTHER_KINDS), *gateway)
        self.webhook.start()
        self.start_operator(self.operator)

    def _start_api_server(self, token: str) -> None:
        etcd = f"http://127.0.0.1:{free_port()}"
        peer = f"http://127.0.0.1:{free_port()}"
        data = self.folder / "etcd"
        self.run("etcd", self._binary, "etcd", f"--data-dir={data}", f"--client-url={etcd}", f"--peer-url={peer}")
        self.run(
            "apiserver",
            *(self._binary, "apiserver", f"--etcd-servers={etcd}", f"--service-cluster-ip-range={SERVICE_CIDR}"),
            *(f"--secure-port={self.url.rsplit(':', 1)[1]}", f"--advertise-address={NODE_ADDRESS}"),
            *(f"--tls-cert-file={self.pki}/server.crt", f"--tls-private-key-file={self.pki}/server.key"),
            *(f"--client-ca-file={self.pki}/ca.crt", f"--token-auth-file={self.folder}/tokens.csv"),
            *("--authorization-mode=RBAC", "--allow-privileged", f"--cert-dir={self.folder}/certificates"),
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={self.pki}/accounts.pub",
            f"--service-account-signing-key-file={self.pki}/accounts.key",
            # The controller that takes a new Node's not-ready taint away again is not among ours.
            "--disable-admission-plugins=TaintNodesByCondition",
        )
        headers = {"Authorization": f"Bearer {token}"}
        authority = ssl.create_default_context(cafile=self.pki / "ca.crt")
        with httpx.Client(verify=authority, headers=headers, timeout=5) as client:
            wait_until("the API server", lambda: client.get(f"{self.url}/readyz").text == "ok", self.alive)

    def start_operator(self, operator: building.Operator) -> None:
        """Applies the operator's CRDs and starts it. A running operator is stopped first, which makes it an upgrade."""
        self.stop_operator()
        self.operator = operator
        crds = [yaml.safe_load(path.read_text()) for path in sorted(operator.crds.glob("*.yaml"))]
        self.apply(*crds)
        health = free_port()
        self.run(
            "operator",
            *(operator.binary, "--enable-leader-election=false", "--use-kubernetes-proxy"),
            *(f"--metrics-addr=127.0.0.1:{free_port()}", f"--health-probe-bind-address=127.0.0.1:{health}"),
            environment={"KUBECONFIG": str(self.kubeconfig)},
        )
        ready = f"http://127.0.0.1:{health}/readyz"
        wait_until(f"the operator {operator.version}", lambda: httpx.get(ready).is_success, self.alive)

    def stop_operator(self) -> None:
        """Stops the operator and leaves the objects as they are."""
        self._end("operator")

    def stop(self) -> None:
        """Stops everything. Logs are kept, etcd's data is deleted."""
        self.webhook.stop()
        for name in reversed(list(self.processes)):
            self._end(name)
        shutil.rmtree(self.folder / "etcd", ignore_errors=True)

    def run(self, name: str, *command: str | Path, environment: dict[str, str] | None = None) -> None:
        """Starts a process of this plane. Its output goes to NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [str(word) for word in command],
                env=os.environ | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def alive(self) -> None:
        """Raises PlaneError, with the end of the log, if a process has exited by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                log = self.folder / f"{name}.log"
                end = log.read_text(errors="replace")[-1500:]
                raise PlaneError(f"{name} ended with status {process.returncode}; {log} ends so:\n{end}")

    def _end(self, name: str) -> None:
        if process := self.processes.pop(name, None):
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    # -- objects

    def apply(self, *objects: dict[str, Any]) -> None:
        """Server-side apply as the cluster's administrator; waits until CRDs among them can be used."""
        text = "\n".join(json.dumps(item) for item in objects)
        flags = ("--server-side", "--force-conflicts", "--field-manager=cluster-admin")
        self.cluster.kubectl("apply", *flags, "-f", "-", input=text)
        if crds := [item["metadata"]["name"] for item in objects if item["kind"] == "CustomResourceDefinition"]:
            self.cluster.kubectl("wait", "--for=condition=Established", "--timeout=60s", "crd", *crds)

    def _has_service_account(self) -> bool:
        return self.cluster.kubectl("get", "serviceaccount", "default", check=False).returncode == 0

    def _write_kubeconfig(self, token: str) -> None:
        cluster = {"server": self.url, "certificate-authority": str(self.pki / "ca.crt")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "podslice-test",
            "clusters": [{"name": "podslice-test", "cluster": cluster}],
            "users": [{"name": "podslice-test", "user": {"token": token}}],
            "contexts": [{"name": "podslice-test", "context": {"cluster": "podslice-test", "user": "podslice-test"}}],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))


def definition(group: str, version: str, kind: str, plural: str, scope: str) -> dict[str, Any]:
    """A CustomResourceDefinition without a schema."""
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{group}",
            # Groups under k8s.io are Kubernetes's own, and the API server asks who approved a definition in them.
            "annotations": {"api-approved.kubernetes.io": "unapproved, for tests"},
        },
        "spec": {
            "group": group,
            "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {"name": version, "served": True, "storage": True, "schema": schema, "subresources": {"status": {}}}
            ],
        },
    }


def wait_until(what: str, true: Callable[[], bool], alive: Callable[[], None]) -> None:
    """Returns once `true()` holds. Raises PlaneError after two minutes, or whatever `alive` raises."""
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        alive()
        try:
            if true():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    raise PlaneError(f"{what} was not there after {START_S} s")


def make_authority(folder: Path) -> None:
    """Writes ca.crt and ca.key, and the key pair that signs service account tokens."""
    _openssl(
        folder,
        "req -x509 -newkey rsa:2048 -nodes -days 30 -keyout ca.key -out ca.crt -subj /CN=podslice-test-authority",
    )
    _openssl(folder, "genrsa -out accounts.key 2048")
    _openssl(folder, "rsa -in accounts.key -pubout -out accounts.pub")


def make_certificate(folder: Path, name: str, names: Iterable[str], addresses: Iterable[str]) -> None:
    """Writes NAME.crt and NAME.key, signed by the folder's CA."""
    alternatives = [f"DNS:{item}" for item in names] + [f"IP:{item}" for item in addresses]
    (folder / f"{name}.ext").write_text(f"subjectAltName={','.join(alternatives)}\n")
    _openssl(folder, f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}")
    signing = f"x509 -req -in {name}.csr -out {name}.crt -days 30 -extfile {name}.ext"
    _openssl(folder, f"{signing} -CA ca.crt -CAkey ca.key -CAcreateserial")


def _openssl(folder: Path, arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments.split()], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise PlaneError(f"openssl {arguments}: {done.stderr}")
