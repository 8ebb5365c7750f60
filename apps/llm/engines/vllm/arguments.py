"""The command line of `vllm serve` that a config means."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.llm.engines.vllm.model import ServedModel
from ray_configs.llm import EngineConfig


@dataclass(frozen=True)
class VllmNode:
    """One host of a slice, in vLLM's words a node. The first has the API."""

    rank: int
    hosts: int
    leader: tuple[str, int]
    """Address where the hosts' processes meet."""


def arguments(
    config: EngineConfig,
    model: ServedModel,
    listen: Mapping[str, Any],
    events: Mapping[str, Any],
    host: VllmNode | None,
) -> list[str]:
    """What follows `vllm` on the command line.

    Args:
        listen: where its HTTP listens: `uds`, or `host` and `port`.
        events: its `--kv-events-config`; empty: none.
        host: of a slice of several; None: there is one host.
    """
    options: dict[str, Any] = {
        "served_model_name": "model",
        "dtype": config.dtype,
        "max_num_seqs": config.max_batch_size,
        "max_num_batched_tokens": config.max_step_tokens,
        "max_model_len": config.max_model_len,
        "tensor_parallel_size": config.tensor_parallel,
        "enable_prefix_caching": config.prefix_cache,
        "generation_config": "vllm",  # requests have the defaults already
        "structured_outputs_config": {"backend": "guidance"},  # whose grammars ours are
        "scheduling_policy": "priority",
        "enable_prompt_tokens_details": True,
        "disable_uvicorn_access_log": True,
        **config.vllm_args,
    }
    if config.random_weights or config.tiny:
        options["load_format"] = "dummy"
    if config.tiny:
        few = {"num_hidden_layers": config.tiny_layers}
        options["hf_overrides"] = {model.decoder: few} if model.decoder else few
    if events:
        options["kv_events_config"] = dict(events)
    if host is not None:
        address, port = host.leader
        options |= {"nnodes": host.hosts, "node_rank": host.rank, "master_addr": address, "master_port": port}
    if host is not None and host.rank:
        options["headless"] = True
    else:
        options |= listen
    words = [word for name, value in options.items() for word in _words(name, value)]
    return ["serve", model.location, *words]


def _words(name: str, value: Any) -> list[str]:
    """One option, as `vllm serve` reads it."""
    flag = f"--{name.replace('_', '-')}"
    match value:
        case None:
            return []
        case True:
            return [flag]
        case False:
            return [f"--no-{flag[2:]}"]
        case list() | tuple():
            return [flag, *map(_text, value)]
        case _:
            return [flag, _text(value)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
