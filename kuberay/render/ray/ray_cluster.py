"""RayCluster specs: the head, and a worker group for each kind of slice."""

from typing import Any

from kuberay.render.notes import noted
from kuberay.render.overlay import overlaid
from kuberay.render.ray.pods import (
    Config,
    api_keys,
    gigabytes,
    host_address,
    pod_template,
    port,
    quantities,
    secret_source,
    secrets,
    slice_ports,
    variables,
    worker_memory_gb,
    worker_quantities,
)
from kuberay.render.ray.serve_config import SERVE_PORT
from ray_configs.applications.ingress import DIRECT_INGRESS, HARD_STOP
from ray_configs.capacity import Capacity, Spot
from ray_configs.cloud import SecretKey
from ray_configs.cluster.workers import GROUP_LABEL, GROUPS_LABELLED, SLICES_KEPT, WorkerGroup
from ray_configs.service import GcsFaultTolerance, Service

IDLE_TIMEOUT_S = 300
"""Idle seconds before the autoscaler releases a slice; a new one takes minutes to start."""
NEVER_S = 10 * 365 * 86_400
"""Idle seconds of a group that the autoscaler must not scale down."""
HEADROOM = 2
"""Factor on a group's `maxReplicas`, for slices that the autoscaler counts twice. See _bounds."""
AUTOSCALER_ENV = [
    {
        "name": "RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S",
        noted(
            "value",
            "A week for a Pod to wait for capacity. After Ray's default of an hour the autoscaler would delete it, and "
            "it would lose its place in the queue.",
        ): str(7 * 86_400),
    },
    {
        "name": "AUTOSCALER_MAX_CONCURRENT_LAUNCHES",
        noted("value", "Hosts requested at once. With Ray's default, 10, a larger slice never starts."): "10000",
    },
]
HAPROXY_THREADS = "4"
REDIS_CA = "/etc/podslice/redis"
BEGIN_TO_DRAIN_S = 5
"""Seconds until a replica on a draining node or slice has been told to stop."""
SPOT_STOPS_S = 5
"""Seconds of a preempted machine's last ones in which Ray stops."""


def ray_cluster_spec(config: Config, head_image: str, elastic: bool) -> dict[str, Any]:
    """A RayClusterSpec: for a RayService or a RayJob."""
    spec: dict[str, Any] = {noted("rayVersion", "KubeRay chooses probes and autoscaler by it."): config.ray_version}
    if config.observability.dashboard_auth == "token":
        spec[noted("authOptions", "Whoever reaches an open dashboard can run code here. The token is in a Secret.")] = {
            "mode": "token"
        }
    if isinstance(config, Service) and config.gcs_fault_tolerance:
        spec["gcsFaultToleranceOptions"] = _gcs_fault_tolerance(config.gcs_fault_tolerance)
    spec["enableInTreeAutoscaling"] = elastic
    if elastic:
        spec["autoscalerOptions"] = {
            noted("version", "Not left to the default: v1 counts the hosts of a slice as single nodes."): "v2",
            "idleTimeoutSeconds": IDLE_TIMEOUT_S,
            "resources": quantities({"cpu": "500m", "memory": "1G"}),
            "env": AUTOSCALER_ENV,
        }
        if security := config.head.container.get("securityContext"):
            spec["autoscalerOptions"]["securityContext"] = security
    spec["headGroupSpec"] = _head(config, head_image)
    spec["workerGroupSpecs"] = [_worker_group(config, group, elastic) for group in config.worker_groups]
    return spec


def _gcs_fault_tolerance(redis: GcsFaultTolerance) -> dict[str, Any]:
    why = "Keeps the head's state. Each cluster has its own keys there, which are deleted with the cluster."
    options: dict[str, Any] = {noted("redisAddress", why): redis.redis_address}
    if user := redis.redis_user:
        options["redisUsername"] = {"value": user} if isinstance(user, str) else {"valueFrom": secret_source(user)}
    if password := redis.redis_password:
        options["redisPassword"] = {"valueFrom": secret_source(password)}
    return options


