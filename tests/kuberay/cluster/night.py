"""What the operator, the scheduler and the kubelet write into the cluster, so that a test can tell a night's story."""

from typing import Any

from api_server import ApiServer
from manifests_of_a_service import SELECTOR, Manifest, cluster_spec, service

SINCE = "2026-01-01T02:14:00Z"
CLUSTER = "llama-abcde"


class Night:
    """A RayService named llama and its Ray cluster, as KubeRay would leave them."""

    def __init__(self, server: ApiServer, replicas: int = 1, hosts: int = 1):
        self.store, self.server = server.store, server
        self.service = self.store.put(service(replicas, hosts), "podslice")
        labels = {"ray.io/originated-from-cr-name": "llama", "ray.io/originated-from-crd": "RayService"}
        self.ray_cluster = self.store.put(
            {
                "apiVersion": "ray.io/v1",
                "kind": "RayCluster",
                "metadata": {"name": CLUSTER, "labels": labels},
                "spec": cluster_spec(replicas, hosts),
            }
        )
        self.status(ready=False)

    def status(self, ready: bool, application: str = "", deployment: str = "", message: str = "", **more: Any) -> None:
        """What the operator says; an application and its deployment by their Serve status."""
        side: Manifest = {"rayClusterName": CLUSTER}
        if application:
            said = {"status": deployment or "HEALTHY", "message": message}
            deployments = {"serveDeploymentStatuses": {"LLMServer": said}}
            side["applicationStatuses"] = {"llm": {"status": application} | deployments}
        where = "activeServiceStatus" if ready else "pendingServiceStatus"
        conditions = [{"type": "Ready", "status": str(ready), "reason": more.pop("reason", "x")}]
        conditions[0]["message"] = more.pop("said", "")
        conditions += more.pop("conditions", [])
        status = {where: side, "conditions": conditions, "observedGeneration": 1} | more
        self.store.change(self.service, "kuberay-operator", status=status)

    def head(self, **status: Any) -> Manifest:
        labels = {"ray.io/cluster": CLUSTER, "ray.io/node-type": "head", "ray.io/group": "headgroup"}
        return self._pod("llama-head", labels, {}, status or up())

    def worker(self, index: int = 0, host: int = 0, selector: Manifest | None = None, **status: Any) -> Manifest:
        labels = {
            "ray.io/cluster": CLUSTER,
            "ray.io/node-type": "worker",
            "ray.io/group": "tpu-v4-2x2x1",
            "ray.io/worker-group-replica-index": str(index),
            "ray.io/replica-host-index": str(host),
        }
        return self._pod(f"llama-worker-{index}-{host}", labels, SELECTOR | (selector or {}), status or up())

    def _pod(self, name: str, labels: Manifest, selector: Manifest, status: Manifest) -> Manifest:
        spec: Manifest = {"containers": [{"name": "ray", "image": "ray:2.60"}], "nodeSelector": selector}
        if status.get("phase") != "Pending" or "containerStatuses" in status:
            spec["nodeName"] = "node-1"
        metadata = {"name": name, "labels": labels}
        return self.store.put({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": status})


def up() -> Manifest:
    return {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def unready() -> Manifest:
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": SINCE}
    return {"phase": "Running", "conditions": [ready]}


def unscheduled(message: str = "0/3 nodes are available: 3 Insufficient google.com/tpu.", **more: Any) -> Manifest:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return {"phase": "Pending", "conditions": [scheduled | {"lastTransitionTime": SINCE} | more]}


def container(state: Manifest, phase: str = "Pending", **more: Any) -> Manifest:
    return {"phase": phase, "containerStatuses": [{"name": "ray", "image": "ray:2.60", "state": state} | more]}


def waiting(reason: str, message: str = "", **more: Any) -> Manifest:
    return container({"waiting": {"reason": reason, "message": message}}, **more)


def terminated(code: int, reason: str = "Error", message: str = "") -> Manifest:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}
