"""Pods on TPU hosts: requests, containers, machine sizes, and what the webhook sets itself."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Group, Workload
from kuberay.check.nodes import Node, quantity
from kuberay.check.pods import TPU, Pod, asks_tpu
from kuberay.check.rules import Problem, error, note, rule, warning

_MEMORY_UNSURE = frozenset({"ct6e-standard-1t"})
"""Machine types whose memory Google's own tables differ about."""


@rule(Pod, "tpu-requests", "Kubernetes API server: extended resources cannot be overcommitted")
def requests(pod: Pod) -> Iterator[Problem]:
    """Requested chips and limited chips are the same number."""
    for container in [*pod.containers, *pod.init_containers]:
        wanted, limit = (container.at("resources", part, TPU) for part in ("requests", "limits"))
        if wanted.placeholder or limit.placeholder:
            continue
        if wanted.present and not limit.present:
            yield error(
                wanted,
                f"requests {TPU} without a limit: the API server refuses the Pod, and KubeRay, which reads "
                "limits alone, would give Ray no TPU resource",
                f"write the same {TPU} under limits",
            )
        elif wanted.present and quantity(wanted) != quantity(limit):
            yield error(
                wanted,
                f"requests {wanted.value} chips and limits {limit.value}: the API server refuses the Pod",
                f"write the same {TPU} under requests and limits",
            )


@rule(Pod, "tpu-containers", "KubeRay 1.7: RayContainerIndex; GKE TPU webhook: containers only")
def containers(pod: Pod) -> Iterator[Problem]:
    """Chips belong to the first container: it is the one that runs Ray."""
    for container in pod.init_containers:
        if asks_tpu(container):
            yield warning(
                container["resources"],
                "an init container asks for TPU chips: the GKE TPU webhook gives it no TPU "
                "environment, and a slice of several hosts cannot be used before all hosts are up",
                f"take {TPU} out of the init container",
            )
    if pod.role != "worker" or not pod.asks_tpu:
        return
    seven = (pod.accelerator.text or "").startswith("tpu7x")
    if not asks_tpu(pod.containers[0]):
        yield error(
            pod.tpu_containers[0]["resources"],
            "the first container is the one that KubeRay runs Ray in, and it asks "
            "for no chips: Ray's node has no TPU resource, and nothing is placed on it",
            f"write {TPU} on the first container",
        )
    elif len(pod.tpu_containers) > 1 and not seven:
        yield warning(
            pod.tpu_containers[1]["resources"],
            "a second container asks for chips: Ray counts those of the first alone, and a host has one TPU runtime",
            f"write {TPU} on the first container only",
        )


@rule(Cluster, "tpu-on-head", "KubeRay 1.7; Ray: the head is no part of a slice")
def head(cluster: Cluster) -> Iterator[Problem]:
    """The head Pod keeps no chips: they would belong to no worker group's slice."""
    pod = cluster.head_pod
    if pod.asks_tpu:
        yield warning(
            pod.tpu_containers[0]["resources"],
            "the head Pod asks for TPU chips: it holds a TPU host of its own, is "
            "part of no worker group's slice, and a restart of it ends the whole cluster",
            f"take {TPU} out of the head and put it on a worker group",
        )


@rule(Pod, "machine-size", "Compute Engine's machine types")
def machine_size(pod: Pod) -> Iterator[Problem]:
    """CPU and memory requests fit beside what GKE keeps for itself on the machine."""
    machine = pod.machine
    if machine is None:
        return
    gib = 2.0**30
    for resource, most, unit in (("cpu", machine.vcpus, 1.0), ("memory", machine.memory_gb, gib)):
        if resource == "memory" and machine.name in _MEMORY_UNSURE:
            continue
        asked = [_request(container, resource) for container in pod.containers]
        total = sum(amount for _, amount in asked) / unit
        if total >= most:
            node = max(asked, key=lambda pair: pair[1])[0]
            cpus, memory = (f"{total:g} CPUs", f"{most} vCPUs"), (f"{total:.4g} GiB of memory", f"{most} GB")
            shown, has = cpus if unit == 1 else memory
            yield error(
                node,
                f"the Pod asks for {shown}: a {machine.name} has {has}, of which GKE keeps some, "
                "so no node fits and the Pod stays Pending",
                f"ask for at most {int(most * (0.98 if unit == 1 else 0.93))}{'' if unit == 1 else 'Gi'}",
            )


