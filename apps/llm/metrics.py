"""What operators watch, through ray.serve.metrics: Ray's Prometheus endpoint has it with the prefix `ray_`."""

import logging
import time
from dataclasses import asdict

from ray.serve.metrics import Counter, Gauge, Histogram

from apps.llm.api import EngineStats

log = logging.getLogger("podslice")

LOG_PERIOD_S = 10
TTFT_S = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60]
TPOT_S = [0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1]

GAUGES = {
    "running": ("podslice_requests_running", "Sequences in the batch."),
    "waiting": ("podslice_requests_waiting", "Sequences that wait for a place in the batch."),
    "pages_total": ("podslice_kv_pages_total", "KV cache pages."),
    "pages_used": ("podslice_kv_pages_used", "KV cache pages that running sequences hold."),
    "compiles_after_ready": ("podslice_compiles_after_ready", "Programs compiled since ready: a defect if not 0."),
}
COUNTERS = {
    "prompt_tokens": ("podslice_prompt_tokens", "Prompt tokens taken in."),
    "generated_tokens": ("podslice_generated_tokens", "Tokens generated."),
    "scored_tokens": ("podslice_scored_tokens", "Tokens of suffixes scored."),
    "embeddings": ("podslice_embeddings", "Prompts embedded."),
    "prefix_hit_tokens": ("podslice_prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
    "preemptions": ("podslice_preemptions", "Sequences that gave up their pages and are computed again."),
    "steps": ("podslice_engine_steps", "Steps run."),
}
"""EngineStats field -> (metric, description)."""


class Metrics:
    """The metrics of one model in this replica."""

    def __init__(self, model: str):
        keys = ("model",)
        self._gauges = {field: Gauge(*metric, keys) for field, metric in GAUGES.items()}
        self._counters = {field: Counter(*metric, keys) for field, metric in COUNTERS.items()}
        self._ttft = Histogram(
            "podslice_time_to_first_token_s", "From a request's arrival to its first token.", TTFT_S, keys
        )
        self._tpot = Histogram(
            "podslice_time_per_output_token_s", "Mean time between the tokens of an answer.", TPOT_S, keys
        )
        for metric in (*self._gauges.values(), *self._counters.values(), self._ttft, self._tpot):
            metric.set_default_tags({"model": model})  # a dict for each: Serve writes its own tags into it
        self._last: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._logged: tuple[float, EngineStats] | None = None  # (when, the stats then) of the last log line

    def first_token(self, seconds: float) -> None:
        self._ttft.observe(seconds)

    def answered(self, seconds_per_token: float) -> None:
        self._tpot.observe(seconds_per_token)

    def publish(self, stats: EngineStats) -> None:
        """Called about once a second; what the counters have gained since the last call is added."""
        values = asdict(stats)
        for field, gauge in self._gauges.items():
            gauge.set(values[field])
        for field, counter in self._counters.items():
            if gained := values[field] - self._last[field]:
                counter.inc(gained)
            self._last[field] = values[field]
        self._log(stats)

    def _log(self, stats: EngineStats) -> None:
        now = time.monotonic()
        then, before = self._logged = self._logged or (now, stats)
        if (seconds := now - then) < LOG_PERIOD_S:
            return
        self._logged = now, stats
        if stats.steps > before.steps:
            log.info(
                "running %d, waiting %d | in %.0f tok/s, out %.0f tok/s | KV cache %.0f%% | prefix hits %d tok",
                stats.running,
                stats.waiting,
                (stats.prompt_tokens - before.prompt_tokens) / seconds,
                (stats.generated_tokens - before.generated_tokens) / seconds,
                100 * stats.pages_used / max(1, stats.pages_total),
                stats.prefix_hit_tokens - before.prefix_hit_tokens,
            )
