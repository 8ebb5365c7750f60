"""A language model's metrics."""

from typing import ClassVar

from apps.llm.api import EngineStats
from apps.serving.metrics import Metrics


class LanguageMetrics(Metrics[EngineStats]):
    GAUGES: ClassVar = {
        "running": ("podslice_requests_running", "Sequences in the batch."),
        "waiting": ("podslice_requests_waiting", "Sequences that wait for a place in the batch."),
        "pages_total": ("podslice_kv_pages_total", "KV cache pages."),
        "pages_used": ("podslice_kv_pages_used", "KV cache pages that running sequences hold."),
        "compiles_after_ready": ("podslice_compiles_after_ready", "Programs compiled since ready: a defect if not 0."),
    }
    COUNTERS: ClassVar = {
        "prompt_tokens": ("podslice_prompt_tokens", "Prompt tokens taken in."),
        "generated_tokens": ("podslice_generated_tokens", "Tokens generated."),
        "scored_tokens": ("podslice_scored_tokens", "Tokens of suffixes scored."),
        "embeddings": ("podslice_embeddings", "Prompts embedded."),
        "prefix_hit_tokens": ("podslice_prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
        "preemptions": ("podslice_preemptions", "Sequences that gave up their pages and are computed again."),
        "steps": ("podslice_engine_steps", "Steps run."),
    }
    HISTOGRAMS: ClassVar = {
        "ttft": (
            "podslice_time_to_first_token_s",
            "From a request's arrival to its first token.",
            (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60),
        ),
        "tpot": (
            "podslice_time_per_output_token_s",
            "Mean time between the tokens of an answer.",
            (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1),
        ),
    }

    def line(self, stats: EngineStats, before: EngineStats, seconds: float) -> str:
        prompt = (stats.prompt_tokens - before.prompt_tokens) / seconds
        answer = (stats.generated_tokens - before.generated_tokens) / seconds
        return (
            f"running {stats.running}, waiting {stats.waiting} | in {prompt:.0f} tok/s, out {answer:.0f} tok/s | "
            f"KV cache {stats.pages_used / max(1, stats.pages_total):.0%} | "
            f"prefix hits {stats.prefix_hit_tokens - before.prefix_hit_tokens} tok"
        )
