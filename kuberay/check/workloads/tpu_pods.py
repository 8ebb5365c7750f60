"""Pods on TPU hosts: containers, their environment, machine sizes and affinity, and the workloads that fit a slice."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Container, Group, Pod
from kuberay.check.nodes import Node, quantity
from kuberay.check.rules import Problem, error, rule, warning
from ray_configs.cluster.labels import TPU

_MEMORY_UNSURE = frozenset({"ct6e-standard-1t"})
"""Machine types whose memory differs between Google's tables."""
_GIB = 2.0**30


@rule(Container, "tpu-requests", "Kubernetes API server: extended resources cannot be overcommitted")
def requests(container: Container) -> Iterator[Problem]:
    """Requested chips and limited chips are the same number; KubeRay tells Ray of the limit."""
    wanted, limit = (container["resources"][part][TPU] for part in ("requests", "limits"))
    if wanted.present and not wanted.placeholder and not limit.placeholder and quantity(wanted) != quantity(limit):
        limits = f"limits {limit.value}" if limit.present else "has no limit of them"
        why = f"requests {wanted.value} chips and {limits}: the API server refuses the Pod"
        yield error(wanted, why, f"write the same {TPU} under requests and limits")


@rule(Pod, "tpu-containers", "KubeRay 1.7: RayContainerIndex; GKE TPU webhook: containers only")
def containers(pod: Pod) -> Iterator[Problem]:
    """Only the first container requests chips: it runs Ray."""
    for container in pod.init_containers:
        if container.asks_tpu:
            why = "an init container requests TPU chips: it gets no TPU environment, and runs before all hosts are up"
            yield warning(container["resources"], why, f"remove {TPU} from the init container")
    if pod.role != "worker" or not pod.asks_tpu:
        return
    if not pod.containers[0].asks_tpu:
        why = "KubeRay runs Ray in the first container, which requests no chips: Ray's node has no TPU resource"
        yield error(pod.tpu_containers[0]["resources"], why, f"write {TPU} on the first container")
    elif len(pod.tpu_containers) > 1 and not (pod.accelerator.text or "").startswith("tpu7x"):
        why = "a second container requests chips: Ray counts only those of the first, and a host has one TPU runtime"
        yield warning(pod.tpu_containers[1]["resources"], why, f"write {TPU} on the first container only")


@rule(Group, "tpu-on-head", "KubeRay 1.7; Ray: the head is not part of a slice")
def head(group: Group) -> Iterator[Problem]:
    """The head Pod requests no chips, which would belong to no worker group's slice."""
    if group.is_head and group.pod.asks_tpu:
        why = "the head Pod requests TPU chips: it occupies a TPU host that is not part of any group's slice"
        instead = f"move {TPU} from the head to a worker group"
        yield warning(group.pod.tpu_containers[0]["resources"], why, instead)


@rule(Pod, "machine-size", "Compute Engine's machine types")
def machine_size(pod: Pod) -> Iterator[Problem]:
    """CPU and memory requests fit on the machine beside what GKE reserves."""
    if pod.slice is None:
        return
    machine = pod.slice.machine
    cpu, cpus = _requested(pod, "cpu")
    memory, size = _requested(pod, "memory")
    keeps = "of which GKE reserves some, so no node fits and the Pod stays Pending"
    if cpu is not None and cpus >= machine.vcpus:
        why = f"the Pod requests {cpus:g} CPUs: a {machine.name} has {machine.vcpus} vCPUs, {keeps}"
        yield error(cpu, why, f"request at most {int(machine.vcpus * 0.98)}")
    if memory is not None and size / _GIB >= machine.memory_gb and machine.name not in _MEMORY_UNSURE:
        requests = f"the Pod requests {size / _GIB:.4g} GiB of memory"
        why = f"{requests}: a {machine.name} has {machine.memory_gb} GB, {keeps}"
        yield error(memory, why, f"request at most {int(machine.memory_gb * 0.93)}Gi")


