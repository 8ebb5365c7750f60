"""A Ray cluster on Kubernetes in one process, second by second, around Ray's real autoscaler.

Real are the rendered worker groups, all of `ray.autoscaler.v2` with its KubeRay provider, and what a replica does while
it waits for a slice (apps.llm.slice_reservation). Pretended are the API server (a dict), the operator (KubeRay 1.7's
reconcileMultiHostWorkerGroup and its single-host sister, in operator.py), Pods that start and end after so many
seconds, and Ray's own books: nodes, and who has which chips.
"""

import copy
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._raylet import IMPLICIT_RESOURCE_PREFIX
from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
from ray.autoscaler.v2 import autoscaler as v2
from ray.autoscaler.v2.instance_manager import config as v2_config
from ray.autoscaler.v2.instance_manager.cloud_providers.kuberay import cloud_provider
from ray.core.generated import autoscaler_pb2 as states
from ray.core.generated.common_pb2 import LabelSelectorOperator, NodeDeathInfo
from ray.core.generated.gcs_pb2 import GcsNodeInfo

from apps.llm import slice_reservation
from apps.serving import private_ray
from kuberay.render import render
from ray_configs.cluster.workers import GROUP_LABEL, SLICES_KEPT, process_group_name
from ray_configs.llm import LLMConfig
from ray_configs.service import Service
from ray_configs.tpu import TpuSlice
from tests.kuberay.autoscaler.operator_of_kuberay import reconcile

AUTOSCALER_PERIOD_S = 5
ONE_A_NODE = f"{IMPLICIT_RESOURCE_PREFIX}llm:LLMServer"
"""How Serve says max_replicas_per_node=1 to Ray."""
POD_TYPE, SLICE, WORKER = "ray.io/tpu-pod-type", "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"


@dataclass
class Pod:
    name: str
    group: str
    replica: str
    """The operator's name of the slice that it is of: another one each time."""
    index: int
    host: int
    made: float
    terminating_since: float | None = None

    @property
    def slice_name(self) -> str:
        return f"{self.group}-{self.index}"


@dataclass
class Node:
    """A raylet, as GCS knows it."""

    id: bytes
    pod: Pod
    resources: dict[str, float]
    labels: dict[str, str]
    began: float
    ended: float | None = None
    given_back: bool = False
    idle_since: float = 0.0
    user: object = None
    """A wish or a replica that has its chips."""


@dataclass
class Wish:
    hosts: int
    chips: int
    pod_type: str
    state: str = "PENDING"


@dataclass
class Replica:
    """A process of Serve's, which waits for a CPU Pod, then for a slice."""

    slice: TpuSlice
    kept: bool
    node: Node | None = None
    waiting: slice_reservation.Waiting | None = None
    hosts: list[Node] = field(default_factory=list)

    @property
    def serves(self) -> bool:
        return bool(self.hosts)


