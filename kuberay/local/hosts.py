"""The hosts of a RayService, as KubeRay, GKE's device plugin and the TPU webhook would present them to Ray.

Everything comes from the rendered object; no second table could contradict it. What KubeRay and the TPU webhook add
(parameters of `ray start`, variables) is tested against recorded Pods in tests/kubernetes/recorded; TPU_TOPOLOGY and
TPU_ACCELERATOR_TYPE come from the device plugin.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from kuberay.local import LocalError
from kuberay.render.ray.ray_cluster import HEADROOM
from ray_configs.cluster.labels import (
    ACCELERATOR_TYPE,
    NODE_GROUP,
    TPU,
    TPU_POD_TYPE,
    TPU_SLICE_NAME,
    TPU_TOPOLOGY,
    TPU_WORKER_ID,
)

HEAD_GROUP = "headgroup"
HOST_LABEL = "podslice/host"
"""Ray label with a host's name, for this machine alone. Ray's node name cannot say it: Serve hands node names to
HAProxy as addresses, so each host's is its address, as on GKE."""
FROM_OBJECTS = {"secretKeyRef", "configMapKeyRef"}
"""Sources of variables that are objects of the cluster."""
KUBERNETES_GRACE_S = 30
"""Kubernetes' default between a Pod's notice and its end."""
GCS_PORT = 6379
"""KubeRay's. Here all hosts share one machine, so raylet.py replaces it by a free port."""


@dataclass(frozen=True)
class Host:
    """One Pod: its parameters of `ray start` and its container's environment."""

    name: str
    """`tpu-v5e-4x8-1-3`, the webhook's name: group, slice, host."""
    group: str
    cpus: int
    memory: int
    """Bytes that Ray counts; nothing is reserved on this machine."""
    chips: int
    labels: Mapping[str, str]
    """The group's labels, which KubeRay passes on the command line."""
    env: Mapping[str, str]

    @property
    def seen_labels(self) -> dict[str, str]:
        """All labels that Ray must show for it, except node ids: the group's, and those that Ray derives from env."""
        seen = dict(self.labels) | {NODE_GROUP: self.env["RAY_NODE_TYPE_NAME"]}
        if self.chips:
            seen |= {TPU_SLICE_NAME: self.env["TPU_NAME"], TPU_WORKER_ID: self.env["TPU_WORKER_ID"]}
        return seen

    @property
    def seen_resources(self) -> dict[str, float]:
        """All resources that Ray must show for it, except the address and the object store that every node has."""
        seen = {"memory": float(self.memory)} | ({"CPU": float(self.cpus)} if self.cpus else {})
        if self.chips:
            seen |= {"TPU": float(self.chips), self.env["TPU_NAME"]: 1.0}
            seen[f"accelerator_type:{self.labels[ACCELERATOR_TYPE]}"] = 1.0
            if self.env["TPU_WORKER_ID"] == "0":
                seen[f"TPU-{self.labels[TPU_POD_TYPE]}-head"] = 1.0
        return seen


@dataclass(frozen=True)
class LocalSlice:
    """One replica of a worker group, whose hosts KubeRay creates and replaces together. A CPU worker has one host."""

    name: str
    """Its TPU_NAME: `tpu-v5e-4x8-1`."""
    hosts: tuple[Host, ...]
    grace_s: float
    """What its Pods have between the notice that they end and their end."""

    @property
    def group(self) -> str:
        return self.hosts[0].group

    @property
    def chips(self) -> int:
        """0: it is a CPU worker."""
        return sum(host.chips for host in self.hosts)

    @property
    def kind(self) -> str:
        """Its name in messages."""
        return "slice" if self.chips else "CPU worker"


@dataclass(frozen=True)
class HostsPlan:
    """The hosts and slices of a Ray cluster to start."""

    name: str
    head: Host
    slices: tuple[LocalSlice, ...]
    token: bool
    """Whether KubeRay would turn on token authentication."""
    serve_config: str
    """serveConfigV2, verbatim."""
    absent: tuple[str, ...]
    """Variables that the manifest takes from Secrets and ConfigMaps, and this machine's environment lacks."""
    ray_cluster: Mapping[str, Any] | None
    """The RayCluster, if Ray's autoscaler adds and removes slices."""
    slice_of: Callable[[str, int], LocalSlice]
    """Another slice of a group, by the group's name and the slice's number."""

    @property
    def hosts(self) -> tuple[Host, ...]:
        return (self.head, *(host for slice in self.slices for host in slice.hosts))


