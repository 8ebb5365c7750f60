"""Cells: who may publish in them, where their own processes run, and whether their state lasts."""

from collections.abc import Iterator

from kuberay.check.findings import Location
from kuberay.check.rules import Problem, error, note, rule, warning
from kuberay.check.typed.subjects import Configured, cells_of
from ray_configs.cell import CellConfig
from ray_configs.service import Service

_CELL = "Podslice: the cell's admin"


@rule(Configured, "cell-without-host", _CELL)
def cell_without_host(configured: Configured) -> Iterator[Problem]:
    """A cell's own processes have a worker to run on, so that no slice is bought for them."""
    cell = configured.app.config
    if not isinstance(cell, CellConfig) or cell.slice is None:
        return
    if not any(group.minimum for group in configured.service.worker_groups):
        why = (
            "the cell's own processes always run and need CPUs, but no group keeps a worker: the autoscaler would hold "
            f"a whole {cell.slice} slice for them, and every call waits until it is there"
        )
        instead = "min_replicas=1, or another application that keeps workers"
        yield warning(configured.at("config.min_replicas"), why, instead)


@rule(Service, "cell-admins", _CELL)
def cell_admins(service: Service) -> Iterator[Problem]:
    """A cell with API keys names its admins."""
    open_cells = ", ".join(f"/sax/{cell.name}" for cell in cells_of(service) if not cell.admins)
    if service.api_keys is not None and open_cells:
        why = f"every key may publish and unpublish in {open_cells}, until a client sets the cell's ACL"
        instead = "CellConfig(admins=('alice',)), and the key written alice=KEY in the Secret"
        yield note(Location(f"Service/{service.name} api_keys"), why, instead)


@rule(Configured, "cell-state", _CELL)
def cell_state(configured: Configured) -> Iterator[Problem]:
    """A cell's state is in a bucket, which outlives the Pod and can refuse a second writer."""
    cell, service = configured.app.config, configured.service
    if not isinstance(cell, CellConfig) or cell.state_bucket is not None:
        return
    bucket = f"gs://{service.bucket.name if service.bucket else 'BUCKET_NAME'}"
    instead = f"state_uri='{bucket}/{cell.name}'" + ("" if service.bucket else ", and Service(bucket=Bucket())")
    say = warning
    if not service.is_mounted(cell.state_uri):
        why = "is a folder of the Pod and lost with it: after a restart nothing is published"
    elif service.bucket is not None and service.bucket.read_only:
        say, why = error, "is in a read-only mount: the cell cannot write its state, and refuses to publish"
    else:
        why = "goes through GCSFuse, which cannot refuse to create a file twice: two cells would overwrite each other"
    yield say(configured.at("config.state_uri"), f"{cell.state_uri} {why}", instead)