@rule(Group, "tpu-affinity", "GKE TPU webhook: injectAffinity")
def affinity(group: Group) -> Iterator[Problem]:
    """On slices of several hosts the webhook replaces the Pod's affinity with its own."""
    node = group.pod.spec["affinity"]
    if node.present and group.tpu and group.multi_host:
        yield warning(
            node,
            "is lost: the GKE TPU webhook replaces the affinity of Pods on slices of several hosts with its own, "
            "which keeps a slice together",
            "use nodeSelector, which is kept",
        )


@rule(Group, "tpu-env", "GKE TPU webhook: mutatePod")
def worker_environment(group: Group) -> Iterator[Problem]:
    """TPU_WORKER_ID, TPU_NAME and TPU_WORKER_HOSTNAMES differ by host or slice: the webhook sets them (ai-on-gke#858).

    A fixed value is kept by the webhook and is the same on every host.
    """
    if not group.tpu:
        return
    for container in group.pod.tpu_containers:
        for item in container["env"]:
            name, value = item["name"].value, item["value"].text
            if not value or (name == "TPU_WORKER_HOSTNAMES" and value == "localhost"):
                continue
            if name in ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES") and group.multi_host:
                yield error(
                    item["value"],
                    f"{name} is the same on every host: the GKE TPU webhook keeps what is set by hand, "
                    "so hosts of a slice get one identity, and JAX's start hangs until it times out (ai-on-gke#858)",
                    f"take {name} out; the webhook sets it",
                )
            elif name == "TPU_NAME" and (group.multi_host or (group.most or 2) > 1):
                yield error(
                    item["value"],
                    "TPU_NAME is the same for every slice of the group: the webhook keeps it, and Ray "
                    "takes all slices for one",
                    "take TPU_NAME out; the webhook sets <group>-<replica>",
                )


@rule(Group, "megascale-env", "GKE TPU webhook; ray#62893")
def megascale(group: Group) -> Iterator[Problem]:
    """MEGASCALE_* that are fixed in the Pod outlive the slices that they speak of (ray#62893)."""
    if not group.tpu:
        return
    for container in group.pod.tpu_containers:
        for item in container["env"]:
            name, value = item["name"].value, item["value"].text
            if name in ("MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS") and value:
                yield warning(
                    item["value"],
                    f"{name} is fixed in the Pod: after a preemption it is stale, it is the same on "
                    "every slice, and JAX waits for a coordinator that is gone (ray#62893)",
                    f"take {name} out: the webhook or Ray sets it for each run",
                )
            count = int(value) if name == "MEGASCALE_NUM_SLICES" and value and value.isdigit() else None
            replicas = group.node["replicas"].number
            if count is not None and replicas and count != replicas:
                yield warning(
                    item["value"],
                    f"MEGASCALE_NUM_SLICES is {count}, but the group has {replicas} replicas (slices): "
                    "JAX waits for slices that never come, or leaves some out",
                    f"write {replicas}, or take it out where each slice works alone",
                )


@rule(Pod, "jax-platforms", "JAX; vLLM's TPU backend")
def jax_platforms(pod: Pod) -> Iterator[Problem]:
    """JAX_PLATFORMS=tpu hides the CPU backend that loaders need; cpu leaves the chips idle."""
    for container in pod.tpu_containers:
        for item in container["env"]:
            if item["name"].value != "JAX_PLATFORMS":
                continue
            if item["value"].text == "tpu":
                yield warning(
                    item["value"],
                    "JAX_PLATFORMS=tpu alone takes the CPU backend away: code that prepares arrays on "
                    "the host fails with 'Unknown backend cpu'",
                    'write "tpu,cpu"',
                )
            elif item["value"].text == "cpu":
                yield warning(
                    item["value"],
                    "JAX_PLATFORMS=cpu: the Pod holds TPU chips and JAX does not use them",
                    'write "tpu,cpu"',
                )


