"""Environment variables of containers with chips: those that GKE sets, and those that break JAX."""

from collections.abc import Iterator

from kuberay.check.pods import Container
from kuberay.check.rules import Problem, error, rule, warning


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
