"""A small set of manifests as the project renders them: a service account, a RayService on a TPU slice, scraping."""

from copy import deepcopy
from typing import Any

Manifest = dict[str, Any]

SELECTOR = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
    "cloud.google.com/gke-tpu-topology": "2x2x1",
}
ACCOUNT: Manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "llama"}}
MONITORING: Manifest = {
    "apiVersion": "monitoring.googleapis.com/v1",
    "kind": "PodMonitoring",
    "metadata": {"name": "llama"},
    "spec": {"endpoints": [{"port": "metrics", "interval": "15s"}]},
}
SECRET: Manifest = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "keys"},
    "data": {"api-keys": "c2VjcmV0"},
}


def pod_template(image: str = "ray:2.60") -> Manifest:
    container = {"name": "ray", "image": image, "env": [{"name": "A", "value": "1"}]}
    return {"spec": {"containers": [container], "nodeSelector": dict(SELECTOR)}}


def worker_group(replicas: int = 1, hosts: int = 1) -> Manifest:
    return {
        "groupName": "tpu-v4-2x2x1",
        "replicas": replicas,
        "minReplicas": 0,
        "maxReplicas": 4,
        "numOfHosts": hosts,
        "rayStartParams": {},
        "template": pod_template(),
    }


def cluster_spec(replicas: int = 1, hosts: int = 1) -> Manifest:
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [{"name": "ray", "image": "ray:2.60"}]}}}
    return {"headGroupSpec": head, "workerGroupSpecs": [worker_group(replicas, hosts)]}


def service(replicas: int = 1, hosts: int = 1) -> Manifest:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "llama", "labels": {"app": "llama"}},
        "spec": {
            "serveConfigV2": "applications:\n- name: llm\n  import_path: apps.llm:build\n",
            "rayClusterConfig": cluster_spec(replicas, hosts),
        },
    }


def job(**spec: Any) -> Manifest:
    template = {"metadata": {}, "spec": {"containers": [{"name": "prepare", "image": "podslice"}]}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "prepare"},
        "spec": {"completions": 1, "parallelism": 1, "template": template} | spec,
    }


def all_of_it() -> list[Manifest]:
    return deepcopy([ACCOUNT, service(), MONITORING])
