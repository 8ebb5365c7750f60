"""RayCluster specs: the head, and a worker group for each kind of slice."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.ray.pods import (
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
from kuberay.render.ray.serve_config import SERVE_PORT
from ray_configs.applications.ingress import DIRECT_INGRESS, HARD_STOP
from ray_configs.cluster.workers import GROUP_LABEL, GROUPS_LABELLED, SLICES_KEPT, WorkerGroup
from ray_configs.service import GcsFaultTolerance, Service

IDLE_TIMEOUT_S = 300
"""Idle seconds before the autoscaler releases a slice; a new one takes minutes to come."""
NEVER_S = 10 * 365 * 86_400
"""Idle seconds of a group that the autoscaler must not scale down."""
HEADROOM = 2
"""Factor on a group's `maxReplicas`, for slices that the autoscaler counts twice. See _bounds."""
AUTOSCALER_ENV = [
    {
        "name": "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S",
        noted(
            "value",
            "A week for a Pod to wait for capacity. After Ray's hour the autoscaler would throw it away, and its place "
            "in the queue with it.",
        ): str(7 * 86_400),
    },
    {
        "name": "AUTOSCALER_MAX_CONCURRENT_LAUNCHES",
        noted("value", "Hosts asked for at once. Ray's 10 are part of a large slice, which is never made."): "10000",
    },
]
HAPROXY_THREADS = "4"
BEGIN_TO_DRAIN_S = 5
"""Seconds until a replica on a draining node, or whose slice is draining, has been told to stop."""


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
            "env": AUTOSCALER_ENV,
        }
    spec["headGroupSpec"] = _head(config, head_image)
    spec["workerGroupSpecs"] = [_worker_group(config, group, elastic) for group in config.worker_groups]
    return spec


def _gcs_fault_tolerance(redis: GcsFaultTolerance) -> dict[str, Any]:
    why = "Keeps what the head knows. Each cluster has a part of it for itself, which goes with the cluster."
    options: dict[str, Any] = {noted("redisAddress", why): redis.redis_address}
    if password := redis.redis_password:
        options["redisPassword"] = {"valueFrom": secret_source(password)}
    return options


def _environment(config: Config) -> list[dict[str, Any]]:
    """Environment that must be the same in every Ray process, on the head and on workers."""
    ingress: dict[str, str] = {}
    if isinstance(config, Service):
        ingress = DIRECT_INGRESS | {"RAY_SERVE_HAPROXY_NBTHREAD": HAPROXY_THREADS}
        if config.spans_hosts:
            ingress[GROUPS_LABELLED] = "1"
        # Told to stop, a node first hands its replicas over, and waits for them: they, too, are given their full time.
        drain_s = config.drain_s + BEGIN_TO_DRAIN_S
        ingress["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = str(drain_s)
        if drain_s > int(ingress[HARD_STOP]):
            ingress[HARD_STOP] = str(drain_s)
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


def _worker_group(config: Config, group: WorkerGroup, elastic: bool) -> dict[str, Any]:
    service = isinstance(config, Service)
    ports = [port("serve", SERVE_PORT)] if service else []
    container: dict[str, Any] = {"name": "ray-worker", "image": group.image}
    if group.hosts > 1:
        ports += slice_ports()
    if ports:
        container["ports"] = ports
    # No readinessProbe: KubeRay's own asks for a Serve proxy, and alone keeps hosts without one out of the Service.
    # Such hosts stay NotReady, which stops nothing else.
    kept = any(other.name == group.leads and other.minimum == other.maximum for other in config.worker_groups)
    container["env"] = _environment(config) + secrets(config) + host_address(group.slice)
    container["env"] += plain({SLICES_KEPT: "1"} if kept else {})
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
    spec |= _bounds(group, elastic)
    why = "The operator adds it when it writes the object back; missing here, it would own the whole list of groups."
    spec[noted("scaleStrategy", why)] = {}
    if group.slice is not None:
        spec[noted("labels", "Alike on all hosts; Ray adds each host's own tpu-worker-id and tpu-slice-name.")] = (
            group.slice.ray_labels
        )
    elif isinstance(config, Service) and config.spans_hosts:
        spec[noted("labels", "Serve's processes ask for their group by it.")] = {GROUP_LABEL: group.name}
    spec["rayStartParams"] = {}
    if service and group.hosts > 1:
        why = "Chips only: replicas' processes run on CPU Pods of their own, so that no slice's end is another's."
        spec["rayStartParams"] = {noted("num-cpus", why): "0"}
    spec["template"] = pod_template(config, container, group, worker_memory_gb(group))
    return spec


def _bounds(group: WorkerGroup, elastic: bool) -> dict[str, Any]:
    """Replicas of the group: now, at least and at most.

    When a slice of several hosts loses one, the operator removes the others and makes a new slice when all are gone.
    Meanwhile the autoscaler counts fewer hosts than there will be: above minReplicas it would add a slice. Then it may
    count more, as hosts of the old slice can still be known to Ray: above maxReplicas it would take hosts from the new
    slice, whereupon the operator throws all of it away. So neither bound may ever be reached. What is asked for is
    bounded by Serve, which has no more replicas than its own max_replicas.
    """
    if not elastic or group.hosts == 1:
        return {"replicas": group.minimum, "minReplicas": group.minimum, "maxReplicas": group.maximum}
    bounds: dict[str, Any] = {
        "replicas": group.minimum,
        noted("minReplicas", "Kept by their users. The autoscaler would replace a lost slice beside the operator."): 0,
        noted(
            "maxReplicas",
            f"{group.maximum} by Serve's max_replicas, twice that here: while a slice is replaced, the autoscaler may "
            "count it twice, and above this it would take the new one apart.",
        ): HEADROOM * group.maximum,
    }
    if group.minimum == group.maximum:
        bounds[noted("idleTimeoutSeconds", "Never: it is there whether it is used or not.")] = NEVER_S
    return bounds
