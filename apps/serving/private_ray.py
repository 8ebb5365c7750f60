"""Everything that this project uses of Ray's private API.

Each function has a test, which ran with the minor version that pyproject.toml bounds Ray to: raise the bound when the
tests pass with a newer one.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import ray
import ray._private.state
import ray._private.worker
from ray import PlacementGroupID, serve
from ray.core.generated.common_pb2 import NodeDeathInfo
from ray.core.generated.gcs_pb2 import GcsNodeInfo
from ray.serve.context import _get_global_client
from ray.util.placement_group import PlacementGroup, placement_group_table, remove_placement_group

CALL_S = 30


@dataclass(frozen=True)
class RayNode:
    """A node of the Ray cluster, alive or not."""

    id: str
    labels: dict[str, str]
    tpus: float
    """Chips that it has; 0 of a dead one."""
    given_back: bool
    """Nobody needed it, and the autoscaler took it away."""
    began: float
    """Seconds since 1970."""
    ended: float
    """Infinite while it is alive."""

    @property
    def alive(self) -> bool:
        return self.ended == math.inf


def nodes() -> Iterator[RayNode]:
    """All nodes of the cluster, also dead ones, as far as Ray remembers them. (`ray.nodes()` does not tell why.)"""
    for node in ray._private.worker.global_worker.gcs_client.get_all_node_info().values():
        yield RayNode(
            node.node_id.hex(),
            dict(node.labels),
            node.resources_total.get("TPU", 0),
            node.death_info.reason == NodeDeathInfo.AUTOSCALER_DRAIN_IDLE,
            node.start_time_ms / 1000,
            math.inf if node.state == GcsNodeInfo.ALIVE else node.end_time_ms / 1000,
        )


def draining_nodes() -> set[str]:
    """Ids of nodes that are being drained."""
    return set(ray._private.state.state.get_draining_nodes())


def free_resources() -> dict[str, dict[str, float]]:
    """What each living node has left, by its id; a resource that is used up is absent."""
    return ray._private.state.available_resources_per_node()


def cluster_id() -> str:
    """A cluster that was started anew has another."""
    return ray._private.worker.global_worker.gcs_client.cluster_id.hex()


def remove_placement_groups(prefix: str) -> None:
    """Those whose name begins so. (Ray gives no handle to a group of another process but by its whole name.)"""
    for group in placement_group_table().values():
        if group["name"].startswith(prefix) and group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group["placement_group_id"])))


def applications() -> dict[str, Any]:
    """Serve's applications by name, as `serve status` and the dashboard's REST API print them."""
    return _get_global_client().get_serve_details()["applications"]


def versions() -> dict[str, str]:
    """The version that each application's deployment was given. Serve's status does not tell it."""
    controller = _get_global_client()._controller
    infos = ray.get(controller.list_deployments_internal.remote(), timeout=CALL_S)
    return {id.app_name: info.version or "" for id, (info, _) in infos.items()}


def with_version(deployment: serve.Deployment, version: str, **options: Any) -> serve.Deployment:
    """With options and a version: deployed again with the same one, its replicas stay, whatever else is equal."""
    return deployment.options(_internal=True, version=version, **options)


def delete_application(name: str) -> None:
    """As `serve.delete`, without waiting for its replicas to finish what they have."""
    serve.delete(name, _blocking=False)


def controller_runs() -> bool:
    """Whether applications can be deployed; `serve.start` returns only when the proxies run too."""
    return _get_global_client(raise_if_no_controller_running=False) is not None


def http_port() -> int:
    """The port of Serve's HTTP proxies."""
    return _get_global_client().http_config.port


def logs() -> str:
    """The folder in which all processes of the Ray node write their logs."""
    return ray._private.worker.global_worker.node.get_logs_dir_path()


def joined() -> bool:
    """Whether `ray.init` found a cluster that ran already, instead of starting one that ends with this process."""
    return not ray._private.worker.global_worker.node.head