def _requested(pod: Pod, resource: str) -> tuple[Node | None, float]:
    """The largest request of a container, and the sum of all containers' requests."""
    asked = []
    for container in pod.containers:
        requested, limited = (container["resources"][part][resource] for part in ("requests", "limits"))
        node = requested if requested.present else limited
        asked.append((quantity(node) or 0.0, node))
    return max(asked, key=lambda pair: pair[0], default=(0, None))[1], sum(amount for amount, _ in asked)


@rule(Group, "tpu-affinity", "GKE TPU webhook: injectAffinity")
def affinity(group: Group) -> Iterator[Problem]:
    """Pods of multi-host slices have no affinity: the webhook replaces it with one that keeps a slice together."""
    node = group.pod.spec["affinity"]
    if node.present and group.tpu and group.multi_host:
        why = "is lost: the GKE TPU webhook replaces the affinity of Pods on multi-host slices with its own"
        yield warning(node, why, "use nodeSelector, which is kept")


@rule(Container, "privileged", "GKE Autopilot")
def privileged(container: Container) -> Iterator[Problem]:
    """TPU Pods on GKE need no privileges."""
    node = container["securityContext"]["privileged"]
    if node.value is True and container.asks_tpu and not container.init:
        why = "the container is root on the node: GKE Autopilot refuses it, and TPUs have not needed it since GKE 1.28"
        yield warning(node, why, "remove privileged")


@rule(Pod, "tpu-workload", "Kubernetes: Pods of a Deployment have no stable names")
def workload(pod: Pod) -> Iterator[Problem]:
    """Hosts of one slice find each other by stable names, which only some kinds provide."""
    kind, spec, hosts = pod.manifest.kind, pod.manifest.spec, pod.hosts
    if hosts < 2 or pod.role != "workload":
        return
    size, waits = spec["replicas"], f"of {hosts} hosts: JAX waits for the missing ones"
    if kind in ("Deployment", "ReplicaSet", "DaemonSet", "Pod"):
        why = f"{pod.topology.value} is a slice of {hosts} hosts: Pods of a {kind} have no stable names, and JAX hangs"
        instead = "use an Indexed Job, a JobSet, a LeaderWorkerSet or a RayService, or a topology of one host"
        yield error(pod.topology, why, instead)
    elif kind == "StatefulSet" and size.number is not None and size.number % hosts:
        yield error(size, f"{size.number} replicas are not whole slices {waits}", f"write a multiple of {hosts}")
    elif kind == "LeaderWorkerSet":
        size, leads = spec["leaderWorkerTemplate"]["size"], spec["leaderWorkerTemplate"]["leaderTemplate"].present
        if size.number is not None and size.number % hosts and not (leads and (size.number - 1) % hosts == 0):
            yield error(size, f"a group of {size.number} Pods is not a whole slice {waits}", f"write size: {hosts}")


@rule(Pod, "rolling-update", "Kubernetes: RollingUpdate of Deployments, maxSurge and maxUnavailable, 25 % each")
def rolling_update(pod: Pod) -> Iterator[Problem]:
    """An update of a Deployment on TPUs does not wait for a further slice that nobody has."""
    if pod.manifest.kind != "Deployment" or not pod.asks_tpu:
        return
    strategy, replicas = pod.manifest.spec["strategy"], pod.manifest.spec["replicas"]
    count = replicas.number if replicas.present else 1
    rolling = strategy["rollingUpdate"]
    if strategy["type"].value == "Recreate" or count is None or _share(rolling["maxUnavailable"], count):
        return
    why = f"an update of {count} replica{'s' * (count > 1)} starts one more before it ends an old one: it needs a "
    instead = "write strategy: {type: Recreate}, or maxUnavailable: 1 with maxSurge: 0"
    yield warning(strategy, why + "further slice, and without one stays half done", instead)


def _share(node: Node, count: int) -> int:
    """Pods that maxUnavailable stands for: a number, or a share, rounded down."""
    text = str(node.value if node.present else "25%")
    return int(count * float(text[:-1]) / 100) if re.fullmatch(r"\d+%", text) else node.number or 0


