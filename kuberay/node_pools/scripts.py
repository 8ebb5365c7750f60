"""The bash scripts that create, and delete, everything that a config needs: create.sh.jinja and delete.sh.jinja."""

import textwrap
from pathlib import Path
from shlex import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kuberay.node_pools.pools import DEFAULT_DISK_GB, Pool, is_zone, pools, region
from kuberay.node_pools.setting import (
    REGISTRY_LOCATION,
    REPOSITORY,
    apis,
    cpu_nodes,
    kind,
    kubernetes_accounts,
    own_images,
    reservation_path,
)
from kuberay.node_pools.versions import minimum_version, refuse_old_version
from ray_configs.capacity import (
    KUEUE_VERSION,
    NEWER_KUEUE_VERSION,
    WHY_NO_NEWER_KUEUE,
    FlexStart,
    Queued,
    Reservation,
    Spot,
)
from ray_configs.job import Job
from ray_configs.service import Service

_RAY_SERVICE = '{.spec.versions[?(@.name=="v1")].schema.openAPIV3Schema.properties.spec.properties'
OPERATOR_MARKS = (
    f"jsonpath={_RAY_SERVICE}.managedBy.type}}/{_RAY_SERVICE}.rayClusterConfig.properties.historyServerOptions.type}}"
)
"""kubectl output format that shows KubeRay's version: `/` before 1.6, `string/` for 1.6, then `string/object`."""


def commands(config: Service | Job) -> str:
    """A bash script that creates everything. Run again, it creates only what is missing.

    Raises ConfigError if Google Cloud cannot provide what the config asks for.
    """
    refuse_old_version(config)
    return _script("create.sh.jinja", config)


def teardown(config: Service | Job) -> str:
    """A bash script that deletes it all, the most expensive first, but not what other configs still share.

    gcloud asks before each deletion; CLOUDSDK_CORE_DISABLE_PROMPTS=1 answers yes.
    """
    return _script("delete.sh.jinja", config)


def _script(template: str, config: Service | Job) -> str:
    """Fills in a template, which passes values of the config through `quote`: to bash they are literal text."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": lambda value: quote(str(value)), "comment": _comment}
    environment.globals |= {function.__name__: function for function in _FOR_TEMPLATES}
    return environment.get_template(template).render(
        REGISTRY_LOCATION=REGISTRY_LOCATION,
        REPOSITORY=REPOSITORY,
        KUEUE_VERSION=KUEUE_VERSION,
        NEWER_KUEUE_VERSION=NEWER_KUEUE_VERSION,
        WHY_NO_NEWER_KUEUE=WHY_NO_NEWER_KUEUE,
        OPERATOR_MARKS=OPERATOR_MARKS,
        account=config.service_account,
        cloud=config.cloud,
        config=config,
        images=own_images(config),
        planned=pools(config),
        queued=any(isinstance(group.capacity, Queued) for group in config.worker_groups),
        region=region(config),
    )


def _comment(text: str) -> str:
    """Wraps text as a bash comment. The text must not come from the config."""
    words = " ".join(text.split())
    return textwrap.fill(words, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def secrets(config: Service | Job) -> dict[str, list[tuple[str, str, str]]]:
    """By name of the Secret: each key, the environment variable with its value, and the prompt for it."""
    wanted = (
        (config.hugging_face_token, "HF_TOKEN", "Hugging Face token"),
        (getattr(config, "api_keys", None), "PODSLICE_API_KEYS", "API keys, KEY or NAME=KEY, comma-separated"),
    )
    entries: dict[str, list[tuple[str, str, str]]] = {}
    for secret, variable, what in wanted:
        if secret is not None:
            entries.setdefault(secret.secret, []).append((secret.key, variable, what))
    return entries


def about(pool: Pool) -> str:
    slice = pool.slice
    if slice is None:
        return f"Machines for Pods without TPUs: {pool.nodes} to {pool.max_nodes} ({pool.capacity.kind})."
    chips = f"{slice.chips_per_host} chip{'s' * (slice.chips_per_host > 1)}"
    if slice.single_host:
        limit = f"{pool.nodes} to {pool.max_nodes}" if pool.autoscaled else str(pool.nodes)
        return f"Hosts of {chips}, each a {slice} slice by itself: {limit} ({pool.capacity.kind})."
    size = f"One {slice} slice: {slice.hosts} hosts of {chips} ({pool.capacity.kind})."
    return f"{size} The autoscaler makes all of them or none." if pool.autoscaled else size


def create_flags(pool: Pool) -> list[str]:
    """Flags besides the cluster's. --tpu-topology also makes GKE place the hosts compactly, as a torus needs."""
    flags = [f"--node-locations={quote(pool.zone)}"] if pool.zone else []
    flags.append(f"--machine-type={quote(pool.machine_type)}")
    if pool.disk_gb > DEFAULT_DISK_GB:
        flags.append(f"--disk-size={pool.disk_gb}")
    if pool.topology:
        flags.append(f"--tpu-topology={pool.topology}")
    if pool.workload_policy:
        flags.append(f"--placement-policy={pool.workload_policy}")
    flags.append(f"--num-nodes={pool.nodes}")
    if pool.autoscaled:
        flags += ["--enable-autoscaling", f"--min-nodes={pool.nodes}", f"--max-nodes={pool.max_nodes}"]
    capacity = pool.capacity
    if isinstance(capacity, Reservation):
        return [*flags, "--reservation-affinity=specific", f"--reservation={quote(reservation_path(capacity))}"]
    flags.append("--reservation-affinity=none")
    if isinstance(capacity, Spot):
        flags.append("--spot")
    if isinstance(capacity, Queued):
        flags.append("--enable-queued-provisioning")
    if isinstance(capacity, FlexStart | Queued):
        # The Dynamic Workload Scheduler requires these: capacity of any zone, and no repair by replacement.
        flags += ["--flex-start", "--location-policy=ANY", "--no-enable-autorepair"]
        flags.append(f"--max-run-duration={capacity.max_run_hours * 3600}s")
    return flags


_FOR_TEMPLATES = (about, apis, cpu_nodes, create_flags, is_zone, kind, kubernetes_accounts, minimum_version, secrets)