def find_host(slices: Sequence[LocalSlice], wanted: str) -> tuple[int, Host]:
    """The index of the slice, and the host, that `1:3` or `tpu-v5e-4x8-1:3` names. Raises LocalError."""
    name, _, number = wanted.rpartition(":")
    names = [slice.name for slice in slices]
    place = int(name) if name.isdigit() else names.index(name) if name in names else -1
    if not number.isdigit() or not 0 <= place < len(names):
        choices = ", ".join(f"{i}: {name}" for i, name in enumerate(names))
        raise LocalError(f"{wanted!r} must be SLICE:HOST, such as 0:0; there are {choices or 'none'}")
    hosts = slices[place].hosts
    if int(number) >= len(hosts):
        raise LocalError(f"{names[place]} has hosts 0 to {len(hosts) - 1}, no host {number}")
    return place, hosts[int(number)]


def plan_of(
    ray_service: Mapping[str, Any],
    *,
    address: str,
    environment: Mapping[str, str] | None = None,
    replicas: int | None = None,
    autoscaled: bool = False,
    idle_s: float | None = None,
) -> HostsPlan:
    """The cluster of a rendered RayService.

    Args:
        ray_service: the object, as `render` makes it.
        address: IP address of all hosts.
        environment: values, by name, of variables that the manifest takes from Secrets.
        replicas: slices of each elastic group, clamped to its bounds; None: the manifest's initial number.
        autoscaled: Ray's autoscaler adds and removes slices, so an elastic group may begin with none.
        idle_s: how long it leaves a slice idle; None: as the manifest says.

    Raises:
        LocalError: autoscaled, but no group scales.
    """
    spec = ray_service["spec"]["rayClusterConfig"]
    secrets = environment or {}
    reader = _Reader(ray_service["metadata"], spec["enableInTreeAutoscaling"], address, secrets)
    head, groups = spec["headGroupSpec"], spec["workerGroupSpecs"]
    entries = (entry for pod in (head, *groups) for entry in _container(pod).get("env", ()))
    taken = {entry["name"] for entry in entries if FROM_OBJECTS & set(entry.get("valueFrom", ()))}
    if autoscaled and not reader.elastic:
        raise LocalError(f"nothing of {reader.name} scales: set max_replicas above min_replicas")
    counts = [(group, _count(group, replicas, reader.elastic, 0 if autoscaled else 1)) for group in groups]
    by_name = {group["groupName"]: group for group in groups}
    return HostsPlan(
        name=reader.name,
        head=reader.head(head),
        slices=tuple(reader.slice(group, i) for group, count in counts for i in range(count)),
        token=spec.get("authOptions", {}).get("mode") == "token",
        serve_config=ray_service["spec"]["serveConfigV2"],
        absent=tuple(sorted(taken - secrets.keys())),
        ray_cluster=reader.ray_cluster(spec, counts, idle_s) if autoscaled else None,
        slice_of=lambda group, number: reader.slice(by_name[group], number),
    )


