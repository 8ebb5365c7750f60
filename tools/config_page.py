"""Writes docs/configs.md from the configs' fields and the docstrings under them: `python -m tools.config_page`."""

import ast
import html
import inspect
import re
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ray_configs import (
    capacity,
    cell,
    cloud,
    exposure,
    job,
    llm,
    observability,
    service,
    stable_diffusion,
    tpu,
    upgrade,
)
from ray_configs.applications.callers import CallerConfig
from ray_configs.applications.kv_events import KVEvents
from ray_configs.applications.replicas import AppConfig
from ray_configs.cluster import deployed

PATH = Path(__file__).parents[1] / "docs" / "configs.md"

SECTIONS: dict[str, tuple[type[BaseModel], ...]] = {
    "What runs": (service.Service, service.Application, job.Job),
    "Applications": (llm.LLMConfig, CallerConfig, KVEvents, stable_diffusion.StableDiffusionConfig, cell.CellConfig),
    "Capacity: how slices are bought": (
        capacity.OnDemand,
        capacity.Spot,
        capacity.Reservation,
        capacity.FlexStart,
        capacity.Queued,
    ),
    "Exposure: how clients reach a service": (
        exposure.ClusterIP,
        exposure.LoadBalancer,
        exposure.Gateway,
        exposure.GatewayRef,
        exposure.IdentityAwareProxy,
    ),
    "Google Cloud": (cloud.GoogleCloud, cloud.MaintenanceWindow, cloud.Bucket, cloud.Identity, cloud.SecretKey),
    "The cluster": (
        deployed.Head,
        observability.Observability,
        service.GcsFaultTolerance,
        upgrade.NewCluster,
        upgrade.Incremental,
    ),
}
HEAD = """# Configs

Made from the code by `python -m tools.config_page`.

A config is a Python module that makes one `Service` or `Job`; the ready ones are in `ray_configs/catalog/`. The fields
of an application's config are also the arguments of `serve run`:

    serve run apps.llm:build model=PATH max_batch_size=64

An unknown field or an impossible value is refused, by name.

A slice is written `GENERATION:TOPOLOGY`, such as `v5e:4x8`; see [Slices](#slices).
"""
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<", "min_length": "length ≥", "max_length": "length ≤"}


def page() -> str:
    """The page as Markdown."""
    parts = [HEAD]
    for title, models in SECTIONS.items():
        parts.append(f"## {title}\n")
        parts += [_model(model) for model in models]
    return "\n".join([*parts, _slices()])


def _model(model: type[BaseModel]) -> str:
    described = fields(model)
    module = service.__name__ if model.__name__ in service.__all__ else model.__module__
    about = f"### {model.__name__}\n\n`{module}`. {inspect.getdoc(model)}\n"
    if not described:
        return about
    rows = "\n".join(f"| `{name}` | {kind} | {default} | {text} |" for name, (kind, default, text) in described.items())
    return f"{about}\n| field | type | default | |\n| --- | --- | --- | --- |\n{rows}\n"


def fields(model: type[BaseModel]) -> dict[str, tuple[str, str, str]]:
    """Name -> (type, default, docstring) of each field: the model's own first, those of every application last."""
    found: dict[str, tuple[str, str, str]] = {}
    kinds = [kind for kind in reversed(model.__mro__) if kind.__module__.startswith("ray_configs")]
    for kind in sorted(kinds, key=lambda kind: kind is AppConfig):
        body = ast.parse(inspect.getsource(kind)).body[0].body
        for statement, after in zip(body, [*body[1:], None]):
            if not (isinstance(statement, ast.AnnAssign) and statement.target.id in model.model_fields):
                continue
            name = statement.target.id
            if name == "kind":  # a Kind's discriminator in dumps, which users do not write
                continue
            doc = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            default, bounds = _default(statement.value, inspect.getmodule(kind))
            found.setdefault(name, (_type(statement.annotation) + bounds, default, cell(inspect.cleandoc(doc))))
    return found


def _type(annotation: ast.expr) -> str:
    if isinstance(annotation, ast.Subscript) and getattr(annotation.value, "id", "") == "Annotated":
        annotation = annotation.slice.elts[0]
    return f"`{cell(ast.unparse(annotation).replace(' | ', ' or '))}`"


def _default(value: ast.expr | None, module: Any) -> tuple[str, str]:
    """The default as text, and the bounds given to `Field`."""
    bounds = ""
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Field":
        said = {word.arg: word.value for word in value.keywords}
        bounds = "".join(
            f" {BOUNDS[name]} {eval(ast.unparse(bound), vars(module))}"  # a number, or a constant's name
            for name, bound in said.items()
            if name in BOUNDS and not (name == "min_length" and ast.unparse(bound) == "1")
        )
        value = value.args[0] if value.args else said.get("default_factory")
    if value is None:
        return "required", bounds
    if isinstance(value, ast.Name):
        if value.id == "DEMO_MODEL":
            return "the demo model", bounds
        constant = getattr(module, value.id, None)
        return ("`{}`" if value.id == "dict" else f"`{constant!r}`"), bounds
    return f"`{cell(ast.unparse(value))}`", bounds


def cell(text: str) -> str:
    """Text for a table cell: one line, without |, which Markdown would show as \\| in code."""
    line = re.sub(
        r"`([^`]*\|[^`]*)`", lambda code: f"<code>{html.escape(code[1], quote=False)}</code>", " ".join(text.split())
    )
    return line.replace("|", "&#124;")


def _slices() -> str:
    rows = []
    for generation in tpu.GENERATIONS.values():
        hosts = ", ".join(
            f"`{generation.name}:{machine.single_host}"
            + (f":{machine.suffix}`" if len(generation.machines_for(machine.single_host)) > 1 else "`")
            for machine in generation.machines
            if machine.single_host
        )
        several = generation.multi_host
        listed = ", ".join(several) if len(several) <= 12 else f"{', '.join(several[:8])} ... {several[-1]}"
        rows.append(
            f"| {generation.name} | {hosts} | {listed} | {generation.hbm_gib} | {generation.hbm_gb_per_s} "
            f"| {generation.bf16_tflops} | {generation.ici_gb_per_s} |"
        )
    return (
        "## Slices\n\n"
        "What GKE sells and Podslice places. Peak figures are one chip's, as Google publishes them. A host of a\n"
        "larger slice has four chips. Where a topology is sold in two sizes of host, write which: `v5e:2x4:8t` is\n"
        "one host of eight chips, `v5e:2x4:4t` two hosts of four.\n\n"
        "| generation | one host | several hosts | HBM, GiB | HBM, GB/s | bf16, TFLOP/s | ICI, GB/s |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n" + "\n".join(rows) + "\n"
    )


if __name__ == "__main__":
    PATH.write_text(page())
    print(f"wrote {PATH}")
