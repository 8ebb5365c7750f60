"""What a typed config promises that its manifest cannot show: does the model fit, can it be fetched, who may ask it."""

import importlib.util
from collections.abc import Iterator

from kuberay.check.configs.cells import check_cell, check_guard
from kuberay.check.configs.model_size import weights
from kuberay.check.findings import Finding
from ray_configs.capacity import FlexStart, Queued
from ray_configs.cell import CellConfig
from ray_configs.exposure import ClusterIP
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

GATED = ("meta-llama/", "google/gemma", "mistralai/")
"""Hub ids that start so ask for a licence to be accepted, and then for a token."""
ROOM_FOR_CACHE = 0.85
"""Share of the memory that weights may take before there is little left for KV cache and activations."""


def check_config(config: Service | Job) -> list[Finding]:
    """Complaints about a config, beside those about the objects rendered from it."""
    if isinstance(config, Job):
        return []
    found = []
    for index, app in enumerate(config.applications):
        where = f"Service/{config.name} applications[{index}]"
        found += [*_fits(app, where), *_can_be_fetched(config, app, where), *_exists(app, where), *_lasts(app, where)]
        if isinstance(app.config, CellConfig):
            found += check_cell(config, app.config, where)
    cells = [app.config for app in config.applications if isinstance(app.config, CellConfig)]
    return [*found, *(check_guard(config, cells) if cells else _is_guarded(config))]


def _fits(app: Application, where: str) -> Iterator[Finding]:
    config = app.config
    if not isinstance(config, LLMConfig) or config.slice is None or (needed := weights(config)) is None:
        return
    slice = config.slice
    has = f"the {slice.chips} chips of {slice} have {slice.hbm_gib} GiB together"
    instead = "a larger slice" + ("" if needed.int8 else ", or quantize_weights='int8'")
    if needed.gib > slice.hbm_gib:
        why = f"weights take about {needed.gib:.0f} GiB ({needed.how}), and {has}: the replica would die while loading"
        yield Finding("model-too-large", "error", f"{where}.config.slice", why, instead)
    elif needed.gib > slice.hbm_gib * ROOM_FOR_CACHE:
        why = f"weights take about {needed.gib:.0f} GiB ({needed.how}), and {has}: little is left for the KV cache"
        yield Finding("model-too-large", "warning", f"{where}.config.slice", why, instead)


def _can_be_fetched(service: Service, app: Application, where: str) -> Iterator[Finding]:
    model = getattr(app.config, "model", "")
    if model.startswith(GATED) and service.hugging_face_token is None:
        yield Finding(
            "gated-model",
            "warning",
            f"Service/{service.name} hugging_face_token",
            f"{model} is gated on the Hugging Face hub: without a token the download is refused with 401 or 403, and "
            "Serve starts the replica again and again",
            "hugging_face_token=HUGGING_FACE_TOKEN (from ray_configs.cloud), and the Secret that it names",
        )
    if model.startswith("gs://") and service.service_account is None:
        yield Finding(
            "bucket-permission",
            "warning",
            f"{where}.config.model",
            f"the Pods' default service account may read {model} only if someone has allowed it; else loading fails "
            "with 403",
            "bucket=Bucket(name=..., mount=None), which brings a service account that may read it",
        )


def _exists(app: Application, where: str) -> Iterator[Finding]:
    module = app.config.import_path.partition(":")[0]
    if importlib.util.find_spec(module) is None:
        why = f"{module} is not part of this version: Serve would answer DEPLOY_FAILED, No module named {module!r}"
        yield Finding("not-in-this-version", "warning", f"{where}.config", why, "an image of a version that has it")


def _lasts(app: Application, where: str) -> Iterator[Finding]:
    if isinstance(app.capacity, FlexStart | Queued):
        hours = app.capacity.max_run_hours
        yield Finding(
            "capacity-ends",
            "note",
            f"{where}.capacity",
            f"{app.capacity.kind} machines are taken back {hours} hours after they came, and the replica with them; "
            "another starts when there is capacity again",
            "on-demand or a reservation for a service that must stay up",
        )


def _is_guarded(service: Service) -> Iterator[Finding]:
    if isinstance(service.exposure, ClusterIP) or service.api_keys is not None:
        return
    public = not service.exposure.internal
    yield Finding(
        "no-api-keys",
        "warning" if public else "note",
        f"Service/{service.name} exposure",
        f"everyone who reaches the {service.exposure.kind} may use the models"
        + (": it has an address on the internet" if public else ", from the whole VPC"),
        "api_keys=SecretKey(secret=..., key=...)",
    )