def _count(group: Mapping[str, Any], wanted: int | None, elastic: bool, least: int) -> int:
    """Slices to start. `least`: 1 where there is no autoscaler to add the first."""
    headroom = HEADROOM if elastic and group["numOfHosts"] > 1 else 1
    least, most = max(least, group["replicas"]), max(1, group["maxReplicas"] // headroom)
    return max(least, min(most, wanted if wanted is not None else least))


def _container(group: Mapping[str, Any]) -> Mapping[str, Any]:
    """The container that runs Ray in the Pods of a group, or of the head."""
    return group["template"]["spec"]["containers"][0]


class _Reader:
    """Builds the hosts from a RayService's Pod templates."""

    def __init__(self, metadata: Mapping[str, Any], elastic: bool, address: str, secrets: Mapping[str, str]):
        self.name, self.elastic = metadata["name"], elastic
        self._namespace, self._address, self._secrets = metadata.get("namespace", "default"), address, secrets

    def head(self, spec: Mapping[str, Any]) -> Host:
        more = {"RAY_enable_autoscaler_v2": "true"} if self.elastic else {}
        more["RAY_USAGE_STATS_EXTRA_TAGS"] = "kuberay_crd=RayService"
        return self._host("head", HEAD_GROUP, spec, more)

    def ray_cluster(
        self, spec: Mapping[str, Any], counts: Iterable[tuple[Mapping[str, Any], int]], idle_s: float | None
    ) -> dict[str, Any]:
        """The RayCluster that KubeRay makes, with these numbers of slices."""
        changed = {"workerGroupSpecs": [{**group, "replicas": count} for group, count in counts]}
        if idle_s is not None:
            changed["autoscalerOptions"] = spec["autoscalerOptions"] | {"idleTimeoutSeconds": idle_s}
        return {"metadata": {"name": self.name, "namespace": self._namespace}, "spec": {**spec, **changed}}

    def slice(self, group: Mapping[str, Any], replica: int) -> LocalSlice:
        limits = _container(group)["resources"]["limits"]
        name, count = f"{group['groupName']}-{replica}", group["numOfHosts"]
        hosts = []
        for index in range(count):
            more = {"FQ_RAY_IP": self._address, "RAY_IP": self._address}
            if TPU in limits:
                labels = group["labels"]
                more |= {
                    "TPU_NAME": name,
                    "TPU_WORKER_ID": str(index),
                    "TPU_TOPOLOGY": labels[TPU_TOPOLOGY],
                    "TPU_ACCELERATOR_TYPE": labels[TPU_POD_TYPE],
                    "TPU_DEVICE_PLUGIN_HOST_IP": self._address,
                    "TPU_DEVICE_PLUGIN_ADDR": f"{self._address}:2112",
                }
                if count > 1:
                    # On GKE <slice>-<host>.<cluster>-headless; here all hosts have one address.
                    more["TPU_WORKER_HOSTNAMES"] = ",".join([self._address] * count)
            hosts.append(self._host(f"{name}-{index}", group["groupName"], group, more))
        grace_s = group["template"]["spec"].get("terminationGracePeriodSeconds", KUBERNETES_GRACE_S)
        return LocalSlice(name, tuple(hosts), grace_s)

    def _host(self, name: str, group: str, spec: Mapping[str, Any], more: Mapping[str, str]) -> Host:
        container = _container(spec)
        limits, params = container["resources"]["limits"], spec.get("rayStartParams", {})
        operators = {
            "RAY_CLUSTER_NAME": self.name,
            "RAY_CLUSTER_NAMESPACE": self._namespace,
            "RAY_CLOUD_INSTANCE_ID": name,
            "RAY_NODE_TYPE_NAME": group,
            "RAY_ADDRESS": f"{self._address}:{GCS_PORT}",
            "RAY_PORT": str(GCS_PORT),
            "RAY_timeout_ms_task_wait_for_death_info": "0",
            "RAY_gcs_server_request_timeout_seconds": "5",
            "RAY_SERVE_KV_TIMEOUT_S": "5",
            "RAY_USAGE_STATS_KUBERAY_IN_USE": "1",
            "RAY_DASHBOARD_ENABLE_K8S_DISK_USAGE": "1",
        }
        return Host(
            name=name,
            group=group,
            cpus=int(params["num-cpus"]) if "num-cpus" in params else math.ceil(parse_quantity(limits["cpu"])),
            memory=int(parse_quantity(limits["memory"])),
            chips=int(parse_quantity(limits.get(TPU, "0"))),
            labels=dict(spec.get("labels", {})),
            env=operators | dict(more) | _environment(container, self._fields(name), self._secrets),
        )

    def _fields(self, host: str) -> dict[str, str]:
        """The fields of the Pod that a variable can have."""
        addresses = dict.fromkeys(("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"), self._address)
        return addresses | {"metadata.name": host, "metadata.namespace": self._namespace, "spec.nodeName": host}


def _environment(container: Mapping[str, Any], fields: Mapping[str, str], secrets: Mapping[str, str]) -> dict[str, str]:
    """The container's variables; as in Kubernetes, `$(NAME)` in a value refers to an earlier one."""
    env: dict[str, str] = {}
    for entry in container.get("env", ()):
        source: Iterable[str] = entry.get("valueFrom", ())
        if FROM_OBJECTS & set(source):
            value = secrets.get(entry["name"])
        elif "fieldRef" in source:
            value = fields.get(entry["valueFrom"]["fieldRef"]["fieldPath"], "")
        else:
            value = re.sub(r"\$\((\w+)\)", lambda match: env.get(match[1], match[0]), entry.get("value", ""))
        if value is not None:
            env[entry["name"]] = value
    return env
