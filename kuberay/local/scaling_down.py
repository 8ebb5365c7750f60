"""Makes a service that this machine can hold of one that is meant for TPUs, and says what is different.

The config is changed before it is rendered, so that manifest, cluster and applications still agree.
"""

import importlib.util
from dataclasses import dataclass

from pydantic import ValidationError

from kuberay.local.errors import LocalError
from ray_configs.llm import LLMConfig
from ray_configs.loading import explained
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import TpuSlice, every_slice

TINY_BATCH, TINY_STEP_TOKENS, TINY_MODEL_LEN = 8, 16, 512
"""Largest batch, step and sequence of a tiny model: each step shape is a program to compile, on every host."""


@dataclass(frozen=True)
class Scaled:
    """A service, and sentences on how it differs from what was asked for."""

    service: Service
    said: tuple[str, ...]


def scale_down(service: Service, *, tiny: bool = False, hosts_per_slice: int | None = None) -> Scaled:
    """Raises LocalError where nothing is left to run, or no slice has that many hosts."""
    said: list[str] = []
    applications = []
    for app in service.applications:
        if not _exists(app.config.import_path):
            said.append(f"left out: application {app.serve_name}; there is no {app.config.import_path} yet")
            continue
        applications.append(_application(app, tiny, hosts_per_slice, said))
    if not applications:
        raise LocalError(f"none of the applications of {service.name} can run here: {'; '.join(said)}")
    fields = {name: getattr(service, name) for name in service.model_fields_set} | {"applications": applications}
    try:
        return Scaled(Service(**fields), tuple(said))
    except ValidationError as error:  # slices that differed may now be of one shape
        raise LocalError(f"made smaller, {service.name} is no valid service:\n{explained(error)}") from error


def _application(app: Application, tiny: bool, hosts_per_slice: int | None, said: list[str]) -> Application:
    config, update = app.config, {}
    slice = config.slice
    if slice is not None and hosts_per_slice is not None and slice.hosts > hosts_per_slice:
        slice = _with_hosts(slice, hosts_per_slice)
        update["slice"] = slice
        said.append(
            f"{app.serve_name}: slices of {slice} ({slice.hosts} hosts, {slice.chips} chips) "
            f"instead of {config.slice} ({config.slice.hosts} hosts, {config.slice.chips} chips)"
        )
    if isinstance(config, LLMConfig):
        if tiny:
            update |= _tiny(config)
            sizes = ", ".join(f"{name} {value}" for name, value in update.items() if name.startswith("max_"))
            said.append(
                f"{app.serve_name}: a tiny random model of the same architecture and sharding instead of "
                f"{config.model}{', with ' + sizes if sizes else ''}"
            )
    elif tiny and isinstance(config, StableDiffusionConfig):
        demo = StableDiffusionConfig.demo()
        update |= {name: getattr(demo, name) for name in demo.model_fields_set}
        update["model_id"] = config.served_name
        said.append(f"{app.serve_name}: the demo model at {', '.join(demo.sizes)} instead of {config.model}")
    elif tiny:
        if "tiny" in type(config).model_fields:
            update["tiny"] = True
            said.append(f"{app.serve_name}: a tiny random model of the same architecture")
        else:
            said.append(f"{app.serve_name}: has no tiny form and runs as it is")
    return app.model_copy(update={"config": config.model_copy(update=update)})


def _tiny(config: LLMConfig) -> dict[str, int | bool]:
    update: dict[str, int | bool] = {"tiny": True}
    length = config.max_model_len
    if length is None or length > TINY_MODEL_LEN:
        update["max_model_len"] = TINY_MODEL_LEN
    if config.max_batch_size > TINY_BATCH:
        update["max_batch_size"] = TINY_BATCH
    if config.max_step_tokens > TINY_STEP_TOKENS:
        update["max_step_tokens"] = TINY_STEP_TOKENS
    return update


def _with_hosts(slice: TpuSlice, hosts: int) -> TpuSlice:
    """The slice of that many hosts with the same chips on each."""
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


def _exists(import_path: str) -> bool:
    try:
        return importlib.util.find_spec(import_path.partition(":")[0]) is not None
    except ModuleNotFoundError:
        return False
