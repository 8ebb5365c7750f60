"""create.sh.jinja for Google's Terraform provider: cluster, node pools, bucket, permissions, image repository.

The output is Terraform's JSON syntax: `node-pools CONFIG --format terraform > main.tf.json`. Only the bash script has
Kubernetes Secrets, whose values would end up in Terraform's state, Kueue, and the image build.
"""

import json
from typing import Any

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
from kuberay.node_pools.versions import refuse_old_version
from ray_configs.capacity import FlexStart, Queued, Reservation, Spot
from ray_configs.job import Job
from ray_configs.service import Service

Body = dict[str, Any]
Resources = dict[str, dict[str, Body]]
"""By type, then by name."""


class Expression(str):
    """A string in which ${...} is a Terraform expression."""


PROVIDER = {"google": {"source": "hashicorp/google", "version": ">= 7.0"}}
CLUSTER = Expression("${google_container_cluster.cluster.id}")
MEMBER = Expression("serviceAccount:${google_service_account.pods.email}")
ENABLED = {"enabled": True}
AFTER_APIS = {"depends_on": ["google_project_service.apis"]}


def terraform(config: Service | Job) -> str:
    """The text of a main.tf.json. Raises ConfigError as `commands` does."""
    planned = pools(config)
    refuse_old_version(config)
    services = {"for_each": _each(apis(planned)), "service": Expression("${each.value}.googleapis.com")}
    resources: Resources = {
        "google_project_service": {"apis": services | {"disable_on_destroy": False}},
        "google_container_cluster": {"cluster": _cluster(config)},
        "google_compute_resource_policy": _workload_policies(config, planned),
        "google_container_node_pool": {
            "default-pool": _default_pool(config),
            **{pool.name: _node_pool(pool) for pool in planned},
        },
        **_bucket(config),
        **_identity(config),
        **_repository(config),
    }
    written = {
        "//": f"What the {kind(config)} {config.name} needs on Google Cloud. Secrets, Kueue and the image build: "
        "`node-pools --format gcloud`.",
        "terraform": {"required_providers": PROVIDER},
        "provider": {"google": {"project": config.cloud.project, "region": region(config)}},
        **({"data": {"google_project": {"project": {}}}} if own_images(config) else {}),
        "resource": {kind: bodies for kind, bodies in resources.items() if bodies},
    }
    return json.dumps(literal(written), indent=2) + "\n"


def literal(value: Any) -> Any:
    """The value with every string escaped to be literal, except an Expression."""
    match value:
        case Expression():
            return str(value)
        case str():
            return value.replace("${", "$${").replace("%{", "%%{")
        case dict():
            return {key: literal(inner) for key, inner in value.items()}
        case list() | tuple():
            return [literal(inner) for inner in value]
    return value


def _each(names: list[str]) -> Expression:
    return Expression(f"${{toset({json.dumps(names)})}}")


def _cluster(config: Service | Job) -> Body:
    cloud = config.cloud
    newest = {"//": "The rapid channel has the newest Ray operator.", "release_channel": {"channel": "RAPID"}}
    return {
        "name": cloud.cluster,
        "location": cloud.location,
        **({"node_locations": cloud.zones} if cloud.zones and not is_zone(cloud.location) else {}),
        **({"min_master_version": cloud.cluster_version} if cloud.cluster_version else newest),
        "initial_node_count": 1,
        "remove_default_node_pool": True,
        "deletion_protection": False,
        **AFTER_APIS,
        "workload_identity_config": {"workload_pool": f"{cloud.project}.svc.id.goog"},
        "addons_config": {"ray_operator_config": ENABLED, "gcs_fuse_csi_driver_config": ENABLED},
        "gateway_api_config": {"channel": "CHANNEL_STANDARD"},
    }


def _default_pool(config: Service | Job) -> Body:
    return {
        "//": "Ray heads and Pods without TPUs.",
        "name": "default-pool",
        "cluster": CLUSTER,
        "initial_node_count": 1,
        "autoscaling": {"total_min_node_count": 1, "total_max_node_count": cpu_nodes(config)},
        "node_config": {"machine_type": config.cloud.head_machine_type},
    }


