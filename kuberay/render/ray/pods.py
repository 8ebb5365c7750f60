"""Pod templates: resources, environment and volumes of a container."""

from collections.abc import Iterable, Mapping
from typing import Any

from kuberay.render.notes import noted
from kuberay.render.overlay import overlaid
from kuberay.render.ray.placement import node_selector, tolerations
from ray_configs.capacity import SYSTEM_PODS_S, Spot
from ray_configs.cloud import Bucket, SecretKey
from ray_configs.cluster.labels import GCS_FUSE, TPU
from ray_configs.cluster.workers import CPU_POD_MEMORY_GB, WorkerGroup
from ray_configs.job import Job
from ray_configs.service import Service
from ray_configs.tpu import TpuSlice

Config = Service | Job

SHARE_OF_MACHINE = 0.8
"""Share of a TPU machine's CPUs and memory that its one Pod requests; the rest is for the kubelet and daemons."""
SHARED_MEMORY = 0.35
"""Share of a Pod's memory for /dev/shm: Ray's object store takes 0.3, and falls back to disk if that does not fit."""
INSTANCE_LABEL = "app.kubernetes.io/instance"
RAY_USER, RAY_GROUP = 1000, 100
"""User and group of Ray's images."""
TO_STOP_S = 30
"""Seconds for a node to begin draining, and for Ray to stop afterwards."""


def megabytes(number: int) -> str:
    """`number` times 10^6 bytes as Kubernetes normalizes it: 1000 give `1G`."""
    suffixes = "MGTP"
    while number % 1000 == 0 and len(suffixes) > 1:
        number, suffixes = number // 1000, suffixes[1:]
    return f"{number}{suffixes[0]}"


def gigabytes(number: int) -> str:
    """`number` times 10^9 bytes, normalized likewise."""
    return megabytes(number * 1000)


def quantities(requests: dict[str, str]) -> dict[str, Any]:
    """Requests equal to limits: the Pod is evicted last, and Autopilot requires it."""
    return {"limits": dict(requests), "requests": dict(requests)}


def machine_memory_gb(slice: TpuSlice) -> int:
    """Memory of the one Pod of a TPU machine, 10^9 bytes."""
    return int(slice.machine.memory_gb * SHARE_OF_MACHINE)


def machine_quantities(slice: TpuSlice, ephemeral_storage: str) -> dict[str, str]:
    """Resources of the one Pod of a TPU machine."""
    machine = slice.machine
    return {
        "cpu": str(int(machine.vcpus * SHARE_OF_MACHINE)),
        "memory": gigabytes(machine_memory_gb(slice)),
        "ephemeral-storage": ephemeral_storage,
        TPU: str(slice.chips_per_host),
    }


def worker_memory_gb(group: WorkerGroup) -> int:
    """Memory of one Pod of the group, 10^9 bytes."""
    return machine_memory_gb(group.slice) if group.slice else CPU_POD_MEMORY_GB


def worker_quantities(group: WorkerGroup) -> dict[str, str]:
    """Resources of one Pod of the group."""
    if group.slice is not None:
        return machine_quantities(group.slice, gigabytes(group.scratch_gb))
    return {
        "cpu": str(group.cpu_pod_cpus),
        "memory": gigabytes(worker_memory_gb(group)),
        "ephemeral-storage": gigabytes(group.scratch_gb),
    }


def shared_memory(memory_gb: int) -> dict[str, Any]:
    """The volume for /dev/shm of a Pod with that much memory."""
    size = megabytes(round(memory_gb * 1000 * SHARED_MEMORY))
    return {"name": "dshm", "emptyDir": {"medium": "Memory", "sizeLimit": size}}


def bucket_volume(bucket: Bucket) -> dict[str, Any]:
    """The bucket as a folder, by GKE's GCSFuse driver."""
    return {
        "name": "bucket",
        "csi": {
            "driver": "gcsfuse.csi.storage.gke.io",
            **_read_only(bucket),
            "volumeAttributes": {
                "bucketName": bucket.name,
                noted("mountOptions", "Shows folders that have no object; the image's user owns the files."): ",".join(
                    _mount_options(bucket)
                ),
            },
        },
    }


def _mount_options(bucket: Bucket) -> Iterable[str]:
    """The bucket's options over ours; of two with the same name the later holds."""
    options = ("implicit-dirs", f"uid={RAY_USER}", f"gid={RAY_GROUP}", *bucket.mount_options)
    return {option.rpartition(":")[0] or option.partition("=")[0]: option for option in options}.values()


def _read_only(bucket: Bucket) -> dict[str, bool]:
    """`readOnly` only if true: the operator drops a `readOnly: false` when it writes the object back."""
    return {"readOnly": True} if bucket.read_only else {}