def _environment(config: Config, capacity: Capacity | None = None) -> list[dict[str, Any]]:
    """Environment of a Ray node's processes, the same on the head and on workers but for the time that they have to
    stop, by the `capacity` of their machines."""
    ingress: dict[str, str] = {}
    if isinstance(config, Service):
        ingress = DIRECT_INGRESS | {"RAY_SERVE_HAPROXY_NBTHREAD": HAPROXY_THREADS, GROUPS_LABELLED: "1"}
        # A node that is told to stop first drains its replicas and waits for them: give them their full time.
        drain_s = config.drain_s + BEGIN_TO_DRAIN_S
        node_s = min(drain_s, capacity.pods_s - SPOT_STOPS_S) if isinstance(capacity, Spot) else drain_s
        ingress["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] = str(node_s)
        if drain_s > int(ingress[HARD_STOP]):
            ingress[HARD_STOP] = str(drain_s)
    return variables(ingress | config.env)


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
        "env": _environment(config) + api_keys(config),
        "resources": quantities({"cpu": str(config.head.cpus), "memory": gigabytes(config.head.memory_gb)}),
    }
    account = config.head_account if isinstance(config, Service) else None
    template = pod_template(config, container, None, config.head.memory_gb, account)
    if isinstance(config, Service) and config.gcs_fault_tolerance and (ca := config.gcs_fault_tolerance.redis_ca):
        template = overlaid(template, *_redis_ca(ca))
    return {
        "rayStartParams": {noted("num-cpus", "No replica or task runs on the head, which controls the cluster."): "0"},
        "template": template,
    }


def _redis_ca(ca: SecretKey) -> tuple[dict[str, Any], dict[str, Any]]:
    """The volume and the variable by which the head checks the certificate of its Redis."""
    volume = {"name": "redis-ca", "secret": {"secretName": ca.secret, "items": [{"key": ca.key, "path": "ca.crt"}]}}
    mount = {"name": "redis-ca", "mountPath": REDIS_CA, "readOnly": True}
    variable = {"name": "RAY_REDIS_CA_CERT", "value": f"{REDIS_CA}/ca.crt"}
    return {"spec": {"volumes": [volume]}}, {"volumeMounts": [mount], "env": [variable]}


def _worker_group(config: Config, group: WorkerGroup, elastic: bool) -> dict[str, Any]:
    service = isinstance(config, Service)
    ports = [port("serve", SERVE_PORT)] if service else []
    container: dict[str, Any] = {"name": "ray-worker", "image": group.image}
    if group.hosts > 1:
        ports += slice_ports()
    if ports:
        container["ports"] = ports
    # No readinessProbe: KubeRay's own checks for a Serve proxy, which keeps hosts without one out of the Service. Such
    # hosts stay NotReady, which has no other effect.
    kept = any(other.name == group.leads and other.minimum == other.maximum for other in config.worker_groups)
    container["env"] = _environment(config, group.capacity) + secrets(config) + host_address(group.slice)
    container["env"] += variables({SLICES_KEPT: "1"} if kept else {})
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
    why = "The operator adds it on writing the object back; otherwise it would own the whole list of groups."
    spec[noted("scaleStrategy", why)] = {}
    if group.slice is not None:
        spec[noted("labels", "The same on all hosts; Ray adds each host's tpu-worker-id and tpu-slice-name.")] = (
            group.slice.ray_labels
        )
    elif service:
        spec[noted("labels", "Serve's processes select their group by it.")] = {GROUP_LABEL: group.name}
    spec["rayStartParams"] = {}
    if service and group.hosts > 1:
        why = "Chips only: replicas' processes run on separate CPU Pods, so that the loss of a slice affects no other."
        spec["rayStartParams"] = {noted("num-cpus", why): "0"}
    spec["template"] = pod_template(config, container, group, worker_memory_gb(group))
    return spec


def _bounds(group: WorkerGroup, elastic: bool) -> dict[str, Any]:
    """The group's `replicas`, `minReplicas` and `maxReplicas`.

    When a multi-host slice loses a host, the operator removes the others and creates a new slice when all are gone.
    Meanwhile the autoscaler counts too few hosts: below minReplicas it would add a slice. Then it may count too many,
    as Ray can still know hosts of the old slice: above maxReplicas it would remove hosts of the new slice, whereupon
    the operator deletes all of it. So neither bound may ever be reached. Serve bounds the demand, as it has at most
    max_replicas.
    """
    if not elastic or group.hosts == 1:
        return {"replicas": group.minimum, "minReplicas": group.minimum, "maxReplicas": group.maximum}
    bounds: dict[str, Any] = {
        "replicas": group.minimum,
        noted("minReplicas", "Their users keep them. Else autoscaler and operator both replace a lost slice."): 0,
        noted(
            "maxReplicas",
            f"Twice Serve's max_replicas, {group.maximum}: while a slice is replaced, the autoscaler may count it "
            "twice, and above maxReplicas it would remove hosts of the new one.",
        ): HEADROOM * group.maximum,
    }
    if group.minimum == group.maximum:
        bounds[noted("idleTimeoutSeconds", "Never scaled down, whether it is used or not.")] = NEVER_S
    return bounds
