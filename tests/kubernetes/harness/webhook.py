"""What GKE's TPU webhook does to a Pod that asks for chips: the real one if $PODSLICE_WEBHOOK names it, else ours.

Ours is compared with what the real one (ai-on-gke/kuberay-tpu-webhook ef658db) made of the catalog: ../recorded.
"""

import base64
import copy
import json
import math
import os
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from tests.ports import free_port

if TYPE_CHECKING:
    from tests.kubernetes.harness.plane import ControlPlane

Object = dict[str, Any]
CHIPS = "google.com/tpu"
NODE_POOL = "cloud.google.com/gke-nodepool"
TOPOLOGY = "cloud.google.com/gke-tpu-topology"
REPLICA_NAME = "ray.io/worker-group-replica-name"
NAME_LIMIT = 50  # of a Service's name, by KubeRay


class Refused(Exception):
    """The webhook does not admit an object; the message says why."""


class Webhook:
    """Listens on a free port and registers itself with the plane's API server."""

    def __init__(self, plane: "ControlPlane") -> None:
        self._plane = plane
        self._server: ThreadingHTTPServer | None = None
        self._indices = PodIndices()

    def start(self) -> None:
        from tests.kubernetes.harness.plane import make_certificate

        pki = self._plane.pki
        make_certificate(pki, "webhook", names=["localhost"], addresses=["127.0.0.1"])
        if real := os.environ.get("PODSLICE_WEBHOOK"):
            port = free_port()
            self._plane.run(
                "webhook",
                *(real, f"--bind-address=127.0.0.1:{port}", f"--kube-config-path={self._plane.kubeconfig}"),
                *(f"--tls-cert-file={pki}/webhook.crt", f"--tls-private-key-file={pki}/webhook.key"),
            )
        else:
            port = self._serve()
        self._register(f"https://127.0.0.1:{port}")

    def stop(self) -> None:
        if self._server:
            self._server.shutdown()
            self._server.server_close()

    def _register(self, url: str) -> None:
        authority = base64.b64encode((self._plane.pki / "ca.crt").read_bytes()).decode()

        def configuration(kind: str, path: str, rule: Object, **more: Any) -> Object:
            hook = {
                "name": f"{kind.lower()}.tpu.gke.io",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Fail",
                "clientConfig": {"url": f"{url}/{path}", "caBundle": authority},
                "rules": [{"operations": ["CREATE"], "apiVersions": ["v1"], "scope": "Namespaced"} | rule],
            }
            return {
                "apiVersion": "admissionregistration.k8s.io/v1",
                "kind": f"{kind}WebhookConfiguration",
                "metadata": {"name": "tpu-webhook"},
                "webhooks": [hook | more],
            }

        ray = {"matchLabels": {"app.kubernetes.io/name": "kuberay"}}
        self._plane.apply(
            configuration("Mutating", "mutate", {"apiGroups": [""], "resources": ["pods"]}, objectSelector=ray),
            configuration("Validating", "validate", {"apiGroups": ["ray.io"], "resources": ["rayclusters"]}),
        )

    def _serve(self) -> int:
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body = json.dumps(webhook.answer(self.path.partition("?")[0], review["request"])).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self._plane.pki / "webhook.crt", self._plane.pki / "webhook.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self._server.server_address[1]

    def answer(self, path: str, request: Object) -> Object:
        """The AdmissionReview that answers a request."""
        response: Object = {"uid": request["uid"], "allowed": True}
        try:
            if path == "/validate":
                validate(request["object"])
            else:
                pod = request["object"]
                pod["metadata"]["namespace"] = request["namespace"]
                after = mutate(pod, self._indices)
                patch = [{"op": "replace", "path": f"/{key}", "value": after[key]} for key in ("metadata", "spec")]
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        except Refused as error:
            response |= {"allowed": False, "status": {"message": str(error)}}
        return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


