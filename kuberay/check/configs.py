"""What a typed config shows and its manifest does not: if models fit and can be fetched, who may use them; cells."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from kuberay.check.findings import Location
from kuberay.check.rules import Problem, error, note, rule, warning
from ray_configs.applications.model_size import parameters
from ray_configs.capacity import FlexStart, Queued
from ray_configs.cell import CellConfig
from ray_configs.exposure import ClusterIP
from ray_configs.llm import EngineConfig, LLMConfig
from ray_configs.service import Application, Service

_CONFIG = "the typed config"
GATED = ("meta-llama/", "google/gemma", "mistralai/")
"""Prefixes of hub ids that need an accepted licence and a token."""
READ_ONLY = "roles/storage.objectViewer"
_CELL = "Podslice: the cell's admin"
ROOM_FOR_CACHE = 0.85
"""Share of memory that weights may take; more leaves little for KV cache and activations."""


class Weights(NamedTuple):
    """Memory that a model's weights take, and how it was computed."""

    gib: float
    int8: bool
    how: str


def weights(config: EngineConfig) -> Weights | None:
    """Size of all weights; None if unknown.

    From config.json if the checkpoint is a local folder, else from the size in most names (`-8B`). An estimate that
    finds what obviously does not fit; exact numbers need the compiler.
    """
    found = parameters(config.model)
    if found is None or config.tiny:
        return None
    count, origin = found
    int8 = config.quantize_weights == "int8" or _prepared_as_int8(Path(config.model))
    each = 1 if int8 else {"bfloat16": 2, "float32": 4}[config.dtype]
    return Weights(count * each / 2**30, int8, f"{count / 1e9:.3g}B parameters by {origin}, {each} bytes each")


def _prepared_as_int8(folder: Path) -> bool:
    """Whether `python -m apps.batch.prepare` has already quantized the weights to int8."""
    try:
        return json.loads((folder / "manifest.json").read_text())["quantize_weights"] == "int8"
    except (OSError, ValueError, KeyError, TypeError):
        return False


@dataclass(frozen=True)
class Configured:
    """An application of a config."""

    service: Service
    index: int
    app: Application

    def at(self, path: str) -> Location:
        return Location(f"Service/{self.service.name} applications[{self.index}].{path}")


def configured(service: Service) -> list[Configured]:
    return [Configured(service, index, app) for index, app in enumerate(service.applications)]


def cells_of(service: Service) -> list[CellConfig]:
    return [app.config for app in service.applications if isinstance(app.config, CellConfig)]


@rule(Configured, "model-too-large", _CONFIG + ": weights beside the memory of a slice")
def model_too_large(configured: Configured) -> Iterator[Problem]:
    """A model's weights fit into the memory of its slice, and leave room for the KV cache."""
    config, place = configured.app.config, configured.at("config.slice")
    if not isinstance(config, LLMConfig) or config.slice is None or (needed := weights(config)) is None:
        return
    has = f"the {config.slice.chips} chips of {config.slice} have {config.slice.hbm_gib} GiB together"
    why = f"weights take about {needed.gib:.0f} GiB ({needed.how}), and {has}: "
    instead = "a larger slice" + ("" if needed.int8 else ", or quantize_weights='int8'")
    if needed.gib > config.slice.hbm_gib:
        yield error(place, why + "the replica would die while loading", instead)
    elif needed.gib > config.slice.hbm_gib * ROOM_FOR_CACHE:
        yield warning(place, why + "little is left for the KV cache", instead)


@rule(Configured, "gated-model", "Hugging Face hub: gated models")
def gated_model(configured: Configured) -> Iterator[Problem]:
    """A gated model is fetched with a token."""
    model, service = getattr(configured.app.config, "model", ""), configured.service
    if model.startswith(GATED) and service.hugging_face_token is None:
        why = f"{model} is gated on the Hugging Face hub: without a token the download is refused with 401 or 403"
        instead = "hugging_face_token=HUGGING_FACE_TOKEN (from ray_configs.cloud), and the Secret that it names"
        yield warning(Location(f"Service/{service.name} hugging_face_token"), why, instead)


