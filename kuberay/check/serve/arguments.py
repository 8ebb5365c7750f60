"""Podslice's own applications: their `args` are validated by the config models that the applications use."""

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, meant, rule, warning
from kuberay.check.serve.tpus import slices_of, tpus_by_hand
from kuberay.check.subjects import ServeConfig
from ray_configs.applications.replicas import AppConfig
from ray_configs.base import nearest
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig

_BUILDERS: dict[str, type[AppConfig]] = {
    model.import_path: model for model in (LLMConfig, StableDiffusionConfig, CellConfig)
}


@rule(ServeConfig, "serve-import", "Podslice: the builders of its applications")
def import_path(config: ServeConfig) -> Iterator[Problem]:
    """An import path that is nearly one of Podslice's is that one, misspelt."""
    for path in (application["import_path"] for application in config.applications):
        if not re.fullmatch(r"\w+(\.(?!py:)\w+)*:\w+", path.text or "") or _exists(*str(path.text).split(":")):
            continue
        if near := nearest(str(path.text), _BUILDERS):
            why = f"there is no {path.text}: Serve cannot import it, and the application ends as DEPLOY_FAILED"
            yield warning(path, why, f"write {near}")


def _exists(module: str, attribute: str) -> bool:
    """Whether Podslice has it. Of the module only its parents are imported, and they hold nothing."""
    if any(path.partition(":")[0] == module for path in _BUILDERS):
        return attribute in ("build", "app")
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@rule(ServeConfig, "serve-args", "Podslice: LLMConfig, StableDiffusionConfig, CellConfig")
def arguments(config: ServeConfig) -> Iterator[Problem]:
    """The application's args are valid. Otherwise the builder refuses them at startup."""
    for application in config.applications:
        model, told, args = model_of(application), _read(application), application["args"]
        left_open = any(node.placeholder for node in args.fields.values())
        for problem in told.errors() if model and isinstance(told, ValidationError) else ():
            if model and (not left_open or (problem["loc"] and problem["type"] != "missing")):
                yield _refused(args, problem, model)


def model_of(application: Node) -> type[AppConfig] | None:
    """The config model of an application; None if it is not Podslice's, or its args are a placeholder."""
    args = application["args"]
    readable = (isinstance(args.value, dict) or not args.present) and not args.placeholder
    return _BUILDERS.get(application["import_path"].text or "") if readable else None


def _read(application: Node) -> AppConfig | ValidationError | None:
    """The config that the builder makes of an application's args, without placeholders; or its refusal."""
    if (model := model_of(application)) is None:
        return None
    fields = application["args"].fields.items()
    try:
        return model.model_validate({key: _plain(node.value) for key, node in fields if not node.placeholder})
    except ValidationError as refusal:
        return refusal


def _plain(value: Any) -> Any:
    """The value without the YAML parser's own types."""
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, list) else value


def _refused(args: Node, problem: Any, model: type[AppConfig]) -> Problem:
    node, keys = args, [key for key in problem["loc"] if isinstance(key, str)]
    for key in keys:
        if isinstance(node.value, dict) and (key in node.value or key == keys[-1]):
            node = node[key]
    ends = f"{model.import_path} refuses its args, and the application ends as DEPLOY_FAILED"
    if problem["type"] == "extra_forbidden":
        why = f"there is no {keys[-1]} in {model.__name__}: {ends}"
        return error(node, why, meant(keys[-1], model.model_fields, "remove it"))
    if problem["type"] == "missing":
        return error(node, f"{model.__name__} needs {keys[-1]}: {ends}", f"write {keys[-1]}")
    said = problem["msg"].removeprefix("Value error, ")
    return error(node, f"{said[0].lower()}{said[1:]}: {ends}", f"write what {model.__name__} takes")


@rule(ServeConfig, "serve-args", "Podslice: a replica owns a slice, which a worker group must have")
def slices(config: ServeConfig) -> Iterator[Problem]:
    """Some worker group has the slice that an application names, and enough of them for its replicas."""
    asked: dict[str, list[tuple[Node, AppConfig]]] = {}
    for application in () if tpus_by_hand(config) else config.applications:
        told, args = _read(application), application["args"]
        if isinstance(told, ValidationError) or (told and any(node.placeholder for node in args.fields.values())):
            return  # not all demands are known
        if told and told.slice:
            asked.setdefault(str(told.slice), []).append((args, told))
    groups = [group for group in config.cluster.groups if group.tpu]
    unclear = any(group.pod.slice is None or group.hosts is None for group in groups)  # other rules report why
    for wanted, users in asked.items():
        args = users[-1][0]
        counts = [slices_of(group) for group in groups if group.pod.slice and str(group.pod.slice) == wanted]
        if not counts and not unclear:
            offered = ", ".join(sorted({str(group.pod.slice) for group in groups})) or "no TPUs"
            why = f"no worker group has slices of {wanted} (they have {offered}): the replica waits forever"
            instead = "name the slice of a group, or change the group's selectors, chips and numOfHosts"
            yield error(args["slice"], why, instead)
        if not counts or None in counts:
            continue
        there = sum(count or 0 for count in counts)
        least = sum(told.min_replicas for _, told in users)
        most = sum(told.max_replicas for _, told in users)
        has = f"the worker groups have {there} slice{'' if there == 1 else 's'} of {wanted}"
        if least > there:
            why = f"{least} replicas are kept, a slice each, and {has}: the others wait forever"
            instead = "raise the group's replicas (and maxReplicas), or lower min_replicas"
            yield error(args["min_replicas"], why, instead)
        elif most > there:
            why = f"there may be {most} replicas, a slice each, and {has}: the last ones would wait forever"
            yield warning(args["max_replicas"], why, "raise the group's maxReplicas, or lower max_replicas")
