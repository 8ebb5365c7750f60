"""What the scripts and Terraform share of a config: its accounts, images and services, and how they are called."""

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
"""Nodes that the default pool may grow to for Ray heads, operators and gateways."""


def apis(planned: tuple[Pool, ...]) -> list[str]:
    """Google Cloud's services that a project must have turned on, without their .googleapis.com."""
    tpus = any(pool.slice for pool in planned)
    return ["container", "compute", "iam", "storage", "artifactregistry", "cloudbuild", *(["tpu"] if tpus else [])]


def kind(config: Service | Job) -> str:
    return "job" if isinstance(config, Job) else "service"


def reservation_path(reservation: Reservation) -> str:
    """Its name, or its path where another project shares it."""
    if reservation.project is None:
        return reservation.name
    return f"projects/{reservation.project}/reservations/{reservation.name}"


def kubernetes_accounts(config: Service | Job) -> list[str]:
    """Kubernetes service accounts that act as the config's IAM service account."""
    names = [config.service_account.service_account] if config.service_account else []
    return names + ([config.head_account] if isinstance(config, Service) and config.head_account else [])


def cpu_nodes(config: Service | Job) -> int:
    """The most nodes of the default pool: each Pod without a TPU may need one of its own."""
    return SPARE_CPU_NODES + sum(group.maximum for group in config.worker_groups if in_default_pool(group))


def own_images(config: Service | Job) -> list[str]:
    """Words of a script for the images that the project's own build makes: its names, at its version."""
    own = re.compile(
        re.escape(f"{REGISTRY}/{config.cloud.project}/{REPOSITORY}/") + rf"([a-z-]+:{re.escape(PODSLICE_VERSION)})"
    )
    found = {match[1] for group in config.worker_groups if (match := own.fullmatch(group.image))}
    return [f'"{REGISTRY}/${{PROJECT_ID}}/{REPOSITORY}/{image}"' for image in sorted(found)]
