"""Every use of Ray's private API in this project, but for `machines.autoscaler`, which no service runs.

Each function has a test that passes with the minor version that pyproject.toml bounds Ray to. Raise the bound when the
tests pass with a newer one.
"""

import csv
import math
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import psutil
import ray
import ray._private.state
import ray._private.worker
from ray import PlacementGroupID, serve
from ray._private import ray_constants
from ray.core.generated import autoscaler_pb2, common_pb2, gcs_pb2
from ray.serve.context import _get_global_client, _get_internal_replica_context
from ray.serve.schema import LoggingConfig, ProxyStatus
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

CALL_S = 30
KEPT = b"podslice"
PROXIES_S = 600
"""A proxy is a Python process: three at once took 53 s to start on two cores with three other programs."""
TOO_LATE = "The current node timed out during startup"
# Protobuf makes these at import, where no type checker sees them.
IDLE: Any = vars(common_pb2)["NodeDeathInfo"].AUTOSCALER_DRAIN_IDLE
PREEMPTION: Any = vars(autoscaler_pb2)["DrainNodeReason"].DRAIN_NODE_REASON_PREEMPTION
ALIVE: Any = vars(gcs_pb2)["GcsNodeInfo"].ALIVE


@dataclass(frozen=True)
class RayNode:
    """A node of the Ray cluster, alive or not."""

    id: str
    labels: dict[str, str]
    tpus: float
    """Its chips; 0 if it is dead."""
    given_back: bool
    """Whether the autoscaler removed it because it was idle."""
    began: float
    """Seconds since 1970."""
    ended: float
    """Infinite while it is alive."""

    @property
    def alive(self) -> bool:
        return self.ended == math.inf


def _worker() -> Any:
    return ray._private.worker.global_worker


def _serve() -> Any:
    return _get_global_client()


def nodes() -> Iterator[RayNode]:
    """All nodes of the cluster, including the dead ones that Ray remembers. `ray.nodes()` lacks the cause of death."""
    for node in _worker().gcs_client.get_all_node_info().values():
        yield RayNode(
            node.node_id.hex(),
            dict(node.labels),
            node.resources_total.get("TPU", 0),
            node.death_info.reason == IDLE,
            node.start_time_ms / 1000,
            math.inf if node.state == ALIVE else node.end_time_ms / 1000,
        )


def own_node() -> str:
    """The id of the node that this process runs on."""
    return ray.get_runtime_context().get_node_id()


def draining_nodes() -> set[str]:
    """Ids of nodes that are being drained."""
    return set(ray._private.state.state.get_draining_nodes())


def drain(node: str, why: str, within_s: float | None = None) -> None:
    """Have a node that is about to end drained, as `ray start` does on SIGTERM.

    Args:
        within_s: when it ends; None: as long as `ray start` of this node waits.

    Raises:
        RuntimeError: Ray refuses it.
    """
    seconds = ray_constants.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S if within_s is None else within_s
    ends = int(1000 * (time.time() + seconds))
    accepted, reason = _worker().gcs_client.drain_node(node, PREEMPTION, why, ends, timeout=CALL_S)
    if not accepted:
        raise RuntimeError(f"Ray does not drain node {node}: {reason}")


def free_resources() -> dict[str, dict[str, float]]:
    """Free resources of each live node, by its id; a resource that is used up is absent."""
    return ray._private.state.available_resources_per_node()


def cluster_id() -> str:
    """The cluster's id; a restarted cluster has a new one."""
    return _worker().gcs_client.cluster_id.hex()


def keep(name: str, value: bytes) -> None:
    """Keep a value for as long as the cluster's GCS keeps its own. Empty: there is none."""
    _worker().gcs_client.internal_kv_put(name.encode(), value, True, KEPT, timeout=CALL_S)


def kept(name: str) -> bytes:
    """What was kept last by this name, or nothing."""
    return _worker().gcs_client.internal_kv_get(name.encode(), KEPT, timeout=CALL_S) or b""


def remove_placement_groups(prefix: str) -> None:
    """Remove the groups whose name starts with `prefix`. (Ray finds other processes' groups only by full name.)"""
    for group in placement_group_table().values():
        if group["name"].startswith(prefix) and group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group["placement_group_id"])))


def applications() -> dict[str, Any]:
    """Serve's applications by name, in the format of `serve status` and the dashboard's REST API."""
    return _serve().get_serve_details()["applications"]


class Given(NamedTuple):
    """What a deployment was given, which Serve's status lacks."""

    version: str
    arguments: tuple[Any, ...]
    """What it was bound to."""


def given() -> dict[str, Given]:
    """What each application's deployment was given; its last one's, where it has several."""
    controller = _serve()._controller
    infos = ray.get(controller.list_deployments_internal.remote(), timeout=CALL_S)
    return {
        id.app_name: Given(info.version or "", tuple(info.replica_config.init_args)) for id, (info, _) in infos.items()
    }


@dataclass(frozen=True)
class Ingress:
    """The deployment of an application that answers its requests."""

    deployment: str
    route: str
    arguments: tuple[Any, ...]
    """What it was bound to."""


