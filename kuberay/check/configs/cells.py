"""What a config's cells need that their manifest cannot show: a place that keeps their state, a host, and admins."""

from collections.abc import Iterator

from kuberay.check.configs.services import Configured, cells_of
from kuberay.check.findings import Location
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.cell import CellConfig
from ray_configs.service import Service

READ_ONLY = "roles/storage.objectViewer"
_CELL = "Podslice: the cell's admin"


@rule(Configured, "cell-without-host", _CELL)
def cell_without_host(configured: Configured) -> Iterator[Problem]:
    """The cell's own processes have a worker to run on, without a slice being bought for them."""
    cell = configured.app.config
    if not isinstance(cell, CellConfig) or cell.slice is None:
        return
    if not any(group.minimum for group in configured.service.worker_groups):
        yield warning(
            configured.at("config.min_replicas"),
            "the cell's own processes always run and need CPUs of some worker, but no group keeps one: the autoscaler "
            f"would hold a whole {cell.slice} slice for them, and every call waits until it has come",
            "min_replicas=1, or another application whose workers are there anyway",
        )


@rule(Service, "cell-admins", _CELL)
def cell_admins(service: Service) -> Iterator[Problem]:
    """Who may publish in a cell is said."""
    open_cells = ", ".join(f"/sax/{cell.name}" for cell in cells_of(service) if not cell.admins)
    if service.api_keys is not None and open_cells:
        why = f"every key may publish and unpublish in {open_cells}, until a client sets the cell's ACL"
        instead = "CellConfig(admins=('alice',)), and the key written alice=KEY in the Secret"
        yield note(Location(f"Service/{service.name} api_keys"), why, instead)


@rule(Configured, "cell-state", _CELL)
def cell_state(configured: Configured) -> Iterator[Problem]:
    """What is published is kept in a bucket, which outlives the Pod and knows one writer."""
    cell, service = configured.app.config, configured.service
    if not isinstance(cell, CellConfig) or cell.state_bucket is not None:
        return
    gs = f"gs://{service.bucket.name if service.bucket else 'BUCKET_NAME'}"
    say, instead = (
        warning,
        f"state_uri='{gs}/{cell.name}'" + ("" if service.bucket else ", and Service(bucket=Bucket())"),
    )
    if not service.is_mounted(cell.state_uri):
        why = "is a folder of the Pod and lost with it: another Pod's cell has nothing published"
    elif service.bucket is not None and service.bucket.read_only:
        say, why = error, "is in a read-only mount: the cell can keep nothing there, and refuses to publish"
    else:
        why = (
            "goes through GCSFuse, which has no way to make a file only if there is none: two cells would overwrite "
            "each other's state"
        )
    yield say(configured.at("config.state_uri"), f"{cell.state_uri} {why}", instead)


@rule(Configured, "bucket-permission", "Google Cloud Storage")
def bucket_permission(configured: Configured) -> Iterator[Problem]:
    """A cell's state is in a bucket that its service account may write."""
    cell, service = configured.app.config, configured.service
    if not isinstance(cell, CellConfig) or cell.state_bucket is None:
        return
    identity, place = service.service_account, configured.at("config.state_uri")
    if identity is None:
        yield warning(
            place,
            f"the Pods' default service account may write {cell.state_uri} only if someone has allowed it; else the "
            "cell keeps nothing and refuses to publish",
            f"bucket=Bucket(name={cell.state_bucket!r}, mount=None), which brings a service account that may",
        )
    elif service.bucket is not None and service.bucket.name != cell.state_bucket:
        yield warning(
            place,
            f"the service account {identity.service_account} is given rights in gs://{service.bucket.name}, and the "
            f"state is in gs://{cell.state_bucket}",
            f"state_uri='gs://{service.bucket.name}/{cell.name}', or a role in gs://{cell.state_bucket} given by hand",
        )
    elif identity.bucket_role == READ_ONLY:
        why = f"{READ_ONLY} only reads: the cell could not write its state to {cell.state_uri}, and refuses to publish"
        yield error(
            Location(f"Service/{service.name} identity.bucket_role"), why, "bucket_role='roles/storage.objectUser'"
        )
