"""Shrinks a TPU service to fit this machine, and says what differs.

The config is changed before it is rendered, so that manifest, cluster and applications agree.
"""

from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from kuberay.local import LocalError
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.loading import explained
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import TpuSlice, every_slice

ZERO_AFTER_S = 15
"""How long replicas, and then slices, may be idle in a drill that waits for their end."""
STATE = "~/.local/state/podslice"
"""Holds a folder with the state of each cell, which the cell's next local run reads."""

OF_ITS_MODEL = (
    *("tokenizer", "vae", "prediction", "loras", "lora_folder", "controlnets", "safety_checker", "prepared_programs"),
)
"""Of a picture model's fields those that name files, which are not the demo's or not here."""


@dataclass(frozen=True)
class Scaled:
    """The smaller service, and sentences on how it differs from its config."""

    service: Service
    notes: tuple[str, ...]


def scale_down(
    service: Service, *, tiny: bool = False, hosts_per_slice: int | None = None, soon_zero: bool = False
) -> Scaled:
    """Raises LocalError if no slice has that many hosts, the smaller service is not valid, or it keeps slices.

    Args:
        soon_zero: replicas on slices scale to zero, after ZERO_AFTER_S.
    """
    notes: list[str] = []
    applications = [_application(service, app, tiny, hosts_per_slice, notes) for app in service.applications]
    if soon_zero:
        applications = [_soon_zero(app) for app in applications]
        notes.append(f"idle replicas, and then idle slices, are given back after {ZERO_AFTER_S} s, not after minutes")
    fields = {name: getattr(service, name) for name in service.model_fields_set} | {"applications": applications}
    try:
        return Scaled(Service(**fields), tuple(notes))
    except ValidationError as error:  # slices that differed may now have the same shape
        why = f"scaled down, {service.name} is not a valid service:\n{explained(error)}"
        if hosts_per_slice is not None:
            why += f"\n--hosts-per-slice {hosts_per_slice} may be why: choose another number, or leave it out"
        raise LocalError(why) from error


def _application(
    service: Service, app: Application, tiny: bool, hosts_per_slice: int | None, notes: list[str]
) -> Application:
    config, update = app.config, dict[str, Any]()
    slice = config.slice
    if slice is not None and hosts_per_slice is not None and slice.hosts > hosts_per_slice:
        smaller = _with_hosts(slice, hosts_per_slice)
        update["slice"] = smaller
        notes.append(
            f"{app.serve_name}: slices of {smaller} ({smaller.hosts} hosts, {smaller.chips} chips) "
            f"instead of {slice} ({slice.hosts} hosts, {slice.chips} chips)"
        )
    if isinstance(config, LLMConfig) and tiny:
        update |= _tiny_llm(app, config, notes)
    elif isinstance(config, StableDiffusionConfig) and tiny:
        update |= _demo_pictures(app, config, notes)
    elif isinstance(config, CellConfig):
        update |= _cell(service, app, config, tiny, notes)
    return app.model_copy(update={"config": config.model_copy(update=update)})


def _soon_zero(app: Application) -> Application:
    if app.config.slice is None:
        return app
    if app.config.min_replicas:
        raise LocalError(f"--from-zero: {app.serve_name} keeps {app.config.min_replicas} slices: set min_replicas=0")
    if isinstance(app.config, CellConfig):
        return app
    return app.model_copy(update={"config": app.config.model_copy(update={"zero_after_s": ZERO_AFTER_S})})


def _tiny_llm(app: Application, config: LLMConfig, notes: list[str]) -> dict[str, Any]:
    small = config.as_tiny()
    update = {name: value for name, value in small if value != getattr(config, name)}
    sizes = ", ".join(f"{name} {value}" for name, value in update.items() if name != "tiny")
    notes.append(
        f"{app.serve_name}: a tiny random model of the same architecture and sharding instead of "
        f"{config.model}{', with ' + sizes if sizes else ''}"
    )
    return update


def _demo_pictures(app: Application, config: StableDiffusionConfig, notes: list[str]) -> dict[str, Any]:
    demo = StableDiffusionConfig.demo()
    left_out = [name for name in OF_ITS_MODEL if getattr(config, name) != getattr(demo, name)]
    without = f", without {', '.join(left_out)}" if left_out else ""
    notes.append(f"{app.serve_name}: the demo model at {', '.join(demo.sizes)} instead of {config.model}{without}")
    fields = (*demo.model_fields_set, *left_out)
    return {name: getattr(demo, name) for name in fields} | {"model_id": config.served_name}


def _cell(service: Service, app: Application, config: CellConfig, tiny: bool, notes: list[str]) -> dict[str, Any]:
    update: dict[str, Any] = {}
    if tiny and not config.tiny:
        update["tiny"] = True
        notes.append(
            f"{app.serve_name}: published models are served as tiny random ones of the same architecture and sharding; "
            "of a checkpoint only config and tokenizer are read, if they can be reached"
        )
    if config.state_bucket is not None or service.is_mounted(config.state_uri):
        update["state_uri"] = f"{STATE}/{service.name}-{config.name}"
        notes.append(
            f"{app.serve_name}: published models are kept in {update['state_uri']} instead of {config.state_uri} "
            f"and served again by the next run of {service.name} here; remove that folder to start with none"
        )
    return update


def _with_hosts(slice: TpuSlice, hosts: int) -> TpuSlice:
    """The slice with that many hosts and the same chips on each."""
    alike = [
        other
        for other in every_slice()
        if (other.generation, other.chips_per_host) == (slice.generation, slice.chips_per_host)
        and other.hosts <= slice.hosts
        and other.ray_refusal is None
    ]
    fitting = [other for other in alike if other.hosts == hosts]
    if not fitting:
        counts = ", ".join(str(count) for count in sorted({other.hosts for other in alike}))
        raise LocalError(
            f"there is no {slice.generation} slice of {hosts} hosts with {slice.chips_per_host} chips each; "
            f"--hosts-per-slice can be {counts}"
        )
    return fitting[0]