def ingresses() -> dict[str, Ingress]:
    """By application."""
    infos = ray.get(_serve()._controller.list_deployments_internal.remote(), timeout=CALL_S)
    return {
        id.app_name: Ingress(id.name, route, tuple(replica.init_args))
        for id, (info, route) in infos.items()
        if route is not None and (replica := info.replica_config)
    }


def in_a_replica() -> bool:
    """Whether this process is a replica of Serve's, and not one of its proxies."""
    return _get_internal_replica_context() is not None


def with_version(deployment: Any, version: str, **options: Any) -> serve.Deployment:
    """The deployment with options and a version. Redeploying the same version keeps the replicas."""
    return deployment.options(_internal=True, version=version, **options)


def delete_application(name: str) -> None:
    """As `serve.delete`, without waiting for its replicas to finish their requests."""
    serve.delete(name, _blocking=False)


def logging_config() -> LoggingConfig:
    """How the service's config lets Serve log; `serve.run` takes its own defaults for an application without one."""
    config, _ = ray.get(_serve()._controller._get_logging_config.remote(), timeout=CALL_S)
    return config


def drain_timeouts() -> dict[str, float]:
    """Of the applications that answer HTTP and have running replicas: how long each may take to finish its requests, in
    seconds."""
    return {
        name: max(running)
        for name, app in applications().items()
        if app["route_prefix"] is not None
        and (
            running := [
                deployment["deployment_config"]["graceful_shutdown_timeout_s"]
                for deployment in app["deployments"].values()
                if any(replica["state"] == "RUNNING" for replica in deployment["replicas"])
            ]
        )
    }


def open_at_proxies() -> int:
    """Requests whose answers have not left the proxies of all nodes. 0 if a proxy does not say."""
    proxies = ray.get(_serve()._controller.get_proxies.remote(), timeout=CALL_S)
    asked = [proxy.__ray_call__.remote(_open_at) for proxy in proxies.values()]
    answered, _ = ray.wait(asked, num_returns=len(asked), timeout=CALL_S) if asked else ([], [])
    found = 0
    for answer in answered:
        with suppress(ray.exceptions.RayError):
            found += ray.get(answer)
    return found


def _open_at(proxy: Any) -> int:
    """Runs in a proxy's process."""
    if not hasattr(proxy, "_haproxy"):
        return sum(each._ongoing_requests for each in (proxy.http_proxy, proxy.grpc_proxy) if each is not None)
    with socket.socket(socket.AF_UNIX) as admin:
        admin.settimeout(CALL_S / 2)
        admin.connect(proxy._haproxy.cfg.socket_path)
        admin.sendall(b"show stat\n")
        table = admin.makefile().read().removeprefix("# ")
    rows = csv.DictReader(table.splitlines())
    now = sum(int(row["scur"]) for row in rows if row["svname"] == "BACKEND")
    # A former HAProxy, which a newer one has replaced, ends with its last answer.
    return now + len([process for process in proxy._haproxy._old_procs if process.returncode is None])


def start_ray(**options: Any) -> Any:
    """`ray.init`, but up to three times: Ray allows a node 30 s to start, which a busy machine may exceed."""
    for _ in range(2):
        others = set(psutil.Process().children())
        try:
            return ray.init(**options)
        except Exception as error:
            if TOO_LATE not in str(error):
                raise
            ray.shutdown()
            for late in set(psutil.Process().children()) - others:  # Ray leaves them until this process ends
                with suppress(psutil.NoSuchProcess):
                    late.kill()
                    late.wait()
    return ray.init(**options)


def start_serve(**options: Any) -> None:
    """`serve.start`, but with PROXIES_S for the proxies, for which Serve allows a minute.

    Raises whatever `serve.start` does, and TimeoutError.
    """
    until = time.monotonic() + PROXIES_S
    try:
        serve.start(**options)
    except TimeoutError:  # the controller goes on starting them
        while any(proxy != ProxyStatus.HEALTHY for proxy in serve.status().proxies.values()):
            if time.monotonic() > until:
                raise
            time.sleep(0.5)


def controller_runs() -> bool:
    """Whether applications can be deployed. `serve.start` returns only once the proxies run too."""
    return _get_global_client(raise_if_no_controller_running=False) is not None


def http_port() -> int:
    """The port of Serve's HTTP proxies."""
    return _serve().http_config.port


def http_host() -> str:
    """The address that Serve's HTTP proxies and replicas listen on."""
    return _serve().http_config.host or ""


def logs() -> str:
    """The folder where all processes of the Ray node write their logs."""
    return _worker().node.get_logs_dir_path()


def ended_processes() -> list[str]:
    """Those that `ray.init` started, and no cluster lives without, that have ended, as `gcs_server (status -9)`."""
    ended = dict(_worker().node.dead_processes())
    return [f"{kind} (status {ended[kind].poll()})" for kind in ("gcs_server", "raylet") if kind in ended]


def joined() -> bool:
    """Whether `ray.init` joined a running cluster, instead of starting one that ends with this process."""
    return not _worker().node.head
