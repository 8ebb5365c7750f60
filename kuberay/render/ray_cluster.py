"""RayCluster specs: the head, and a worker group for each kind of slice."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.pods import (
    Config,
    host_address,
    plain,
    pod_template,
    quantities,
    raylet_probe,
    secrets,
    slice_ports,
    worker_quantities,
)
from ray_configs.ingress import DIRECT_INGRESS
from ray_configs.service import Service
from ray_configs.workers import WorkerGroup

IDLE_TIMEOUT_S = 300
"""Seconds without work before the autoscaler gives a slice back; another takes minutes to come."""
HAPROXY_THREADS = "4"


def ray_cluster_spec(config: Config, head_image: str, elastic: bool) -> dict[str, Any]:
    """A RayClusterSpec: for a RayService or a RayJob."""
    spec: dict[str, Any] = {
        noted("rayVersion", "KubeRay decides by it which probes and autoscaler the images can do."): config.ray_version
    }
    if config.observability.dashboard_auth == "token":
        spec[noted("authOptions", "Whoever reaches an open dashboard can run code here. The token is in a Secret.")] = {
            "mode": "token"
        }
    spec["enableInTreeAutoscaling"] = elastic
    if elastic:
        spec["autoscalerOptions"] = {
            noted("version", "Said, not left to default: v1 counts the hosts of a slice as single nodes."): "v2",
            "idleTimeoutSeconds": IDLE_TIMEOUT_S,
            "resources": quantities({"cpu": "500m", "memory": "1G"}),
        }
    spec["headGroupSpec"] = _head(config, head_image)
    spec["workerGroupSpecs"] = [_worker_group(config, group) for group in config.worker_groups]
    return spec


def _environment(config: Config) -> list[dict[str, Any]]:
    """What every Ray process must see alike, on the head and on workers."""
    ingress: dict[str, str] = {}
    if isinstance(config, Service):
        ingress = DIRECT_INGRESS | {"RAY_SERVE_HAPROXY_NBTHREAD": HAPROXY_THREADS}
    return plain(ingress | config.env)


def _head(config: Config, image: str) -> dict[str, Any]:
    memory = f"{config.head.memory_gb}G"
    container = {
        "name": "ray-head",
        "image": image,
        "ports": [
            {"containerPort": 6379, "name": "gcs"},
            {"containerPort": 8265, "name": "dashboard"},
            {"containerPort": 10001, "name": "client"},
            {"containerPort": 8000, "name": "serve"},
        ],
        "env": _environment(config),
        "resources": quantities({"cpu": str(config.head.cpus), "memory": memory}),
    }
    return {
        "rayStartParams": {noted("num-cpus", "No replica or task runs beside the cluster's brain."): "0"},
        "template": pod_template(config, container, None, memory),
    }


def _worker_group(config: Config, group: WorkerGroup) -> dict[str, Any]:
    ports = [{"containerPort": 8000, "name": "serve"}] if isinstance(config, Service) else []
    container: dict[str, Any] = {"name": "ray-worker", "image": group.image}
    if group.hosts > 1:
        ports += slice_ports()
    if ports:
        container["ports"] = ports
    if group.hosts > 1 and isinstance(config, Service):
        container[
            noted(
                "readinessProbe",
                "Hosts without a replica have no Serve proxy; KubeRay's own probe asks for one and would call them "
                "not ready for ever (kuberay#2552).",
            )
        ] = raylet_probe()
    requests = worker_quantities(group)
    container["env"] = _environment(config) + secrets(config) + host_address(group.slice)
    if not container["env"]:
        del container["env"]
    container["resources"] = quantities(requests)
    spec: dict[str, Any] = {"groupName": group.name}
    if group.slice is None:
        spec["numOfHosts"] = 1
    else:
        slice = group.slice
        why = f"{slice.topology} = {slice.chips} chips, {slice.chips_per_host} on each {slice.machine_type}."
        spec[noted("numOfHosts", why)] = slice.hosts
    spec |= {"replicas": group.minimum, "minReplicas": group.minimum, "maxReplicas": group.maximum}
    if group.slice is not None:
        spec[noted("labels", "Alike on all hosts; Ray adds each host's own tpu-worker-id and tpu-slice-name.")] = (
            group.slice.ray_labels
        )
    spec["rayStartParams"] = {}
    spec["template"] = pod_template(config, container, group, requests["memory"])
    return spec
