"""Environment variables of containers with chips: those that the webhook sets, and those that make JAX hang."""

from collections.abc import Iterator

from kuberay.check.pods import Variable
from kuberay.check.rules import Problem, error, rule, warning


@rule(Variable, "tpu-env", "GKE TPU webhook: mutatePod")
def set_by_the_webhook(variable: Variable) -> Iterator[Problem]:
    """TPU_WORKER_ID, TPU_NAME and TPU_WORKER_HOSTNAMES differ by host or slice: the webhook sets them (ai-on-gke#858).

    A fixed value is kept by the webhook and is the same on every host.
    """
    name, text, group = variable.name, variable.text, variable.container.pod.group
    if group is None or not group.tpu or not variable.container.asks_tpu or not text:
        return
    if name in ("TPU_WORKER_ID", "TPU_WORKER_HOSTNAMES") and group.multi_host and text != "localhost":
        yield error(
            variable.value,
            f"{name} is the same on every host: the GKE TPU webhook keeps what is set by hand, so hosts of a slice get "
            "one identity, and JAX's start hangs until it times out (ai-on-gke#858)",
            f"take {name} out; the webhook sets it",
        )
    elif name == "TPU_NAME" and (group.multi_host or (group.most or 2) > 1):
        why = "TPU_NAME is the same for every slice of the group: the webhook keeps it, and Ray takes them for one"
        yield error(variable.value, why, "take TPU_NAME out; the webhook sets <group>-<replica>")


@rule(Variable, "megascale-env", "GKE TPU webhook; ray#62893")
def megascale(variable: Variable) -> Iterator[Problem]:
    """MEGASCALE_* that are fixed in the Pod outlive the slices that they speak of (ray#62893)."""
    name, text, group = variable.name, variable.text, variable.container.pod.group
    if group is None or not group.tpu or not variable.container.asks_tpu or not text:
        return
    if name in ("MEGASCALE_SLICE_ID", "MEGASCALE_COORDINATOR_ADDRESS"):
        why = (
            f"{name} is fixed in the Pod: after a preemption it is stale, it is the same on every slice, and JAX waits "
            "for a coordinator that is gone (ray#62893)"
        )
        yield warning(variable.value, why, f"take {name} out: the webhook or Ray sets it for each run")
    replicas = group.node["replicas"].number
    if name == "MEGASCALE_NUM_SLICES" and text.isdigit() and replicas and int(text) != replicas:
        why = (
            f"MEGASCALE_NUM_SLICES is {text}, but the group has {replicas} replicas (slices): JAX waits for slices "
            "that never come, or leaves some out"
        )
        yield warning(variable.value, why, f"write {replicas}, or take it out where each slice works alone")


@rule(Variable, "jax-platforms", "JAX; vLLM's TPU backend")
def jax_platforms(variable: Variable) -> Iterator[Problem]:
    """JAX_PLATFORMS=tpu hides the CPU backend that loaders need; cpu leaves the chips idle."""
    so = {
        "tpu": " alone takes the CPU backend away: code that prepares arrays on the host fails with 'Unknown backend "
        "cpu'",
        "cpu": ": the Pod holds TPU chips and JAX does not use them",
    }.get(variable.text)
    container = variable.container
    if variable.name == "JAX_PLATFORMS" and so and container.asks_tpu and not container.init:
        yield warning(variable.value, f"JAX_PLATFORMS={variable.text}{so}", 'write "tpu,cpu"')


@rule(Variable, "compile-cache", "vLLM on TPU: hosts of a slice write one cache at the same time")
def compile_cache(variable: Variable) -> Iterator[Problem]:
    """A compilation cache in a bucket that all hosts of a slice mount is written by all of them at once."""
    container, pod = variable.container, variable.container.pod
    if variable.name != "VLLM_XLA_CACHE_PATH" or pod.group is None or not pod.group.multi_host:
        return
    buckets = {
        volume["name"].value
        for volume in pod.spec["volumes"]
        if volume.at("csi", "driver").value == "gcsfuse.csi.storage.gke.io"
    }
    mounts = [mount["mountPath"].text for mount in container["volumeMounts"] if mount["name"].value in buckets]
    if any(mount and f"{variable.text}/".startswith(f"{mount.rstrip('/')}/") for mount in mounts):
        yield warning(
            variable.value,
            "is in a bucket that all hosts of the slice mount: they write the same files at the same time, and some "
            "read half of one",
            "write a path on the host's own disk, such as /tmp/xla_cache",
        )