def secret(name: str, entry: SecretKey) -> dict[str, Any]:
    """An environment variable whose value comes from a Secret."""
    return {"name": name, "valueFrom": secret_source(entry)}


def secret_source(entry: SecretKey) -> dict[str, Any]:
    """The source of a value in a Secret."""
    return {"secretKeyRef": {"name": entry.secret, "key": entry.key}}


def variables(env: Mapping[str, str | SecretKey]) -> list[dict[str, Any]]:
    """Environment variables. Empty values are left out, as when the operator writes the object back."""
    return [
        secret(name, value) if isinstance(value, SecretKey) else {"name": name} | ({"value": value} if value else {})
        for name, value in env.items()
    ]


def port(name: str, number: int) -> dict[str, Any]:
    """A port of a container, with the default protocol that Kubernetes would add."""
    return {"containerPort": number, "name": name, "protocol": "TCP"}


def secrets(config: Config) -> list[dict[str, Any]]:
    """Environment variables from Secrets, for the Pods that load models and answer requests."""
    env = []
    if config.hugging_face_token:
        env.append(secret("HF_TOKEN", config.hugging_face_token))
    return env + api_keys(config)


def api_keys(config: Config) -> list[dict[str, Any]]:
    """The API keys' variable. The head has it too: its proxy takes the requests of services without a replica."""
    if isinstance(config, Service) and config.api_keys:
        return [secret("PODSLICE_API_KEYS", config.api_keys)]
    return []


def pod_template(
    config: Config,
    container: dict[str, Any],
    group: WorkerGroup | None,
    memory_gb: int,
    account: str | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A template of one container, with the volumes, identity and placement that the config asks for, and its overlays.

    `group` is None for a head, on any ordinary node. `memory_gb` is the container's memory.
    `account` is its Kubernetes service account; None for the config's, if it has one.
    """
    volumes = [shared_memory(memory_gb)]
    mounts: list[dict[str, Any]] = [{"name": "dshm", "mountPath": "/dev/shm"}]
    # The cluster autoscaler must not evict the Pod to empty its node.
    annotations = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"}
    if config.bucket and config.bucket.mount:
        annotations[GCS_FUSE] = "true"
        volumes.append(bucket_volume(config.bucket))
        mounts.append({"name": "bucket", "mountPath": config.bucket.mount, **_read_only(config.bucket)})
    pod: dict[str, Any] = dict(spec)
    if isinstance(config, Service):
        grace = config.drain_s + TO_STOP_S
        why = f"Replicas may finish requests for {config.drain_s} s (drain_timeout_s); then Ray stops."
        if group is not None and isinstance(group.capacity, Spot) and group.capacity.pods_s < grace:
            grace = group.capacity.pods_s
            why = f"A preempted machine leaves no more; GKE's own Pods have its last {SYSTEM_PODS_S} s."
        pod[noted("terminationGracePeriodSeconds", why)] = grace
    if account is None and config.service_account:
        account = config.service_account.service_account
    if account is not None:
        pod["serviceAccountName"] = account
    if group is not None and (selector := node_selector(group.slice, group.capacity)):
        pod["nodeSelector"] = selector
    if group is not None:
        why = "The last two are for the node pools of `node-pools`, which take no other config's Pods."
        pod[noted("tolerations", why)] = tolerations(group.slice, group.capacity, config.owner)
    if isinstance(config, Service) and config.priority_class:
        pod["priorityClassName"] = config.priority_class
    if isinstance(config, Service) and config.lock_memory and group is not None and group.slice is not None:
        container = container | {
            noted("securityContext", "A user other than root has no capability, whatever is added."): {
                "capabilities": {"add": ["IPC_LOCK"]},
                "runAsUser": 0,
            }
        }
    pod["containers"] = [container | {"volumeMounts": mounts}]
    pod["volumes"] = volumes
    template = {"metadata": {"labels": {INSTANCE_LABEL: config.name}, "annotations": annotations}, "spec": pod}
    added = config.head if group is None else group
    return overlaid(template, added.pod, added.container)


def host_address(slice: TpuSlice | None) -> list[dict[str, Any]]:
    """The node's address, which libtpu's link controller needs on multi-host v6e slices."""
    if slice is None or slice.hosts == 1 or slice.generation != "v6e":
        return []
    return [
        {"name": "NODE_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}},
        {"name": "VBAR_CONTROL_SERVICE_URL", "value": "$(NODE_IP):8353"},
    ]


def slice_ports() -> list[dict[str, Any]]:
    """Ports for communication within a slice and between slices."""
    return [port("tpu", 8471), port("mxla", 8081)]
