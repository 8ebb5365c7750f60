"""The same as `commands`, as HCL for Google's Terraform provider: cluster, node pools, bucket, rights, repository.

Not there: the Kubernetes Secrets, whose values would be in Terraform's state, Kueue, and the image build. The bash
script has those.
"""

from collections.abc import Iterator
from typing import Any

from kuberay.node_pools.hcl import Block, Expression, document, written
from kuberay.node_pools.pool_flags import reservation_path
from kuberay.node_pools.pools import DEFAULT_DISK_GB, Pool, is_zone, pools, region
from kuberay.node_pools.setting import (
    REPOSITORY,
    apis,
    cpu_nodes,
    kind,
    kubernetes_accounts,
    own_images,
    registry_location,
)
from kuberay.node_pools.versions import refuse_old_version
from ray_configs.capacity import FlexStart, Queued, Reservation, Spot
from ray_configs.job import Job
from ray_configs.service import Service

PROVIDER = ">= 7.0"
CLUSTER = Expression("google_container_cluster.cluster.id")
ACCOUNT = "google_service_account.pods"
MEMBER = Expression(f'"serviceAccount:${{{ACCOUNT}.email}}"')
ENABLED = {"enabled": True}
AFTER_APIS = {"depends_on": [Expression("google_project_service.apis")]}


def terraform(config: Service | Job) -> str:
    """HCL, laid out as `terraform fmt` does. Raises ConfigError as `commands` does."""
    planned = pools(config)
    refuse_old_version(config)
    blocks = [
        Block(
            "terraform",
            blocks=[
                Block(
                    "required_providers",
                    {"google": Expression(f'{{ source = "hashicorp/google", version = "{PROVIDER}" }}')},
                )
            ],
            comment=f"What the {kind(config)} {config.name} needs on Google Cloud. Secrets, Kueue and the image build: "
            "`node-pools --format gcloud`.",
        ),
        Block('provider "google"', {"project": config.cloud.project, "region": region(config)}),
        Block(
            _resource("project_service", "apis"),
            {
                "for_each": Expression(f"toset({written(apis(planned))})"),
                "service": Expression('"${each.value}.googleapis.com"'),
                "disable_on_destroy": False,
            },
        ),
        _cluster(config),
        _default_pool(config),
        *_workload_policies(config, planned),
        *(_node_pool(pool) for pool in planned),
        *_bucket(config),
        *_identity(config),
        *_repository(config),
    ]
    return document(blocks)


def _resource(kind: str, name: str) -> str:
    return f'resource "google_{kind}" "{name}"'


def _cluster(config: Service | Job) -> Block:
    cloud = config.cloud
    attributes = {"name": cloud.cluster, "location": cloud.location}
    blocks = []
    if cloud.zones and not is_zone(cloud.location):
        attributes["node_locations"] = cloud.zones
    if cloud.cluster_version:
        attributes["min_master_version"] = cloud.cluster_version
    else:
        blocks.append(Block("release_channel", {"channel": "RAPID"}))
    attributes |= {
        "initial_node_count": 1,
        "remove_default_node_pool": True,
        "deletion_protection": False,
        **AFTER_APIS,
    }
    return Block(
        _resource("container_cluster", "cluster"),
        attributes,
        [
            *blocks,
            Block("workload_identity_config", {"workload_pool": f"{cloud.project}.svc.id.goog"}),
            Block(
                "addons_config",
                blocks=[Block("ray_operator_config", ENABLED), Block("gcs_fuse_csi_driver_config", ENABLED)],
            ),
            Block("gateway_api_config", {"channel": "CHANNEL_STANDARD"}),
        ],
        comment="The rapid channel has the newest Ray operator." if not cloud.cluster_version else "",
    )


def _default_pool(config: Service | Job) -> Block:
    return Block(
        _resource("container_node_pool", "default-pool"),
        {"name": "default-pool", "cluster": CLUSTER, "initial_node_count": 1},
        [
            Block("autoscaling", {"total_min_node_count": 1, "total_max_node_count": cpu_nodes(config)}),
            Block("node_config", {"machine_type": config.cloud.head_machine_type}),
        ],
        comment="Ray heads and Pods without TPUs.",
    )


def _workload_policies(config: Service | Job, planned: tuple[Pool, ...]) -> Iterator[Block]:
    for name, topology in {pool.workload_policy: pool.slice.topology for pool in planned if pool.slice}.items():
        if name:
            yield Block(
                _resource("compute_resource_policy", name),
                {"name": name, "region": region(config)},
                [Block("workload_policy", {"type": "HIGH_THROUGHPUT", "accelerator_topology": topology})],
            )