@rule(Configured, "bucket-permission", "Google Cloud Storage")
def bucket_permission(configured: Configured) -> Iterator[Problem]:
    """A model in a bucket is read by a service account with permission."""
    model = getattr(configured.app.config, "model", "")
    if model.startswith("gs://") and configured.service.service_account is None:
        why = f"the Pods' default service account may read {model} only if someone allowed it; else it fails with 403"
        instead = "bucket=Bucket(name=..., mount=None), which brings a service account that may read it"
        yield warning(configured.at("config.model"), why, instead)


@rule(Configured, "capacity-ends", "GKE: flex-start and queued machines have a longest run time")
def capacity_ends(configured: Configured) -> Iterator[Problem]:
    """Machines that are lent for a time are taken back, and their replicas with them."""
    lent = configured.app.capacity
    if isinstance(lent, FlexStart | Queued):
        why = f"{lent.kind} machines are taken back after {lent.max_run_hours} hours, and the replica with them"
        yield note(configured.at("capacity"), why, "on-demand or a reservation for a service that must stay up")


@rule(Service, "no-api-keys", _CONFIG + ": exposure and api_keys")
def no_api_keys(service: Service) -> Iterator[Problem]:
    """An exposed service asks for API keys. Otherwise everyone who reaches it may use it, and publish in its cells."""
    if isinstance(service.exposure, ClusterIP) or service.api_keys is not None:
        return
    public, cells = not service.exposure.internal, cells_of(service)
    reach = "it has an address on the internet" if public else "the whole VPC can"
    does, instead = "use the models", "api_keys=SecretKey(secret=..., key=...)"
    if cells:  # more severe: whoever publishes decides what runs on the slices
        named = ", ".join(f"/sax/{cell.name}" for cell in cells)
        does = f"publish, change and unpublish the models of {named}, and use them all"
        instead = f"Service({instead}) with entries NAME=KEY in the Secret, and CellConfig(admins=(NAME,))"
    say = (error if cells else warning) if public else (warning if cells else note)
    why = f"everyone who reaches the {service.exposure.kind} ({reach}) may {does}"
    yield say(Location(f"Service/{service.name} exposure"), why, instead)


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


@rule(Configured, "bucket-permission", "Google Cloud Storage")
def write_permission(configured: Configured) -> Iterator[Problem]:
    """A service account may write the bucket with a cell's state, or with the files and batches of a model."""
    app = configured.app.config
    if isinstance(app, CellConfig) and app.state_bucket is not None:
        fails = "the cell cannot write its state and refuses to publish"
        yield from _unwritable(configured, "state_uri", app.state_uri, app.name, fails)
    batches = getattr(app, "batches", None) or ""
    if batches.startswith("gs://"):
        yield from _unwritable(configured, "batches", batches, "batches", "no file of a batch can be uploaded")


def _unwritable(configured: Configured, field: str, uri: str, folder: str, fails: str) -> Iterator[Problem]:
    """Why the URI of a field, in a bucket, may not be writable. `folder`: its name in another bucket."""
    service, bucket = configured.service, uri.removeprefix("gs://").partition("/")[0]
    identity, place = service.service_account, configured.at(f"config.{field}")
    if identity is None:
        why = f"the Pods' default service account may write {uri} only if someone allowed it; else {fails}"
        instead = f"bucket=Bucket(name={bucket!r}, mount=None), which brings a service account that may"
        yield warning(place, why, instead)
    elif service.bucket is not None and service.bucket.name != bucket:
        given, kept = f"gs://{service.bucket.name}", f"gs://{bucket}"
        why = f"the service account {identity.service_account} is given rights in {given}, but {field} is in {kept}"
        yield warning(place, why, f"{field}='{given}/{folder}', or grant it a role in {kept} yourself")
    elif identity.bucket_role == READ_ONLY:
        place = Location(f"Service/{service.name} identity.bucket_role")
        yield error(place, f"{READ_ONLY} cannot write to {uri}: {fails}", "bucket_role='roles/storage.objectUser'")
