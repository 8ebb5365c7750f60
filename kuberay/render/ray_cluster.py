"""RayCluster specs: the head, and a worker group for each kind of slice."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.pods import (
    Config,
    gigabytes,
    host_address,
    plain,
    pod_template,
    port,
    quantities,
    secret_source,
    secrets,
    slice_ports,
    worker_memory_gb,
    worker_quantities,
)
from kuberay.render.serve_config import SERVE_PORT
from ray_configs.ingress import DIRECT_INGRESS
from ray_configs.service import GcsFaultTolerance, Service
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
    if isinstance(config, Service) and config.gcs_fault_tolerance:
        spec["gcsFaultToleranceOptions"] = _gcs_fault_tolerance(config.gcs_fault_tolerance)
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


def _gcs_fault_tolerance(redis: GcsFaultTolerance) -> dict[str, Any]:
    why = "Keeps what the head knows. Each cluster has a part of it for itself, which goes with the cluster."
    options: dict[str, Any] = {noted("redisAddress", why): redis.redis_address}
    if password := redis.redis_password:
        options["redisPassword"] = {"valueFrom": secret_source(password)}
    return options


def _environment(config: Config) -> list[dict[str, Any]]:
    """What every Ray process must see alike, on the head and on workers."""
    ingress: dict[str, str] = {}
    if isinstance(config, Service):
        ingress = DIRECT_INGRESS | {"RAY_SERVE_HAPROXY_NBTHREAD": HAPROXY_THREADS}
    return plain(ingress | config.env)


def _head(config: Config, image: str) -> dict[str, Any]:
    container = {
        "name": "ray-head",
        "image": image,
        "ports": [
            port("gcs", 6379),
            port("dashboard", 8265),
            port("client", 10001),
            port("serve", SERVE_PORT),
        ],
        "env": _environment(config),
        "resources": quantities({"cpu": str(config.head.cpus), "memory": gigabytes(config.head.memory_gb)}),
    }
    account = config.head_account if isinstance(config, Service) else None
    return {
        "rayStartParams": {noted("num-cpus", "No replica or task runs beside the cluster's brain."): "0"},
        "template": pod_template(config, container, None, config.head.memory_gb, account),
    }


def _worker_group(config: Config, group: WorkerGroup) -> dict[str, Any]:
    ports = [port("serve", SERVE_PORT)] if isinstance(config, Service) else []
    container: dict[str, Any] = {"name": "ray-worker", "image": group.image}
    if group.hosts > 1:
        ports += slice_ports()
    if ports:
        container["ports"] = ports
    # No readinessProbe: KubeRay's own asks for a Serve proxy, and alone keeps hosts without one out of the Service.
    # Such hosts stay NotReady, which stops nothing else.
    container["env"] = _environment(config) + secrets(config) + host_address(group.slice)
    if not container["env"]:
        del container["env"]
    container["resources"] = quantities(worker_quantities(group))
    spec: dict[str, Any] = {"groupName": group.name}
    if group.slice is None:
        spec["numOfHosts"] = 1
    else:
        slice = group.slice
        why = f"{slice.topology} = {slice.chips} chips, {slice.chips_per_host} on each {slice.machine_type}."
        spec[noted("numOfHosts", why)] = slice.hosts
    spec |= {"replicas": group.minimum, "minReplicas": group.minimum, "maxReplicas": group.maximum}
    why = "The operator adds it when it writes the object back; missing here, it would own the whole list of groups."
    spec[noted("scaleStrategy", why)] = {}
    if group.slice is not None:
        spec[noted("labels", "Alike on all hosts; Ray adds each host's own tpu-worker-id and tpu-slice-name.")] = (
            group.slice.ray_labels
        )
    spec["rayStartParams"] = {}
    spec["template"] = pod_template(config, container, group, worker_memory_gb(group))
    return spec
