"""Models of a typed config: whether they fit their slices, can be fetched, and may write what they keep."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kuberay.check.findings import Location
from kuberay.check.rules import Problem, error, note, rule, warning
from kuberay.check.typed.subjects import Configured
from kuberay.render.ray.pods import SHARED_MEMORY, machine_memory_gb
from ray_configs.applications.model_size import parameters
from ray_configs.capacity import FlexStart, Queued
from ray_configs.cell import CellConfig
from ray_configs.cluster.workers import CPU_POD_MEMORY_GB
from ray_configs.llm import EngineConfig, LLMConfig

_CONFIG = "the typed config"
GATED = ("meta-llama/", "google/gemma", "mistralai/")
"""Prefixes of hub ids that need an accepted licence and a token."""
PROGRAMS_KEY = "PODSLICE_PROGRAMS_KEY"
READ_ONLY = "roles/storage.objectViewer"
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
    """Whether `python -m apps.jobs.prepare` has already quantized the weights to int8."""
    try:
        return json.loads((folder / "manifest.json").read_text())["quantize_weights"] == "int8"
    except (OSError, ValueError, KeyError, TypeError):
        return False


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


@rule(Configured, "host-memory", _CONFIG + ": host memory beside that of a Pod")
def host_memory(configured: Configured) -> Iterator[Problem]:
    """Pages in host memory fit into the memory of a Pod, beside Ray's shared memory."""
    config, place = configured.app.config, configured.at("config.prefix_cache_host_gib")
    if not isinstance(config, LLMConfig) or not config.prefix_cache_host_gib:
        return
    pod_gib = (machine_memory_gb(config.slice) if config.slice else CPU_POD_MEMORY_GB) * 1e9 / 2**30
    free = int(pod_gib * (1 - SHARED_MEMORY))
    why = f"{config.prefix_cache_host_gib:g} GiB of a Pod that has {pod_gib:.0f}: "
    if config.prefix_cache_host_gib > pod_gib:
        yield error(place, why + "it would be killed for its memory while it starts", f"at most {free}")
    elif config.prefix_cache_host_gib > free:
        yield warning(place, why + "little is left for Ray's object store and for loading weights", f"at most {free}")


@rule(Configured, "programs-key", _CONFIG + ": prepared programs are sealed")
def programs_key(configured: Configured) -> Iterator[Problem]:
    """Replicas that load programs from elsewhere have the key that these are sealed with."""
    config, env = configured.app.config, configured.service.env
    if PROGRAMS_KEY in env:
        return
    why = f"without {PROGRAMS_KEY}, the key that seals them, no replica loads them: each compiles its own"
    instead = f'env={{"{PROGRAMS_KEY}": SecretKey(secret="podslice", key="programs-key")}} in the Service'
    if getattr(config, "prepared_programs", None) is not None:
        yield warning(configured.at("config.prepared_programs"), why, instead)
    if "://" in (getattr(config, "compile_cache", None) or ""):
        yield warning(configured.at("config.compile_cache"), why, instead)


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
    """A model in a bucket, or what belongs to it, is read by a service account with permission."""
    if configured.service.service_account is not None:
        return
    for field, location in _locations(configured.app.config):
        if location.startswith("gs://"):
            may = f"the Pods' default service account may read {location} only if someone allowed it"
            instead = "bucket=Bucket(name=..., mount=None), which brings a service account that may read it"
            yield warning(configured.at(f"config.{field}"), f"{may}; else it fails with 403", instead)


def _locations(config: object) -> Iterator[tuple[str, str]]:
    """Where a replica reads what it serves, by field; those of adapters and LoRAs by name, too."""
    for field in ("model", "prepared_programs", "vae"):
        yield field, getattr(config, field, None) or ""
    for field in ("adapters", "loras", "controlnets"):
        named = getattr(config, field, None)
        yield from ((f"{field}.{name}", location) for name, location in (named or {}).items())


@rule(Configured, "capacity-ends", "GKE: flex-start and queued machines have a longest run time")
def capacity_ends(configured: Configured) -> Iterator[Problem]:
    """Machines that are lent for a time are taken back, and their replicas with them."""
    lent = configured.app.capacity
    if isinstance(lent, FlexStart | Queued):
        why = f"{lent.kind} machines are taken back after {lent.max_run_hours} hours, and the replica with them"
        yield note(configured.at("capacity"), why, "on-demand or a reservation for a service that must stay up")


@rule(Configured, "bucket-permission", "Google Cloud Storage")
def write_permission(configured: Configured) -> Iterator[Problem]:
    """A service account may write the bucket with a cell's state, or with batches or compiled programs of a model."""
    app = configured.app.config
    if isinstance(app, CellConfig) and app.state_bucket is not None:
        fails = "the cell cannot write its state and refuses to publish"
        yield from _unwritable(configured, "state_uri", app.state_uri, app.name, fails)
    batches = getattr(app, "batches", None) or ""
    if batches.startswith("gs://"):
        yield from _unwritable(configured, "batches", batches, "batches", "no file of a batch can be uploaded")
    cache = getattr(app, "compile_cache", None) or ""
    if cache.startswith("gs://"):
        yield from _unwritable(configured, "compile_cache", cache, "programs", "each start compiles its programs")


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
