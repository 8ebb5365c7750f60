"""vLLM's `/metrics` as a token engine's stats."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from apps.llm.api import EngineStats

RUNNING, USED = "vllm:num_requests_running", "vllm:kv_cache_usage_perc"
COUNTS = {
    "prompt_tokens": "vllm:prompt_tokens_total",
    "generated_tokens": "vllm:generation_tokens_total",
    "prefix_hit_tokens": "vllm:prefix_cache_hits_total",
    "preemptions": "vllm:num_preemptions_total",
    "drafted_tokens": "vllm:spec_decode_num_draft_tokens_total",
    "accepted_tokens": "vllm:spec_decode_num_accepted_tokens_total",
    "steps": "vllm:iteration_tokens_total_count",
}
"""Fields of EngineStats -> vLLM's totals."""
NAMES = {RUNNING, USED, *COUNTS.values()}


@dataclass(frozen=True)
class CacheSize:
    """Of vLLM's KV cache."""

    block_size: int
    blocks: int


def samples(text: str) -> dict[str, float]:
    """The value of each of `NAMES` that is there, added up over its labels."""
    found: dict[str, float] = {}
    wanted = [
        line for line in text.splitlines() if line.partition("{")[0] in NAMES
    ]  # the rest, histograms above all, is not parsed
    for family in text_string_to_metric_families("\n".join(wanted) + "\n"):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def cache_size(text: str) -> CacheSize:
    """What `vllm:cache_config_info` says.

    Raises:
        ValueError: it is not there, or has no numbers.
    """
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == "vllm:cache_config_info":
                return _cache_size(sample.labels)
    raise ValueError("vLLM's /metrics has no vllm:cache_config_info: is it another version's?")


def _cache_size(labels: Mapping[str, str]) -> CacheSize:
    block_size, blocks = labels.get("block_size", ""), labels.get("num_gpu_blocks", "")
    if not block_size.isdecimal() or not blocks.isdecimal():
        raise ValueError(f"vllm:cache_config_info has no sizes: {json.dumps(dict(labels))[:500]}")
    return CacheSize(int(block_size), int(blocks))


def stats(found: Mapping[str, float], size: CacheSize, running: int, waiting: int, silent_s: float) -> EngineStats:
    """Stats of what `samples` found.

    Args:
        running, waiting: requests that are open here, whose first token has come, and has not.
        silent_s: how long open requests have got no token.
    """

    return EngineStats(
        running=running,
        waiting=waiting,
        waiting_tokens=0,
        pages_total=size.blocks,
        pages_used=round(size.blocks * found.get(USED, 0.0)),
        scored_tokens=0,
        embeddings=0,
        compiles_after_ready=0,
        step_running_s=silent_s,
        **{field: int(found.get(name, 0)) for field, name in COUNTS.items()},
    )