def _node_pool(pool: Pool) -> Block:
    attributes = {"name": pool.name, "cluster": CLUSTER}
    if pool.zone:
        attributes["node_locations"] = [pool.zone]
    attributes["initial_node_count" if pool.autoscaled else "node_count"] = pool.nodes
    blocks = []
    scheduled = isinstance(pool.capacity, FlexStart | Queued)
    if pool.autoscaled:
        limits = {"min_node_count": pool.nodes, "max_node_count": pool.max_nodes}
        blocks.append(Block("autoscaling", limits | ({"location_policy": "ANY"} if scheduled else {})))
    if pool.topology:
        blocks.append(Block("placement_policy", {"type": "COMPACT", "tpu_topology": pool.topology}))
    if pool.workload_policy:
        policy = Expression(f"google_compute_resource_policy.{pool.workload_policy}.name")
        blocks.append(Block("placement_policy", {"type": "COMPACT", "policy_name": policy}))
    if isinstance(pool.capacity, Queued):
        blocks.append(Block("queued_provisioning", ENABLED))
    if scheduled:
        blocks.append(Block("management", {"auto_repair": False, "auto_upgrade": True}))
    return Block(_resource("container_node_pool", pool.name), attributes, [*blocks, _node_config(pool)])


def _node_config(pool: Pool) -> Block:
    attributes: dict[str, Any] = {"machine_type": pool.machine_type}
    if pool.disk_gb > DEFAULT_DISK_GB:
        attributes["disk_size_gb"] = pool.disk_gb
    affinity = {"consume_reservation_type": "NO_RESERVATION"}
    match pool.capacity:
        case Spot():
            attributes["spot"] = True
        case FlexStart(max_run_hours=hours) | Queued(max_run_hours=hours):
            attributes |= {"flex_start": True, "max_run_duration": f"{hours * 3600}s"}
        case Reservation() as reservation:
            affinity = {
                "consume_reservation_type": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": [reservation_path(reservation)],
            }
    return Block("node_config", attributes, [Block("reservation_affinity", affinity)])


def _bucket(config: Service | Job) -> Iterator[Block]:
    if config.bucket is not None:
        yield Block(
            _resource("storage_bucket", "bucket"),
            {
                "name": config.bucket.name,
                "location": region(config),
                "uniform_bucket_level_access": True,
                "public_access_prevention": "enforced",
            },
        )


def _identity(config: Service | Job) -> Iterator[Block]:
    identity = config.service_account
    if identity is None:
        return
    yield Block(_resource("service_account", "pods"), {"account_id": identity.service_account, **AFTER_APIS})
    if config.bucket is not None:
        for name, role in (("objects", identity.bucket_role), ("metadata", "roles/storage.legacyBucketReader")):
            bucket = Expression("google_storage_bucket.bucket.name")
            yield Block(
                _resource("storage_bucket_iam_member", name), {"bucket": bucket, "role": role, "member": MEMBER}
            )
    pool = "${google_container_cluster.cluster.workload_identity_config[0].workload_pool}"
    yield Block(
        _resource("service_account_iam_member", "workload_identity"),
        {
            "for_each": Expression(f"toset({written(kubernetes_accounts(config))})"),
            "service_account_id": Expression(f"{ACCOUNT}.name"),
            "role": "roles/iam.workloadIdentityUser",
            "member": Expression(f'"serviceAccount:{pool}[{config.namespace}/${{each.value}}]"'),
        },
        comment="The Pods' Kubernetes service accounts may act as it.",
    )


def _repository(config: Service | Job) -> Iterator[Block]:
    if not own_images(config):
        return
    yield Block(
        _resource("artifact_registry_repository", "images"),
        {"repository_id": REPOSITORY, "location": registry_location(), "format": "DOCKER", **AFTER_APIS},
    )
    yield Block('data "google_project" "project"')
    account = '"serviceAccount:${data.google_project.project.number}-compute@developer.gserviceaccount.com"'
    yield Block(
        _resource("artifact_registry_repository_iam_member", "nodes"),
        {
            "repository": Expression("google_artifact_registry_repository.images.name"),
            "location": registry_location(),
            "role": "roles/artifactregistry.reader",
            "member": Expression(account),
        },
        comment="The nodes' account has that right by itself only in older projects.",
    )
