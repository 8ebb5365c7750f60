"""What a config's cells need that their manifest cannot show: a place that keeps their state, a host, and a guard."""

from collections.abc import Iterator

from kuberay.check.findings import Finding
from ray_configs.cell import CellConfig
from ray_configs.exposure import ClusterIP
from ray_configs.service import Service

READ_ONLY = "roles/storage.objectViewer"


def check_cell(service: Service, cell: CellConfig, where: str) -> Iterator[Finding]:
    """Complaints about one cell. `where`: its application, as findings name it."""
    if cell.state_bucket is None:
        yield from _state_in_a_folder(service, cell, f"{where}.config.state_uri")
    else:
        yield from _state_in_a_bucket(service, cell, cell.state_bucket, f"{where}.config.state_uri")
    if cell.slice is not None and not any(group.minimum for group in service.worker_groups):
        yield Finding(
            "cell-without-host",
            "warning",
            f"{where}.config.min_replicas",
            "the cell's own processes always run and need CPUs of some worker, but no group keeps one: the autoscaler "
            f"would hold a whole {cell.slice} slice for them, and every call waits until it has come",
            "min_replicas=1, or another application whose workers are there anyway",
        )


def check_guard(service: Service, cells: list[CellConfig]) -> Iterator[Finding]:
    """Who may publish. Louder than for a service that only answers: it decides what runs on the slices."""
    named = ", ".join(f"/sax/{cell.name}" for cell in cells)
    if service.api_keys is not None:
        if open_cells := ", ".join(f"/sax/{cell.name}" for cell in cells if not cell.admins):
            yield Finding(
                "cell-admins",
                "note",
                f"Service/{service.name} api_keys",
                f"every key may publish and unpublish in {open_cells}, until a client sets the cell's ACL",
                "CellConfig(admins=('alice',)), and the key written alice=KEY in the Secret",
            )
        return
    if isinstance(service.exposure, ClusterIP):
        return
    public = not service.exposure.internal
    reach = "it has an address on the internet" if public else "the whole VPC can"
    yield Finding(
        "no-api-keys",
        "error" if public else "warning",
        f"Service/{service.name} exposure",
        f"everyone who reaches the {service.exposure.kind} ({reach}) may publish, change and unpublish the models of "
        f"{named}, and use them all",
        "Service(api_keys=SecretKey(secret=..., key=...)) with entries NAME=KEY in the Secret, and "
        "CellConfig(admins=(NAME,))",
    )


def _state_in_a_folder(service: Service, cell: CellConfig, where: str) -> Iterator[Finding]:
    gs = f"gs://{service.bucket.name if service.bucket else 'BUCKET_NAME'}"
    instead = f"state_uri='{gs}/{cell.name}'" + ("" if service.bucket else ", and Service(bucket=Bucket())")
    if not service.is_mounted(cell.state_uri):
        yield Finding(
            "cell-state",
            "warning",
            where,
            f"{cell.state_uri} is a folder of the Pod and lost with it: another Pod's cell has nothing published",
            instead,
        )
    elif service.bucket.read_only:
        why = f"{cell.state_uri} is in a read-only mount: the cell can keep nothing there, and refuses to publish"
        yield Finding("cell-state", "error", where, why, instead)
    else:
        yield Finding(
            "cell-state",
            "warning",
            where,
            f"{cell.state_uri} goes through GCSFuse, which has no way to make a file only if there is none: two cells "
            "would overwrite each other's state",
            instead,
        )


def _state_in_a_bucket(service: Service, cell: CellConfig, bucket: str, where: str) -> Iterator[Finding]:
    identity = service.service_account
    if identity is None:
        yield Finding(
            "bucket-permission",
            "warning",
            where,
            f"the Pods' default service account may write {cell.state_uri} only if someone has allowed it; else the "
            "cell keeps nothing and refuses to publish",
            f"bucket=Bucket(name={bucket!r}, mount=None), which brings a service account that may",
        )
    elif service.bucket is not None and service.bucket.name != bucket:
        yield Finding(
            "bucket-permission",
            "warning",
            where,
            f"the service account {identity.service_account} is given rights in gs://{service.bucket.name}, and the "
            f"state is in gs://{bucket}",
            f"state_uri='gs://{service.bucket.name}/{cell.name}', or a role in gs://{bucket} given by hand",
        )
    elif identity.bucket_role == READ_ONLY:
        yield Finding(
            "bucket-permission",
            "error",
            f"Service/{service.name} identity.bucket_role",
            f"{READ_ONLY} only reads: the cell could not write its state to {cell.state_uri}, and would refuse to "
            "publish",
            "bucket_role='roles/storage.objectUser'",
        )
