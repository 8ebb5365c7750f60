"""Applications of Podslice's own: their `args` are read by the same models that the application reads them with."""

import importlib.util
import re
from collections.abc import Iterator
from typing import Any

from pydantic import ValidationError

from kuberay.check.manifests import Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, nearest, rule, warning
from kuberay.check.serve.tpus import slices_of, tpus_by_hand
from kuberay.check.serve_documents import ServeApplication, ServeConfig
from ray_configs.applications.replicas import AppConfig
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import TpuSlice

_BUILDERS: dict[str, type[AppConfig]] = {
    model.import_path: model for model in (LLMConfig, StableDiffusionConfig, CellConfig)
}


@rule(ServeApplication, "serve-import", "Podslice: the builders of its applications")
def import_path(application: ServeApplication) -> Iterator[Problem]:
    """An import path that is nearly one of Podslice's is that one, misspelt."""
    path = application["import_path"]
    if not path.text or not re.fullmatch(r"\w+(\.(?!py:)\w+)*:\w+", path.text) or _exists(*path.text.split(":")):
        return
    if meant := nearest(path.text, _BUILDERS):
        why = f"there is no {path.text}: Serve cannot import it, and the application ends as DEPLOY_FAILED"
        yield warning(path, why, f"write {meant}")


def _exists(module: str, attribute: str) -> bool:
    """Whether Podslice has it. Of the module only its parents are imported, and they hold nothing."""
    if any(path.partition(":")[0] == module for path in _BUILDERS):
        return attribute in ("build", "app")
    try:
        return importlib.util.find_spec(module) is not None
    except (ImportError, ValueError):
        return False


@rule(ServeApplication, "serve-args", "Podslice: LLMConfig, StableDiffusionConfig, CellConfig")
def arguments(application: ServeApplication) -> Iterator[Problem]:
    """What the builder would refuse at its start, with the field that it would name."""
    model, args = model_of(application), application["args"]
    left_open = any(node.placeholder for node in args.fields.values())
    told = _read(application)
    if model is None or not isinstance(told, ValidationError):
        return
    for problem in told.errors():
        if not left_open or (problem["loc"] and problem["type"] != "missing"):
            yield _refused(args, problem, model)


def _read(application: ServeApplication) -> AppConfig | ValidationError | None:
    """The config that the builder makes of an application's args, but for those yet to be filled in; or its refusal."""
    if (model := model_of(application)) is None:
        return None
    fields = application["args"].fields.items()
    try:
        return model.model_validate({key: _plain(node.value) for key, node in fields if not node.placeholder})
    except ValidationError as refusal:
        return refusal


def _refused(args: Node, problem: Any, model: type[AppConfig]) -> Problem:
    node, keys = args, [key for key in problem["loc"] if isinstance(key, str)]
    for key in keys:
        if isinstance(node.value, dict) and (key in node.value or key == keys[-1]):
            node = node[key]
    ends = f"{model.import_path} refuses its args, and the application ends as DEPLOY_FAILED"
    if problem["type"] == "extra_forbidden":
        near = nearest(keys[-1], model.model_fields)
        why = f"there is no {keys[-1]} in {model.__name__}: {ends}"
        return error(node, why, f"write {near}" if near else "take it out")
    if problem["type"] == "missing":
        return error(node, f"{model.__name__} needs {keys[-1]}: {ends}", f"write {keys[-1]}")
    said = problem["msg"].removeprefix("Value error, ")
    return error(node, f"{said[0].lower()}{said[1:]}: {ends}", f"write what {model.__name__} takes")


@rule(ServeConfig, "serve-args", "Podslice: a replica owns a slice, which a worker group must have")
def slices(config: ServeConfig) -> Iterator[Problem]:
    """The slice that an application names is one of the worker groups', and there are as many as it keeps."""
    asked: dict[str, list[tuple[Node, AppConfig, TpuSlice]]] = {}
    for application in () if tpus_by_hand(config) else config.applications:
        told, args = _read(application), application["args"]
        if isinstance(told, ValidationError) or (told and any(node.placeholder for node in args.fields.values())):
            return  # not all that is asked for is known
        if told and told.slice:
            asked.setdefault(str(told.slice), []).append((args, told, told.slice))
    groups = config.cluster.groups
    for users in asked.values():
        args, _, wanted = users[-1]
        counts = [slices_of(group) for group in groups if _offers(group, wanted)]
        if not counts and not any(_unsaid(group) for group in groups):
            offered = ", ".join(sorted({_shape(group) for group in groups if group.tpu})) or "no TPUs"
            yield error(
                args["slice"],
                f"no worker group has slices of {wanted} (they have {offered}): the replica waits for ever",
                "name a slice that a group has, or change the group's selectors, chips and numOfHosts",
            )
        if not counts or None in counts:
            continue
        there = sum(count or 0 for count in counts)
        least = sum(told.min_replicas for _, told, _ in users)
        most = sum(told.max_replicas for _, told, _ in users)
        has = f"the worker groups have {there} slice{'' if there == 1 else 's'} of {wanted}"
        if least > there:
            why = f"{least} replicas are kept, a slice each, and {has}: the others wait for ever"
            instead = "raise the group's replicas (and maxReplicas), or lower min_replicas"
            yield error(args["min_replicas"], why, instead)
        elif most > there:
            why = f"there may be {most} replicas, a slice each, and {has}: the last ones would wait for ever"
            yield warning(args["max_replicas"], why, "raise the group's maxReplicas, or lower max_replicas")


def model_of(application: ServeApplication) -> type[AppConfig] | None:
    """The model that reads an application's args; None for those that are not Podslice's, or not filled in."""
    args = application["args"]
    readable = (isinstance(args.value, dict) or not args.present) and not args.placeholder
    return _BUILDERS.get(application["import_path"].text or "") if readable else None


def _offers(group: Group, wanted: TpuSlice) -> bool:
    pod = group.pod
    return pod.machine is not None and pod.machine.name == wanted.machine.name and pod.topology.text == wanted.topology


def _unsaid(group: Group) -> bool:
    """Whether something of the group's slice is yet to be filled in, or wrong, which other rules say."""
    return group.tpu and (group.pod.machine is None or group.hosts is None)


def _shape(group: Group) -> str:
    pod = group.pod
    return f"{pod.generation.name if pod.generation else '?'}:{pod.topology.value}"


def _plain(value: Any) -> Any:
    """Without what a YAML reader adds to its values."""
    if isinstance(value, dict):
        return {str(key): _plain(child) for key, child in value.items()}
    return [_plain(child) for child in value] if isinstance(value, list) else value
