"""What scripts and Terraform share: a config's accounts, images and Google Cloud services."""

import re

from kuberay.node_pools.pools import Pool, in_default_pool
from ray_configs.capacity import Reservation
from ray_configs.cluster.release import PODSLICE_VERSION, REGISTRY
from ray_configs.job import Job
from ray_configs.service import Service

REPOSITORY = "podslice"
REGISTRY_LOCATION = REGISTRY.removesuffix("-docker.pkg.dev")
"""`us` for us-docker.pkg.dev."""
SPARE_CPU_NODES = 4
"""Nodes of the default pool for Ray heads, operators and gateways, at most."""


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