def _workload_policies(config: Service | Job, planned: tuple[Pool, ...]) -> dict[str, Body]:
    return {
        pool.workload_policy: {
            "name": pool.workload_policy,
            "region": region(config),
            "workload_policy": {"type": "HIGH_THROUGHPUT", "accelerator_topology": pool.slice.topology},
        }
        for pool in planned
        if pool.slice and pool.workload_policy
    }


def _node_pool(pool: Pool) -> Body:
    body: Body = {"name": pool.name, "cluster": CLUSTER}
    if pool.zone:
        body["node_locations"] = [pool.zone]
    body["initial_node_count" if pool.autoscaled else "node_count"] = pool.nodes
    scheduled = isinstance(pool.capacity, FlexStart | Queued)
    if pool.autoscaled:
        limits = {"min_node_count": pool.nodes, "max_node_count": pool.max_nodes}
        body["autoscaling"] = limits | ({"location_policy": "ANY"} if scheduled else {})
    if pool.topology:
        body["placement_policy"] = {"type": "COMPACT", "tpu_topology": pool.topology}
    if pool.workload_policy:
        policy = Expression(f"${{google_compute_resource_policy.{pool.workload_policy}.name}}")
        body["placement_policy"] = {"type": "COMPACT", "policy_name": policy}
    if isinstance(pool.capacity, Queued):
        body["queued_provisioning"] = ENABLED
    if scheduled:
        body["management"] = {"auto_repair": False, "auto_upgrade": True}
    return body | {"node_config": _node_config(pool)}


def _node_config(pool: Pool) -> Body:
    body: Body = {"machine_type": pool.machine_type}
    if pool.disk_gb > DEFAULT_DISK_GB:
        body["disk_size_gb"] = pool.disk_gb
    affinity: Body = {"consume_reservation_type": "NO_RESERVATION"}
    match pool.capacity:
        case Spot():
            body["spot"] = True
        case FlexStart(max_run_hours=hours) | Queued(max_run_hours=hours):
            body |= {"flex_start": True, "max_run_duration": f"{hours * 3600}s"}
        case Reservation() as reservation:
            affinity = {
                "consume_reservation_type": "SPECIFIC_RESERVATION",
                "key": "compute.googleapis.com/reservation-name",
                "values": [reservation_path(reservation)],
            }
    return body | {"reservation_affinity": affinity}


def _bucket(config: Service | Job) -> Resources:
    if config.bucket is None:
        return {}
    body = {"name": config.bucket.name, "location": region(config), "uniform_bucket_level_access": True}
    return {"google_storage_bucket": {"bucket": body | {"public_access_prevention": "enforced"}}}


def _identity(config: Service | Job) -> Resources:
    identity = config.service_account
    if identity is None:
        return {}
    bucket = {"bucket": Expression("${google_storage_bucket.bucket.name}"), "member": MEMBER}
    roles = {"objects": identity.bucket_role, "metadata": "roles/storage.legacyBucketReader"}
    pool = "${google_container_cluster.cluster.workload_identity_config[0].workload_pool}"
    acts_as = {
        "//": "The Pods' Kubernetes service accounts may act as it.",
        "for_each": _each(kubernetes_accounts(config)),
        "service_account_id": Expression("${google_service_account.pods.name}"),
        "role": "roles/iam.workloadIdentityUser",
        "member": Expression(f"serviceAccount:{pool}[{config.namespace}/${{each.value}}]"),
    }
    return {
        "google_service_account": {"pods": {"account_id": identity.service_account, **AFTER_APIS}},
        "google_storage_bucket_iam_member": {name: bucket | {"role": role} for name, role in roles.items()}
        if config.bucket is not None
        else {},
        "google_service_account_iam_member": {"workload_identity": acts_as},
    }


def _repository(config: Service | Job) -> Resources:
    if not own_images(config):
        return {}
    where = {"location": REGISTRY_LOCATION}
    account = "serviceAccount:${data.google_project.project.number}-compute@developer.gserviceaccount.com"
    reads = {
        "//": "The nodes' account has that right by itself only in older projects.",
        "repository": Expression("${google_artifact_registry_repository.images.name}"),
        "role": "roles/artifactregistry.reader",
        "member": Expression(account),
    }
    return {
        "google_artifact_registry_repository": {
            "images": {"repository_id": REPOSITORY, "format": "DOCKER", **where, **AFTER_APIS}
        },
        "google_artifact_registry_repository_iam_member": {"nodes": reads | where},
    }
