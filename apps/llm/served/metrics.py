"""A language model's metrics."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from apps.llm.api import CallerStats, EngineStats
from apps.serving.metrics import Instruments, Metrics

if TYPE_CHECKING:
    from apps.llm.router.journey import Pause

SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)


def exposition(model: str, stats: EngineStats, page_size: int, adapters: Sequence[str], capacity: int) -> bytes:
    """This replica's load in Prometheus' text format, under vLLM's names, which the Gateway API inference extension and
    llm-d scrape by default.

    Args:
        adapters: names of the LoRA adapters that requests can ask for. Pickers prefer replicas with the adapter.
        capacity: how many adapters fit.
    """
    registry = CollectorRegistry()
    for name, told, value in (
        ("vllm:num_requests_waiting", LanguageMetrics.GAUGES["waiting"][1], stats.waiting),
        ("vllm:num_requests_running", LanguageMetrics.GAUGES["running"][1], stats.running),
        (
            "vllm:kv_cache_usage_perc",
            "Share of the KV cache pages in use, 0 to 1.",
            stats.pages_used / max(1, stats.pages_total),  # a router without an engine has none
        ),
    ):
        Gauge(name, told, ["model_name"], registry=registry).labels(model).set(value)
    cache = Gauge("vllm:cache_config_info", "The KV cache.", ["block_size", "num_gpu_blocks"], registry=registry)
    cache.labels(page_size, stats.pages_total).set(1)
    if capacity:
        labels = ["max_lora", "running_lora_adapters", "waiting_lora_adapters"]
        # All loaded adapters count as running: none has to be loaded for a request, which is what a picker asks.
        loaded = Gauge("vllm:lora_requests_info", "The LoRA adapters; when they were read.", labels, registry=registry)
        loaded.labels(capacity, ",".join(adapters), "").set_to_current_time()
    return generate_latest(registry)


class CallerMetrics(Instruments[CallerStats]):
    """The metrics of each caller, by the name of its key."""

    KEYS = ("caller",)
    GAUGES: ClassVar = {
        "requests": ("podslice_caller_requests", "Requests of a caller, waiting or running."),
        "waiting": ("podslice_caller_waiting", "Sequences of a caller that wait for a slot."),
    }
    COUNTERS: ClassVar = {
        "tokens": ("podslice_caller_tokens", "Tokens of a caller's prompts and answers."),
        "refused": ("podslice_caller_refused", "Requests of a caller that got 429."),
    }
    HISTOGRAMS: ClassVar = {
        "ttft": (
            "podslice_caller_time_to_first_token_s",
            "From the arrival of a caller's request to its first token.",
            SECONDS,
        ),
    }


class EngineMetrics(Metrics[EngineStats]):
    """The metrics of an engine."""

    GAUGES: ClassVar = {
        "running": ("podslice_requests_running", "Sequences in the batch."),
        "waiting": ("podslice_requests_waiting", "Sequences that wait for a slot in the batch."),
        "pages_total": ("podslice_kv_pages_total", "KV cache pages."),
        "pages_used": ("podslice_kv_pages_used", "KV cache pages that running sequences hold."),
        "host_pages_total": ("podslice_host_pages_total", "Pages for which host memory has room."),
        "host_pages_used": ("podslice_host_pages_used", "Pages in host memory."),
        "compiles_after_ready": ("podslice_compiles_after_ready", "Programs compiled since ready; should be 0."),
        "programs_compiled": (
            "podslice_programs_compiled",
            "Programs compiled at the start, for want of prepared ones.",
        ),
    }
    COUNTERS: ClassVar = {
        "prompt_tokens": ("podslice_prompt_tokens", "Prompt tokens processed."),
        "generated_tokens": ("podslice_generated_tokens", "Tokens generated."),
        "scored_tokens": ("podslice_scored_tokens", "Tokens of suffixes scored."),
        "embeddings": ("podslice_embeddings", "Prompts embedded."),
        "prefix_hit_tokens": ("podslice_prefix_hit_tokens", "Prompt tokens found in the prefix cache."),
        "host_hit_tokens": ("podslice_host_hit_tokens", "Tokens of pages that came back from host memory."),
        "preemptions": ("podslice_preemptions", "Sequences preempted; they are computed again."),
        "drafted_tokens": ("podslice_drafted_tokens", "Tokens that speculation guessed."),
        "accepted_tokens": (
            "podslice_accepted_tokens",
            "Drafted tokens that were right and so took no step of their own.",
        ),
        "steps": ("podslice_engine_steps", "Steps run."),
    }
    HISTOGRAMS: ClassVar = {}

    def line(self, stats: EngineStats, before: EngineStats, seconds: float) -> str:
        prompt = (stats.prompt_tokens - before.prompt_tokens) / seconds
        answer = (stats.generated_tokens - before.generated_tokens) / seconds
        return (
            f"running {stats.running}, waiting {stats.waiting} | in {prompt:.0f} tok/s, out {answer:.0f} tok/s | "
            f"KV cache {stats.pages_used / max(1, stats.pages_total):.0%} | "
            f"prefix hits {stats.prefix_hit_tokens - before.prefix_hit_tokens} tok"
        )


class LanguageMetrics(EngineMetrics):
    """The metrics of an engine and of the requests that its process answers."""

    HISTOGRAMS: ClassVar = {
        "ttft": (
            "podslice_time_to_first_token_s",
            "From a request's arrival to its first token.",
            SECONDS,
        ),
        "tpot": (
            "podslice_time_per_output_token_s",
            "Mean time between the tokens of an answer.",
            (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1),
        ),
    }

    def __init__(self, model: str, callers: Callable[[], Mapping[str, CallerStats]]):
        super().__init__(model)
        self._callers, self._stats_of_callers = CallerMetrics(model), callers

    def first_token(self, caller: str, seconds: float) -> None:
        self.observe("ttft", seconds)
        self._callers.observe("ttft", seconds, caller=caller)

    def publish(self, stats: EngineStats) -> None:
        super().publish(stats)
        for name, theirs in self._stats_of_callers().items():
            self._callers.record(theirs, caller=name)


class RoutedMetrics(LanguageMetrics):
    """A router's. What its engines do they count themselves, for each of them may have several routers."""

    GAUGES: ClassVar = {}
    COUNTERS: ClassVar = {}


class PauseMetrics(Instruments[EngineStats]):
    """How long answers waited whose engine was gone, by a router: see `Pause`."""

    GAUGES: ClassVar = {}
    COUNTERS: ClassVar = {}
    HISTOGRAMS: ClassVar = {
        "noticed": (
            "podslice_pause_noticed_s",
            "From an answer's last token until its engine was known gone.",
            SECONDS,
        ),
        "placed": ("podslice_pause_placed_s", "From then until another engine had it.", SECONDS),
        "computed": ("podslice_pause_computed_s", "From then to its next token.", SECONDS),
        "whole": ("podslice_pause_s", "From an answer's last token to its next, on another engine.", SECONDS),
    }

    def resumed(self, pause: "Pause") -> None:
        """An answer goes on."""
        for part in self.HISTOGRAMS:
            self.observe(part, getattr(pause, part))
