"""Objects as KubeRay, the scheduler and the kubelet leave them, for tests that tell a night's story."""

from typing import Any

from kuberay.cluster.status import read
from kuberay.cluster.status.snapshot import Events, Snapshot
from kuberay.cluster.status.state import State

Manifest = dict[str, Any]

SINCE = "2026-01-01T02:14:00Z"
CLUSTER = "llama-abcde"
GROUP = "tpu-v4-2x2x1"
SELECTOR = {"cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice", "cloud.google.com/gke-tpu-topology": "2x2x1"}


def group(name: str = GROUP, replicas: int = 1, hosts: int = 1, selector: Manifest | None = None) -> Manifest:
    container = {"name": "ray", "image": "ray:2.60", "env": [{"name": "A", "value": "1"}]}
    return {
        "groupName": name,
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": 4,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "scaleStrategy": {},
        "template": {"spec": {"containers": [container], "nodeSelector": SELECTOR if selector is None else selector}},
    }


def service(*groups: Manifest, applications: str = "- {name: llm, import_path: 'apps.llm:build'}") -> Manifest:
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray", "image": "ray:2.60"}]}}}
    config = {"rayVersion": "2.60.0", "headGroupSpec": head, "workerGroupSpecs": list(groups) or [group()]}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "llama", "uid": "service", "generation": 1},
        "spec": {
            "serveConfigV2": f"proxy_location: EveryNode\napplications:\n{applications}\n",
            "upgradeStrategy": {"type": "None"},
            "rayClusterConfig": config,
        },
    }


class Night:
    """A RayService named llama and its Ray cluster, as KubeRay would leave them; `told` is what status says of it."""

    def __init__(self, live: Manifest | None = None):
        self.service = live or service()
        labels = {"ray.io/originated-from-cr-name": "llama", "ray.io/originated-from-crd": "RayService"}
        self.ray_cluster: Manifest = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "metadata": {"name": CLUSTER, "uid": "cluster", "labels": labels},
            "spec": self.service["spec"]["rayClusterConfig"],
        }
        self.pods: list[Manifest] = []
        self.events: list[Manifest] = []
        self.entries: list[Manifest] = []
        self.status(ready=False)

    def status(self, ready: bool, application: str = "", deployment: str = "", message: str = "", **more: Any) -> None:
        """What the operator says; an application and its deployment by their Serve status."""
        side: Manifest = {"rayClusterName": CLUSTER}
        if application:
            said = {"status": deployment or "HEALTHY", "message": message}
            deployments = {"serveDeploymentStatuses": {"LLMServer": said}}
            side["applicationStatuses"] = {"llm": {"status": application} | deployments}
        where = "activeServiceStatus" if ready else "pendingServiceStatus"
        condition = {"type": "Ready", "status": str(ready), "reason": more.pop("reason", "x")}
        conditions = [condition | {"message": more.pop("said", "")}, *more.pop("conditions", [])]
        self.service["status"] = {where: side, "conditions": conditions, "observedGeneration": 1} | more

    def head(self, **status: Any) -> Manifest:
        labels = {"ray.io/cluster": CLUSTER, "ray.io/node-type": "head", "ray.io/group": "headgroup"}
        return self._pod("llama-head", labels, {}, status or up())

    def worker(
        self, index: int = 0, host: int = 0, of: str = GROUP, selector: Manifest | None = None, **status: Any
    ) -> Manifest:
        labels = {
            "ray.io/cluster": CLUSTER,
            "ray.io/node-type": "worker",
            "ray.io/group": of,
            "ray.io/worker-group-replica-index": str(index),
            "ray.io/replica-host-index": str(host),
        }
        wants = (SELECTOR if of.startswith("tpu-") else {}) | (selector or {})
        return self._pod(f"llama-{of}-{index}-{host}", labels, wants, status or up())

    def _pod(self, name: str, labels: Manifest, selector: Manifest, status: Manifest) -> Manifest:
        spec: Manifest = {"containers": [{"name": "ray", "image": "ray:2.60"}], "nodeSelector": selector}
        if status.get("phase") != "Pending" or "containerStatuses" in status:
            spec["nodeName"] = "node-1"
        metadata = {"name": name, "uid": name, "labels": labels}
        self.pods = [pod for pod in self.pods if pod["metadata"]["name"] != name]
        self.pods.append({"kind": "Pod", "metadata": metadata, "spec": spec, "status": status})
        return self.pods[-1]

    def event(self, about: Manifest, reason: str, message: str, type: str = "Warning", at: str = SINCE) -> None:
        involved = {"uid": about["metadata"]["uid"]}
        name = {"name": f"event-{len(self.events)}"}
        event = {"metadata": name, "involvedObject": involved, "type": type, "reason": reason, "message": message}
        self.events.append(event | {"lastTimestamp": at})

    def state(self, *objects: Manifest) -> State:
        snapshot = Snapshot(
            (self.ray_cluster,),
            tuple(self.pods),
            Events(self.events),
            tuple(self.entries) or None,
        )
        return State(tuple(read(item, snapshot) for item in objects or [self.service]))


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