class World:
    """See the module's head. `seconds` lets time pass; the rest looks, or breaks something.

    Args:
        begins: seconds since the autoscaler would have looked, of its period.
        autoscaler_env: False leaves the autoscaler's own limit of hosts asked for at once.
    """

    def __init__(
        self, service: Service, monkeypatch: pytest.MonkeyPatch, *, begins: int = 0, autoscaler_env: bool = True
    ):
        (manifest,) = (item for item in render(service) if item["kind"] == "RayService")
        spec = copy.deepcopy(manifest["spec"]["rayClusterConfig"])
        meta = {"name": "c", "namespace": "default", "resourceVersion": "1"}
        self.cluster: dict[str, Any] = {"metadata": meta, "spec": spec}
        self.groups = {group["groupName"]: group for group in spec["workerGroupSpecs"]}
        self.now = 1000.0 + begins
        self.start_s: dict[int, float] = {}
        """Seconds until the raylet of a slice's host has joined, by host; 20 where nothing is said. CPU Pods take 5."""
        self.grace_s = 3.0
        self.noticed_s = 10.0
        """Until GCS misses a raylet that was killed."""
        self.pods: dict[str, Pod] = {}
        self.nodes: list[Node] = []
        self.replicas: list[Replica] = []
        self.wishes: list[Wish] = []
        self.most: dict[str, int] = {}
        """The most `replicas` that each group was ever told to have."""
        self.thrown_away = 0
        """Pods that somebody deleted before Ray ran in them."""
        self._made = 0
        self._config: tuple[str, Any] = "", None
        self._patch(monkeypatch, autoscaler_env)
        head = Pod("head", "headgroup", "", 0, 0, self.now)
        self.pods["head"] = head
        self._autoscaler = v2.Autoscaler("session", self, self)

    def _patch(self, monkeypatch: pytest.MonkeyPatch, autoscaler_env: bool) -> None:
        env = {entry["name"]: entry["value"] for entry in self.cluster["spec"]["autoscalerOptions"]["env"]}
        limit = int(env["AUTOSCALER_MAX_CONCURRENT_LAUNCHES"]) if autoscaler_env else 10
        monkeypatch.setattr(v2_config, "AUTOSCALER_MAX_CONCURRENT_LAUNCHES", limit)
        monkeypatch.setattr(cloud_provider, "KubernetesHttpApiClient", lambda namespace: self)
        clock = SimpleNamespace(monotonic=lambda: self.now, time=lambda: self.now)
        monkeypatch.setattr(slice_reservation, "time", clock)
        monkeypatch.setattr(slice_reservation, "placement_group", self._wish)
        monkeypatch.setattr(slice_reservation, "placement_group_table", lambda wish: {"state": wish.state})
        monkeypatch.setattr(slice_reservation, "remove_placement_group", self._unwish)
        monkeypatch.setattr(private_ray, "free_resources", self._free)
        monkeypatch.setattr(private_ray, "draining_nodes", dict)
        monkeypatch.setattr(slice_reservation, "_take", self._take)
        monkeypatch.setattr(ray._private.worker.global_worker, "gcs_client", self, raising=False)

    # -- what a test does ---------------------------------------------------------------------------------------

    def replica(self, slice: str) -> Replica:
        """Serve starts one more."""
        wanted = LLMConfig(slice=slice).slice
        env = self.groups[process_group_name(wanted)]["template"]["spec"]["containers"][0]["env"]
        self.replicas.append(Replica(wanted, any(entry["name"] == SLICES_KEPT for entry in env)))
        return self.replicas[-1]

    def stop(self, replica: Replica) -> None:
        """Serve stops one."""
        self.replicas.remove(replica)
        self._let_go(replica)

    def lose(self, replica: Replica, host: int = 1) -> None:
        """The machine of one of its hosts is gone, and its Pod with it."""
        node = replica.hosts[host]
        del self.pods[node.pod.name]
        node.pod.terminating_since = self.now - self.grace_s - 1

    def seconds(self, count: int) -> None:
        for _ in range(count):
            self.now += 1
            for spec in self.groups.values():
                reconcile(spec, self.pods, self._new_pod, self._delete)
                self.most[spec["groupName"]] = max(self.most.get(spec["groupName"], 0), spec["replicas"])
            self._kubelet()
            self._ray()
            if self.now % AUTOSCALER_PERIOD_S == 0:
                assert self._autoscaler.update_autoscaling_state() is not None, "it raised; see the log"
                for subscriber in self._autoscaler._instance_manager._status_update_subscribers:
                    if isinstance(subscriber, v2.RayStopper):
                        subscriber._executor.submit(int).result()  # it drains nodes from a thread of its own

    def until(self, done: Any, limit: int = 2000) -> None:
        for _ in range(limit):
            if done():
                return
            self.seconds(1)
        raise AssertionError(f"not within {limit} s: {self}")

    def slices(self, group: str) -> set[str]:
        """Those there are now, by the operator's names."""
        return {pod.replica for pod in self.pods.values() if pod.group == group and pod.terminating_since is None}

    def __repr__(self) -> str:
        pods = {group: len([pod for pod in self.pods.values() if pod.group == group]) for group in self.groups}
        wanted = {group: spec["replicas"] for group, spec in self.groups.items()}
        serving = sum(replica.serves for replica in self.replicas)
        return f"at {self.now}: pods {pods}, replicas {wanted}; {serving} of Serve's {len(self.replicas)} serve"

    # -- Kubernetes -----------------------------------------------------------------------------------------------

    def get(self, path: str) -> dict[str, Any]:
        if path.startswith("rayclusters/"):
            return copy.deepcopy(self.cluster)
        items = []
        for pod in self.pods.values():
            meta: dict[str, Any] = {"name": pod.name}
            meta["labels"] = {"ray.io/node-type": "head" if pod.name == "head" else "worker", "ray.io/group": pod.group}
            if pod.terminating_since is not None:
                meta["deletionTimestamp"] = "now"
            items.append({"metadata": meta, "status": {"containerStatuses": [{"state": {"running": {}}}]}})
        return {"metadata": {"resourceVersion": "1"}, "items": items}

    def patch(self, path: str, payload: list[dict[str, Any]], **_: Any) -> dict[str, Any]:
        for change in payload:
            *way, last = change["path"].strip("/").split("/")
            place: Any = self.cluster
            for step in way:
                place = place[int(step)] if isinstance(place, list) else place[step]
            place[last] = change["value"]
        return self.cluster

    def _new_pod(self, group: str, replica: str | None, index: int, host: int) -> str:
        self._made += 1
        pod = Pod(f"{group}-{self._made}", group, replica or f"{group}-replica-{self._made}", index, host, self.now)
        self.pods[pod.name] = pod
        return pod.replica

    def _delete(self, pod: Pod) -> None:
        if pod.terminating_since is None:
            pod.terminating_since = self.now
            self.thrown_away += not any(node.pod is pod for node in self.nodes)

    def _kubelet(self) -> None:
        for pod in list(self.pods.values()):
            if pod.terminating_since is not None and self.now - pod.terminating_since >= self.grace_s:
                del self.pods[pod.name]
            elif self.now - pod.made == (self.start_s.get(pod.host, 20) if pod.group.startswith("tpu") else 5):
                self.nodes.append(self._join(pod))

    # -- Ray ------------------------------------------------------------------------------------------------------

    def refresh_cached_autoscaling_config(self) -> None:
        """The autoscaler reads the RayCluster anew each time."""

    def get_cached_autoscaling_config(self) -> v2_config.AutoscalingConfig:
        now = json.dumps(self.cluster)
        if self._config[0] != now:  # Ray checks it by a schema, which takes a while
            config = v2_config.AutoscalingConfig(_derive_autoscaling_config_from_ray_cr(json.loads(now)))
            self._config = now, config
        return self._config[1]

    def get_cluster_resource_state(self) -> bytes:
        reply = states.GetClusterResourceStateReply()
        state = reply.cluster_resource_state
        for node in self.nodes:
            there, idle = node.ended is None, self.now - node.idle_since
            status = "DEAD" if not there else "IDLE" if idle and self._idle(node) else "RUNNING"
            info = state.node_states.add(node_id=node.id, instance_id=node.pod.name, ray_node_type_name=node.pod.group)
            info.status = states.NodeStatus.Value(status)
            if there:
                info.total_resources.update(node.resources)
                info.available_resources.update(self._free()[node.id.hex()])
                info.idle_duration_ms = int(idle * 1000) if self._idle(node) else 0
            info.labels.update(node.labels)
        for replica in self.replicas:
            if replica.node is None:
                demand = state.pending_resource_requests.add(count=1)
                demand.request.resources_bundle.update({"CPU": 1, ONE_A_NODE: 1})
                self._select(demand.request, GROUP_LABEL, process_group_name(replica.slice))
        for number, wish in enumerate(self.wishes):
            if wish.state == "PENDING":
                gang = state.pending_gang_resource_requests.add(details=f"{number}:STRICT_SPREAD|PENDING")
                for requests in (gang.requests, gang.bundle_selectors.add().resource_requests):
                    for _ in range(wish.hosts):
                        bundle = requests.add()
                        bundle.resources_bundle["TPU"] = wish.chips
                        bundle.placement_constraints.add().anti_affinity.label_name = f"_PG_{number}"
                        self._select(bundle, POD_TYPE, wish.pod_type)
        return reply.SerializeToString()

    @staticmethod
    def _select(request: Any, label: str, value: str) -> None:
        constraint = request.label_selectors.add().label_constraints.add(label_key=label, label_values=[value])
        constraint.operator = LabelSelectorOperator.LABEL_OPERATOR_IN

    def drain_node(self, node_id: str, **_: Any) -> tuple[bool, str]:
        (node,) = (node for node in self.nodes if node.id.hex() == node_id)
        if node.user is not None or any(replica.node is node for replica in self.replicas):
            return False, "it is in use"
        node.ended, node.given_back = self.now, True
        return True, ""

    def drain_nodes(self, node_ids: list[bytes]) -> list[bytes]:
        for node in self.nodes:
            if node.id in node_ids:
                node.ended = self.now
        return node_ids

    def get_all_node_info(self) -> dict[int, GcsNodeInfo]:
        found = {}
        for number, node in enumerate(self.nodes):
            began = int(node.began * 1000)
            found[number] = info = GcsNodeInfo(node_id=node.id, labels=node.labels, start_time_ms=began)
            if node.ended is None:
                info.resources_total.update(node.resources)
            else:
                info.state, info.end_time_ms = GcsNodeInfo.DEAD, int(node.ended * 1000)
                info.death_info.reason = (
                    NodeDeathInfo.AUTOSCALER_DRAIN_IDLE if node.given_back else NodeDeathInfo.UNEXPECTED_TERMINATION
                )
        return found

    def _join(self, pod: Pod) -> Node:
        number = str(len(self.nodes)).encode().ljust(28, b"-")
        if pod.name == "head":
            return Node(number, pod, {"memory": 1.0, "node:__internal_head__": 1.0}, {}, self.now)
        described = self.get_cached_autoscaling_config().get_node_type_configs()[pod.group]
        labels, resources = dict(described.labels), {name: float(n) for name, n in described.resources.items() if n}
        if POD_TYPE in labels:
            labels |= {SLICE: pod.slice_name, WORKER: str(pod.host)}
            if pod.host:  # Ray's autoscaler believes that every host is the first one
                resources.pop(f"TPU-{labels[POD_TYPE]}-head")
        return Node(number, pod, resources, labels, self.now, idle_since=self.now)

    def _idle(self, node: Node) -> bool:
        return node.user is None and not any(replica.node is node for replica in self.replicas)

    def _free(self) -> dict[str, dict[str, float]]:
        free = {}
        for node in self._alive():
            left = dict(node.resources)
            if node.user is not None:
                left = {name: amount for name, amount in left.items() if not name.startswith("TPU")}
            if any(replica.node is node for replica in self.replicas):
                left |= {"CPU": left["CPU"] - 1, ONE_A_NODE: 0}
            free[node.id.hex()] = left
        return free

    def _alive(self) -> Iterator[Node]:
        return (node for node in self.nodes if node.ended is None)

    def _ray(self) -> None:
        for node in list(self._alive()):
            gone = node.pod.name not in self.pods
            since = node.pod.terminating_since
            if gone and (since is None or self.now - since >= self.grace_s + self.noticed_s):
                node.ended = self.now
                for replica in self.replicas:
                    if node in replica.hosts:
                        self._let_go(replica)  # and Serve starts it again
                    if replica.node is node:
                        self._let_go(replica)
                        replica.node = None
            if not self._idle(node):
                node.idle_since = self.now
        for replica in self.replicas:
            group = process_group_name(replica.slice)
            if replica.node is None:
                taken = [other.node for other in self.replicas]
                pods = [n for n in self._alive() if n.labels.get(GROUP_LABEL) == group and n not in taken]
                replica.node = pods[0] if pods else None
            elif not replica.serves:
                self._look(replica)
        for wish in self.wishes:
            # The worst that Ray could do: the first host of each slice, then the second ones.
            hosts = [node for node in self._alive() if node.labels.get(POD_TYPE) == wish.pod_type and node.user is None]
            hosts.sort(key=lambda node: (node.labels[WORKER], node.id))
            if wish.state == "PENDING" and len(hosts) >= wish.hosts:
                wish.state = "CREATED"
                for node in hosts[: wish.hosts]:
                    node.user = wish

    def _look(self, replica: Replica) -> None:
        os.environ[SLICES_KEPT] = "1" if replica.kept else "0"
        if replica.waiting is None:
            replica.waiting = slice_reservation.Waiting(replica.slice, "owner")
        taken = replica.waiting.look()
        if taken is not None:
            replica.hosts, replica.waiting = taken, replica.waiting.end()
            for node in taken:
                node.user = replica

    def _take(self, wanted: TpuSlice, name: str, owner: str) -> list[Node] | None:
        hosts = [node for node in self._alive() if node.labels.get(SLICE) == name and node.user is None]
        return sorted(hosts, key=lambda node: int(node.labels[WORKER])) if len(hosts) == wanted.hosts else None

    def _let_go(self, replica: Replica) -> None:
        for node in replica.hosts:
            node.user, node.idle_since = None, self.now
        if replica.waiting is not None:
            replica.waiting = replica.waiting.end()
        replica.hosts = []

    def _wish(self, bundles: list[dict[str, int]], bundle_label_selector: list[dict[str, str]], **_: Any) -> Wish:
        self.wishes.append(Wish(len(bundles), bundles[0]["TPU"], bundle_label_selector[0][POD_TYPE]))
        return self.wishes[-1]

    def _unwish(self, wish: Wish) -> None:
        self.wishes.remove(wish)
        for node in self.nodes:
            if node.user is wish:
                node.user = None