@rule(Group, "compile-cache", "vLLM on TPU: hosts of a slice write one cache at the same time")
def compile_cache(group: Group) -> Iterator[Problem]:
    """A compilation cache in a bucket that all hosts of a slice mount is written by all of them at once."""
    pod = group.pod
    buckets = {
        volume["name"].value
        for volume in pod.spec["volumes"]
        if volume.at("csi", "driver").value == "gcsfuse.csi.storage.gke.io"
    }
    if not group.multi_host:
        return
    for container in pod.tpu_containers:
        mounts = [mount["mountPath"].text for mount in container["volumeMounts"] if mount["name"].value in buckets]
        for item in container["env"]:
            path = item["value"].text
            shared = path and any(mount and f"{path}/".startswith(f"{mount.rstrip('/')}/") for mount in mounts)
            if item["name"].value == "VLLM_XLA_CACHE_PATH" and shared:
                yield warning(
                    item["value"],
                    "is in a bucket that all hosts of the slice mount: they write the same files at the same time, and "
                    "some read half of one",
                    "write a path on the host's own disk, such as /tmp/xla_cache",
                )


@rule(Pod, "privileged", "GKE Autopilot")
def privileged(pod: Pod) -> Iterator[Problem]:
    """TPU Pods need no privileges on GKE any more."""
    for container in pod.tpu_containers:
        if container.at("securityContext", "privileged").true:
            yield warning(
                container.at("securityContext", "privileged"),
                "the container is root on the node: GKE Autopilot "
                "refuses it, and TPUs have not needed it since GKE 1.28",
                "take privileged out",
            )


@rule(Pod, "tpu-toleration", "GKE: taint google.com/tpu=present:NoSchedule of TPU node pools")
def toleration(pod: Pod) -> Iterator[Problem]:
    """TPU nodes are tainted; GKE's admission adds the toleration for the resource that is asked for, others do not."""
    if pod.asks_tpu and not pod.tolerates_tpu:
        yield note(
            pod.spec["tolerations"],
            f"does not tolerate the taint {TPU} of TPU nodes: GKE adds the toleration to Pods "
            "that ask for chips, clusters without the ExtendedResourceToleration admission do not",
            f"add a toleration with key {TPU}, operator Exists, effect NoSchedule",
        )


@rule(Workload, "tpu-workload", "Kubernetes: Pods of a Deployment have no stable names")
def workload(workload: Workload) -> Iterator[Problem]:
    """Hosts of one slice find each other by stable names, which only some kinds give."""
    kind, pod = workload.manifest.kind, workload.pod
    hosts = pod.slice_hosts or 1
    if hosts < 2 or not pod.asks_tpu or pod.misfit:
        return
    size = workload.manifest.spec["replicas"]
    if kind in ("Deployment", "ReplicaSet", "DaemonSet", "Pod"):
        yield error(
            pod.topology,
            f"{pod.topology.value} with {pod.chips} chips a Pod is a slice of {hosts} hosts: Pods of a "
            f"{kind} have no stable names, so the hosts never find each other and JAX hangs",
            "use an Indexed Job, a JobSet, a LeaderWorkerSet or a RayService, or a topology of one host",
        )
    elif kind == "StatefulSet" and size.number is not None and size.number % hosts:
        yield error(
            size,
            f"{size.number} replicas are no whole slices of {hosts} hosts: JAX waits for the missing ones",
            f"write a multiple of {hosts}",
        )
    elif kind == "LeaderWorkerSet":
        group = workload.manifest.spec["leaderWorkerTemplate"]["size"]
        leads = group.document.node.at("spec", "leaderWorkerTemplate", "leaderTemplate").present
        if group.number is not None and group.number % hosts and not (leads and (group.number - 1) % hosts == 0):
            yield error(
                group,
                f"a group of {group.number} Pods is no whole slice of {hosts} hosts: JAX waits for the missing ones",
                f"write size: {hosts}",
            )


def _request(container: Node, resource: str) -> tuple[Node, float]:
    asked = container.at("resources", "requests", resource)
    asked = asked if asked.present else container.at("resources", "limits", resource)
    return asked, quantity(asked) or 0.0