@rule(Container, "tpu-env", "GKE TPU webhook: mutatePod; GKE sets TPU_WORKER_ID of Indexed Jobs")
def set_by_gke(container: Container) -> Iterator[Problem]:
    """TPU_WORKER_ID, TPU_NAME and TPU_WORKER_HOSTNAMES differ by host or slice, so GKE sets them (ai-on-gke#858).

    It keeps a value that the manifest sets, which is then the same on every host.
    """
    group, job = container.pod.group, container.pod.role == "job"
    if not container.asks_tpu or (group is None and not job):
        return
    wide = group.multi_host if group else container.pod.hosts > 1
    for name in ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES")[: 1 if job else 2]:
        value = container.env.get(name)
        if wide and value is not None and value.text not in (None, "", "localhost"):
            why = f"{name} is the same on every host, and JAX hangs at startup until it times out (ai-on-gke#858)"
            yield error(value, why, f"remove {name}; GKE sets it")
    value = container.env.get("TPU_NAME")
    if group and value is not None and value.text and (wide or (group.most or 2) > 1):
        why = "TPU_NAME is the same forevery slice of the group: the webhook keeps it, and Ray takes them for one"
        yield error(value, why, "remove TPU_NAME; the webhook sets <group>-<replica>")


@rule(Container, "megascale-env", "GKE TPU webhook; ray#62893")
def megascale(container: Container) -> Iterator[Problem]:
    """MEGASCALE_* variables are not fixed in the Pod, where they outlive the slices that they describe (ray#62893)."""
    group = container.pod.group
    if group is None or not container.asks_tpu:
        return
    for name in ("MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"):
        value = container.env.get(name)
        if value is not None and value.text:
            why = f"{name} is the same on every slice, and stale after a preemption: JAX waits for a coordinator that "
            yield warning(value, why + "is gone (ray#62893)", f"remove {name}: the webhook or Ray sets it")
    value, slices = container.env.get("MEGASCALE_NUM_SLICES"), group.node["replicas"].number
    if value is not None and slices and (value.text or "").isdigit() and int(value.value) != slices:
        why = f"MEGASCALE_NUM_SLICES is {value.text}, but the group has {slices} replicas (slices): JAX waits for "
        instead = f"write {slices}, or remove it where each slice works alone"
        yield warning(value, why + "slices that never come, or leaves some out", instead)


@rule(Container, "jax-platforms", "JAX; vLLM's TPU backend")
def jax_platforms(container: Container) -> Iterator[Problem]:
    """JAX_PLATFORMS=tpu hides the CPU backend that loaders need; cpu leaves the chips idle."""
    value = container.env.get("JAX_PLATFORMS")
    if value is None or not container.asks_tpu or container.init:
        return
    if value.text == "tpu":
        why = "disables the CPU backend: code that prepares arrays on the host fails with 'Unknown backend cpu'"
        yield warning(value, f"JAX_PLATFORMS=tpu {why}", 'write "tpu,cpu"')
    elif value.text == "cpu":
        yield warning(value, "the Pod holds TPU chips, but with JAX_PLATFORMS=cpu does not use them", 'write "tpu,cpu"')


@rule(Container, "compile-cache", "vLLM on TPU: hosts of a slice write one cache concurrently")
def compile_cache(container: Container) -> Iterator[Problem]:
    """Hosts of a slice do not share a compilation cache in a bucket, which all of them would write at once."""
    value, group = container.env.get("VLLM_XLA_CACHE_PATH"), container.pod.group
    if value is None or group is None or not group.multi_host:
        return
    volumes = container.pod.spec["volumes"]
    buckets = {each["name"].value for each in volumes if each["csi"]["driver"].value == "gcsfuse.csi.storage.gke.io"}
    mounts = [mount["mountPath"].text for mount in container["volumeMounts"] if mount["name"].value in buckets]
    if any(mount and f"{value.text}/".startswith(f"{mount.rstrip('/')}/") for mount in mounts):
        why = "is in a bucket that all hosts of the slice mount: they write the same files at the same time, and some "
        yield warning(value, why + "read half of one", "write a path on the host's own disk, such as /tmp/xla_cache")