class PodIndices:
    """The replica and host index of a Pod. KubeRay sets them as labels from 1.6 on; before, the webhook counts Pods."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._given: dict[tuple[str, str, str], int] = {}

    def of(self, pod: Object, hosts: int) -> tuple[int, int]:
        labels = pod["metadata"]["labels"]
        if "ray.io/worker-group-replica-index" in labels and "ray.io/replica-host-index" in labels:
            return int(labels["ray.io/worker-group-replica-index"]), int(labels["ray.io/replica-host-index"])
        key = (pod["metadata"]["namespace"], labels["ray.io/cluster"], labels["ray.io/group"])
        with self._lock:
            number = self._given.get(key, 0)
            self._given[key] = number + 1
        labels["replicaIndex"] = f"{labels['ray.io/group']}-{number // hosts}"
        return divmod(number, hosts)


def mutate(pod: Object, indices: PodIndices) -> Object:
    """The Pod as admitted, with a TPU host's name, address and peers; a Pod without chips is unchanged."""
    if not chips(pod["spec"]):
        return pod
    pod = copy.deepcopy(pod)
    labels, spec = pod["metadata"]["labels"], pod["spec"]
    for label in ("ray.io/cluster", "ray.io/group"):
        if label not in labels:
            raise Refused(f"a Ray Pod that asks for chips has no label {label}")
    cluster, group = labels["ray.io/cluster"], labels["ray.io/group"]
    hosts = hosts_of(spec)
    replica, host = indices.of(pod, hosts)
    headless = f"{cluster}-headless"[-NAME_LIMIT:]
    added = [
        {"name": "TPU_WORKER_ID", "value": str(host)},
        {"name": "TPU_NAME", "value": f"{group}-{replica}"},
        {"name": "TPU_DEVICE_PLUGIN_HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "TPU_DEVICE_PLUGIN_ADDR", "value": "$(TPU_DEVICE_PLUGIN_HOST_IP):2112"},
    ]
    if hosts > 1:
        names = [f"{group}-{replica}-{number}.{headless}" for number in range(hosts)]
        added.insert(0, {"name": "TPU_WORKER_HOSTNAMES", "value": ",".join(names)})
        spec["hostname"], spec["subdomain"] = f"{group}-{replica}-{host}", headless
        label = REPLICA_NAME if REPLICA_NAME in labels else "replicaIndex"
        spec["affinity"] = one_node_pool(cluster, label, labels[label])
    for container in spec["containers"]:
        if _limit(container):
            written = {item["name"] for item in container.get("env", ())}
            container["env"] = container.get("env", []) + [item for item in added if item["name"] not in written]
    return pod


def validate(cluster: Object) -> None:
    """Raises Refused if a group's numOfHosts does not match its topology and chips."""
    for group in cluster["spec"].get("workerGroupSpecs", ()):
        spec = group["template"]["spec"]
        if chips(spec) and group.get("numOfHosts", 1) != hosts_of(spec):
            raise Refused("Number of workers in worker group not equal to specified topology")


def chips(spec: Object) -> int:
    """Number of chips that a Pod requests."""
    return sum(_limit(container) for container in spec["containers"])


def hosts_of(spec: Object) -> int:
    """Number of hosts in the slice of a TPU Pod. Raises Refused if it selects no topology."""
    topology = spec.get("nodeSelector", {}).get(TOPOLOGY)
    if not topology:
        raise Refused(f"a Ray Pod that asks for chips has no nodeSelector {TOPOLOGY}")
    return max(1, math.prod(int(side) for side in topology.split("x")) // chips(spec))


def one_node_pool(cluster: str, label: str, value: str) -> Object:
    """Affinity that keeps one replica's hosts alone on one node pool."""

    def term(*expressions: Object, **more: Any) -> Object:
        return {"labelSelector": {"matchExpressions": list(expressions)}, "topologyKey": NODE_POOL} | more

    def matches(key: str, operator: str, *values: str) -> Object:
        return {"key": key, "operator": operator} | ({"values": list(values)} if values else {})

    required = "requiredDuringSchedulingIgnoredDuringExecution"
    own_replica, own_cluster = matches(label, "In", value), matches("ray.io/cluster", "In", cluster)
    other_replica, other_cluster = matches(label, "NotIn", value), matches("ray.io/cluster", "NotIn", cluster)
    everywhere = {"matchExpressions": [matches("kubernetes.io/metadata.name", "NotIn", "kube-system")]}
    return {
        "podAffinity": {required: [term(own_replica, own_cluster)]},
        "podAntiAffinity": {
            required: [
                term(other_replica, own_cluster),
                term(other_cluster, matches(label, "Exists"), namespaceSelector=everywhere),
            ]
        },
    }


def _limit(container: Object) -> int:
    return int(container.get("resources", {}).get("limits", {}).get(CHIPS, 0))
