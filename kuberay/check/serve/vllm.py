"""Arguments that an application passes on to vLLM, against what its versions take."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, meant, rule, warning
from kuberay.check.serve.arguments import model_of
from kuberay.check.subjects import ServeConfig
from ray_configs.llm import LLMConfig

SOURCE = "vLLM: `vllm serve --help=all` of 0.29.0 (vllm-torchtpu's) and 0.32.0"

Options = dict[str, str | list[str]]


@cache
def known() -> dict[str, Options]:
    """What each version takes, by its name: `flag`, `value`, or choices. Written by `tools.vllm.options`."""
    return json.loads(Path(__file__).with_name("vllm_options.json").read_text())


@rule(ServeConfig, "vllm-args", SOURCE)
def vllm_arguments(config: ServeConfig) -> Iterator[Problem]:
    """`vllm_args` are options of `vllm serve`, with values that it takes. Otherwise vLLM ends as it starts, and with it
    the replica."""
    for application in config.applications:
        args = application["args"]
        if model_of(application) is not LLMConfig or args["engine"].text != "vllm":
            continue
        for name, value in args["vllm_args"].fields.items():
            yield from _problems(name, value)


def _problems(name: str, value: Node) -> Iterator[Problem]:
    kinds = {version: options[name] for version, options in known().items() if name in options}
    if not kinds:
        choices = sorted({option for options in known().values() for option in options})
        why = f"`vllm serve` has no --{name.replace('_', '-')}: the replica does not start"
        yield error(value, why, meant(name, choices, "remove it"))
        return
    if missing := sorted(known().keys() - kinds.keys()):
        why = f"vLLM {', '.join(missing)} has no --{name.replace('_', '-')}, {', '.join(sorted(kinds))} has"
        yield warning(value, why, "remove it, unless the image has the version that takes it")
    if value.placeholder or not value.present:
        return
    wrong = [_refusal(kind, value) for kind in kinds.values()]
    if all(wrong):
        yield error(value, f"--{name.replace('_', '-')} {wrong[-1]}", "write what `vllm serve --help=all` names")


def _refusal(kind: str | list[str], value: Node) -> str:
    """Why an option of this kind refuses the value; empty: it does not."""
    if kind == "flag":
        return "" if isinstance(value.value, bool) else f"is on or off: write true or false, not {value.value!r:.40}"
    if isinstance(value.value, bool):
        return "takes a value, not true or false"
    if isinstance(kind, list) and str(value.value) not in kind:
        return f"takes {', '.join(kind)}, not {value.value!r:.40}"
    return ""
