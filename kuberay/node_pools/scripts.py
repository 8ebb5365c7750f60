"""Fills in the templates of what a config needs on Google Cloud: create.sh, delete.sh and Terraform's main.tf.json."""

import json
import re
import textwrap
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from ruamel.yaml import YAML

from kuberay.node_pools.pools import DEFAULT_DISK_GB, Pool, in_default_pool, is_zone, pools, region
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
from ray_configs.cluster.release import PODSLICE_VERSION, REGISTRY
from ray_configs.job import Job
from ray_configs.service import Service

REPOSITORY = "podslice"
REGISTRY_LOCATION = REGISTRY.removesuffix("-docker.pkg.dev")
"""`us` for us-docker.pkg.dev."""
SPARE_CPU_NODES = 4
"""Nodes of the default pool for Ray heads, operators and gateways, at most."""
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
    return _filled("create.sh.jinja", config)


def teardown(config: Service | Job) -> str:
    """A bash script that deletes it all, the most expensive first, but not what other configs still share.

    gcloud asks before each deletion; CLOUDSDK_CORE_DISABLE_PROMPTS=1 answers yes.
    """
    return _filled("delete.sh.jinja", config)


def terraform(config: Service | Job) -> str:
    """A main.tf.json: what `commands` creates, but for Kueue, the image build and Kubernetes Secrets.

    Values of Secrets would end up in Terraform's state. Raises ConfigError as `commands` does.
    """
    refuse_old_version(config)
    written = YAML(typ="safe").load(_filled("terraform.yaml.jinja", config))
    return json.dumps(written, indent=2) + "\n"


def _filled(template: str, config: Service | Job) -> str:
    """Fills in a template. Values of the config go through `quote` for bash, or `literal` for Terraform."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": lambda value: quote(str(value)), "literal": literal, "comment": _comment}
    environment.globals |= {function.__name__: function for function in _FOR_TEMPLATES}
    return environment.get_template(template).render(
        DEFAULT_DISK_GB=DEFAULT_DISK_GB,
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


def literal(value: Any) -> str:
    """The value as JSON whose strings Terraform takes as they are."""
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


def _comment(text: str) -> str:
    """Wraps text as a bash comment. The text must not come from the config."""
    words = " ".join(text.split())
    return textwrap.fill(words, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def apis(planned: tuple[Pool, ...]) -> list[str]:
    """Google Cloud services that the project must enable, without .googleapis.com."""
    tpus = any(pool.slice for pool in planned)
    return ["container", "compute", "iam", "storage", "artifactregistry", "cloudbuild", *(["tpu"] if tpus else [])]


def kind(config: Service | Job) -> str:
    return "job" if isinstance(config, Job) else "service"


def reservation_path(reservation: Reservation) -> str:
    """The name of a reservation, or its path if another project shares it."""
    if reservation.project is None:
        return reservation.name
    return f"projects/{reservation.project}/reservations/{reservation.name}"


def kubernetes_accounts(config: Service | Job) -> list[str]:
    """Kubernetes service accounts that act as the config's IAM service account."""
    names = [config.service_account.service_account] if config.service_account else []
    return names + ([config.head_account] if isinstance(config, Service) and config.head_account else [])


def cpu_nodes(config: Service | Job) -> int:
    """Maximum nodes of the default pool: each Pod without a TPU may need one."""
    return SPARE_CPU_NODES + sum(group.maximum for group in config.worker_groups if in_default_pool(group))


def own_images(config: Service | Job) -> list[str]:
    """The config's images that `gcloud builds` makes from this repository, as words of a bash script."""
    own = re.compile(
        re.escape(f"{REGISTRY}/{config.cloud.project}/{REPOSITORY}/") + rf"([a-z-]+:{re.escape(PODSLICE_VERSION)})"
    )
    found = {match[1] for group in config.worker_groups if (match := own.fullmatch(group.image))}
    return [f'"{REGISTRY}/${{PROJECT_ID}}/{REPOSITORY}/{image}"' for image in sorted(found)]


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


_FOR_TEMPLATES = (
    about,
    apis,
    cpu_nodes,
    create_flags,
    is_zone,
    kind,
    kubernetes_accounts,
    minimum_version,
    reservation_path,
    secrets,
)
