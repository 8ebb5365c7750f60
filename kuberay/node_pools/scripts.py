"""Fills in the templates of what a config needs on Google Cloud: create.sh, delete.sh and Terraform's main.tf.json."""

import json
import re
import textwrap
from functools import cache
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from ruamel.yaml import YAML

from kuberay.node_pools.pools import DEFAULT_DISK_GB, Pool, in_default_pool, is_zone, pools, region
from kuberay.node_pools.versions import GKES_SHUTDOWN_S, minimum_version, refuse_old_version
from ray_configs import capacity
from ray_configs.cloud import SecretKey
from ray_configs.cluster.labels import POOL_CAPACITY, POOL_OWNER
from ray_configs.cluster.release import PODSLICE_VERSION, REGISTRY
from ray_configs.job import Job
from ray_configs.loading import ConfigError
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
"""kubectl output format that tells KubeRay versions apart: `/` before 1.6, `string/` for 1.6, then `string/object`."""


OPERATOR_MARK = f"jsonpath={_RAY_SERVICE}.rayClusterConfig.properties.authOptions.type}}"
"""kubectl output format that shows nothing before KubeRay 1.5.1."""


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
    for field in ("cluster_flags", "pool_flags"):
        if getattr(config.cloud, field):
            raise ConfigError(
                f"cloud.{field} are gcloud's, and Terraform has no such flags: leave them out, and write what they "
                "mean into an override.tf.json beside the main.tf.json"
            )
    written = YAML(typ="safe").load(_filled("terraform.yaml.jinja", config))
    return json.dumps(written, indent=2) + "\n"


@cache
def _templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"quote": lambda value: quote(str(value)), "literal": literal, "comment": _comment}
    environment.globals |= {function.__name__: function for function in _FOR_TEMPLATES}
    return environment


def _filled(template: str, config: Service | Job) -> str:
    """Fills in a template. Values of the config go through `quote` for bash, or `literal` for Terraform."""
    planned = pools(config)
    return (
        _templates()
        .get_template(template)
        .render(
            DEFAULT_DISK_GB=DEFAULT_DISK_GB,
            GKES_SHUTDOWN_S=GKES_SHUTDOWN_S,
            OPERATOR_MARK=OPERATOR_MARK,
            OPERATOR_MARKS=OPERATOR_MARKS,
            POOL_CAPACITY=POOL_CAPACITY,
            POOL_OWNER=POOL_OWNER,
            REGISTRY_LOCATION=REGISTRY_LOCATION,
            REPOSITORY=REPOSITORY,
            SYSTEM_PODS_S=capacity.SYSTEM_PODS_S,
            account=config.service_account if config.service_account and config.service_account.create else None,
            apis=apis(planned),
            capacity=capacity,
            channel=release_channel(config),
            cloud=config.cloud,
            config=config,
            images=own_images(config),
            operated=isinstance(config, Service) or config.ray,
            planned=planned,
            queued=any(isinstance(group.capacity, capacity.Queued) for group in config.worker_groups),
            region=region(config),
            window=config.cloud.maintenance,
            workload="job" if isinstance(config, Job) else "service",
        )
    )


def literal(value: Any) -> str:
    """The value as JSON whose strings Terraform takes as they are."""
    return json.dumps(value).replace("${", "$${").replace("%{", "%%{")


@cache
def _comment(text: str) -> str:
    """Wraps text as a bash comment. The text must not come from the config."""
    words = " ".join(text.split())
    return textwrap.fill(words, 118, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"


def apis(planned: tuple[Pool, ...]) -> list[str]:
    """Google Cloud services that the project must enable, without .googleapis.com."""
    tpus = any(pool.slice for pool in planned)
    return ["container", "compute", "iam", "storage", "artifactregistry", "cloudbuild", *(["tpu"] if tpus else [])]


def release_channel(config: Service | Job) -> str | None:
    """The channel to enrol the cluster in; None for gcloud's default."""
    return config.cloud.release_channel or (None if config.cloud.cluster_version else "rapid")


def cluster_options(config: Service | Job) -> dict[str, str | bool]:
    """Options of `gcloud container clusters create` for what the config says of versions, upgrades and networks."""
    cloud, window = config.cloud, config.cloud.maintenance
    options: dict[str, str | bool | None] = {
        "cluster-version": cloud.cluster_version,
        "release-channel": release_channel(config),
        "network": cloud.network,
        "subnetwork": cloud.subnetwork,
        "cluster-secondary-range-name": cloud.pod_range,
        "services-secondary-range-name": cloud.service_range,
    }
    if window is not None:
        options |= {
            f"maintenance-window-{name}": value
            for name, value in (("start", window.begins), ("end", window.ends), ("recurrence", window.recurrence))
        }
    if cloud.private:
        options |= dict.fromkeys(
            ("enable-ip-alias", "enable-private-nodes", "enable-dns-access", "no-enable-ip-access"), True
        )
    return {name: value for name, value in options.items() if value is not None}


def more_flags(flags: tuple[str, ...]) -> str:
    """Flags of the config, each on a line that continues the one before."""
    return "".join(f" \\\n      {quote(flag)}" for flag in flags)


def labels(pool: Pool) -> str:
    """The pool's labels as gcloud takes them."""
    return ",".join(f"{key}={value}" for key, value in pool.binding.items())


def taints(pool: Pool) -> str:
    """The pool's taints as gcloud takes them."""
    return ",".join(f"{key}={value}:NoSchedule" for key, value in pool.binding.items())


def reservation_path(reservation: capacity.Reservation) -> str:
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
    return SPARE_CPU_NODES + sum(group.maximum for group in config.worker_groups if in_default_pool(config, group))


def own_images(config: Service | Job) -> list[str]:
    """The config's images that `gcloud builds` makes from this repository, as words of a bash script."""
    own = re.compile(
        re.escape(f"{REGISTRY}/{config.cloud.project}/{REPOSITORY}/") + rf"([a-z-]+:{re.escape(PODSLICE_VERSION)})"
    )
    found = {match[1] for group in config.worker_groups if (match := own.fullmatch(group.image))}
    return [f'"{REGISTRY}/${{PROJECT_ID}}/{REPOSITORY}/{image}"' for image in sorted(found)]


def secrets(config: Service | Job) -> dict[str, list[tuple[str, str, str]]]:
    """By name of the Secret: each key, the environment variable with its value, and the prompt for it."""
    wanted = [
        (config.hugging_face_token, "HF_TOKEN", "Hugging Face token"),
        (getattr(config, "api_keys", None), "PODSLICE_API_KEYS", "API keys, KEY or NAME=KEY, comma-separated"),
    ]
    wanted += [(value, name, name) for name, value in config.env.items() if isinstance(value, SecretKey)]
    entries: dict[str, list[tuple[str, str, str]]] = {}
    for secret, variable, what in wanted:
        if secret is not None:
            entries.setdefault(secret.secret, []).append((secret.key, variable, what))
    return entries


_FOR_TEMPLATES = (
    cluster_options,
    cpu_nodes,
    is_zone,
    kubernetes_accounts,
    labels,
    minimum_version,
    more_flags,
    reservation_path,
    secrets,
    taints,
)
