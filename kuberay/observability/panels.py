"""The boards' panels as tables: a title, a unit, and a PromQL expression for each line.

In an expression, here and in `alerts`, @ stands for the matchers of the board's series; `@{state="USED"}` adds one.
Rates use Grafana's $__rate_interval, which follows the zoom and the scrape interval.
"""

from dataclasses import dataclass

from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig


@dataclass(frozen=True)
class Panel:
    """A chart."""

    title: str
    unit: str
    """Grafana's name of the unit; `suffix:TEXT` appends any text."""
    lines: dict[str, str]
    """PromQL by the line's name, in which {{label}} is a label of the series."""
    about: str = ""
    """Description for the reader."""


@dataclass(frozen=True)
class Board:
    """A dashboard."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    by_application: str = ""
    """A metric whose applications the reader can choose from; empty: the board has no such choice."""


def of_service(service: Service) -> tuple[str, str]:
    """Matchers of all its series: both PodMonitoring and PodMonitor use the service's name as job."""
    return f'namespace="{service.namespace}"', f'job="{service.name}"'


def picked(expression: str, *matchers: str) -> str:
    """The expression with each @ replaced by matchers such as `job="llm"`."""
    inside = ",".join(matchers)
    return expression.replace("@{", f"{{{inside},").replace("@", f"{{{inside}}}")


def rate(metric: str, by: str = "application") -> str:
    return f"sum by ({by}) (rate(ray_{metric}[$__rate_interval]))"


def gauges(metrics: dict[str, str], labels: str = "", by: str = "application") -> dict[str, str]:
    """Gauges (line -> metric), summed by application or the labels in `by`."""
    return {_line(name, by): f"sum by ({by}) (ray_{metric}@{labels})" for name, metric in metrics.items()}


def rates(metrics: dict[str, str], labels: str = "", by: str = "application") -> dict[str, str]:
    """Counters (line -> metric), as rates per second, summed likewise."""
    return {_line(name, by): rate(f"{metric}_total@{labels}", by) for name, metric in metrics.items()}


def quantiles(histogram: str, *percent: int) -> dict[str, str]:
    buckets = rate(f"podslice_{histogram}_bucket@", "le, application")
    return {_line(f"p{n}", "application"): f"histogram_quantile({n / 100}, {buckets})" for n in percent}


def each(metric: str) -> dict[str, str]:
    """The metric of each replica."""
    return {_line("", "application, replica"): f"ray_{metric}@"}


def _line(name: str, by: str) -> str:
    return " ".join([name, *(f"{{{{{label}}}}}" for label in by.split(", "))]).strip()


def counts(title: str, metrics: dict[str, str], about: str = "", by: str = "application", labels: str = "") -> Panel:
    return Panel(title, "short", gauges(metrics, labels, by), about)


def per_second(title: str, metrics: dict[str, str], about: str = "", by: str = "application") -> Panel:
    return Panel(title, "suffix: /s", rates(metrics, by=by), about)


def answers(labels: str = "") -> Panel:
    lines = rates({"": "serve_num_http_requests"}, labels, "application, status_code")
    about = "As sent by the service; 499: the client left. A cell's models answer through the cell."
    return Panel("Answers by status", "reqps", lines, about)


ANSWERS = answers()
MODELS = '{application=~"sax[.].+"}'
"""The Serve applications of what cells publish: sax.CELL.MODEL."""
SEQUENCES = {"running": "podslice_requests_running", "waiting": "podslice_requests_waiting"}
REPLICAS = {"wanted": "serve_autoscaling_target_replicas", "healthy": "serve_deployment_replica_healthy"}
HITS, COMPUTED = rate("podslice_prefix_hit_tokens_total@"), rate("podslice_prompt_tokens_total@")
ENDED = {
    "finished": "podslice_pictures",
    "client left": "podslice_pictures_aborted",
    "failed": "podslice_pictures_failed",
}
BOTH = (
    counts(
        "Before and in the replicas",
        {"queued": "serve_deployment_queued_queries", "in replicas": "serve_replica_processing_queries"},
        "Serve's view: requests not yet assigned to a replica, and those in replicas, streams included.",
    ),
    Panel("Programs compiled after ready", "short", each("podslice_compiles_after_ready"), "A bug: requests waited."),
)
LANGUAGE = (
    counts("Sequences", SEQUENCES, "A long queue means too few slots, KV pages or replicas."),
    ANSWERS,
    Panel(
        "Tokens",
        "suffix: tokens/s",
        rates({"in": "podslice_prompt_tokens", "out": "podslice_generated_tokens"}),
        "In: prompt tokens computed, without prefix cache hits.",
    ),
    Panel("Time to first token", "s", quantiles("time_to_first_token_s", 50, 95, 99)),
    Panel("Time per output token", "s", quantiles("time_per_output_token_s", 50, 95, 99)),
    Panel(
        "KV cache in use",
        "percentunit",
        {"{{application}} {{replica}}": "ray_podslice_kv_pages_used@ / ray_podslice_kv_pages_total@"},
    ),
    Panel("Prompt found in the prefix cache", "percentunit", {"{{application}}": f"{HITS} / ({HITS} + {COMPUTED})"}),
    Panel(
        "Tokens of speculation",
        "suffix: tokens/s",
        rates({"guessed": "podslice_drafted_tokens", "right": "podslice_accepted_tokens"}),
    ),
    per_second("Preemptions", {"": "podslice_preemptions"}, "Sequences recomputed: the KV cache is too small."),
    per_second("Steps", {"": "podslice_engine_steps"}),
    per_second(
        "Scores and embeddings",
        {"tokens scored": "podslice_scored_tokens", "prompts embedded": "podslice_embeddings"},
    ),
    *BOTH,
)
PICTURES = (
    counts("Pictures", {"running": "podslice_pictures_running", "waiting": "podslice_pictures_waiting"}),
    ANSWERS,
    per_second("Pictures ended", ENDED),
    Panel("From request to picture", "s", quantiles("picture_s", 50, 95, 99)),
    Panel("Denoising step of a batch", "s", quantiles("denoising_step_s", 50, 95)),
    Panel("Pictures denoised together", "short", quantiles("picture_batch_size", 50, 95)),
    per_second("Denoising steps", {"": "podslice_denoising_steps"}),
    Panel("Work ahead", "s", each("podslice_pictures_seconds_ahead"), "Estimated time for all running and waiting."),
    *BOTH,
)
CELL = (
    Panel(
        "Models",
        "short",
        {
            "loaded": f"sum(ray_serve_application_status@{MODELS} == bool 6)",
            "not loaded": f"sum(ray_serve_application_status@{MODELS} != bool 6)",
        },
        "GET /listcell says why a model is not loaded.",
    ),
    counts("Replicas of each model", REPLICAS, labels=MODELS),
    counts("Sequences of each model", SEQUENCES, labels=MODELS),
    Panel("Tokens out, by model", "suffix: tokens/s", rates({"": "podslice_generated_tokens"}, MODELS)),
    Panel(
        "Answers begun, by model",
        "reqps",
        {"{{application}}": rate(f"podslice_time_to_first_token_s_count@{MODELS}")},
    ),
)
DEPLOYMENT = "application, deployment"
PODS = (
    counts("Replicas", REPLICAS, "If fewer are healthy than wanted, `podslice status` says why.", DEPLOYMENT),
    counts(
        "Status of deployments",
        {"": "serve_deployment_status"},
        "1 failed, 2 unhealthy, 3 updating, 4 upscaling, 5 downscaling, 6 healthy.",
        DEPLOYMENT,
    ),
    per_second("Health checks failed", {"": "serve_health_check_failures"}, by=DEPLOYMENT),
    Panel(
        "Ray nodes alive",
        "short",
        {"{{RayNodeType}}": "count by (RayNodeType) (ray_node_mem_total@)"},
        "Each host of a slice, each CPU Pod and the head is one.",
    ),
    Panel("CPUs in use", "percent", {"{{instance}}": "ray_node_cpu_utilization@"}),
    Panel("Memory in use", "percentunit", {"{{instance}}": "ray_node_mem_used@ / ray_node_mem_total@"}),
)
SLICES = (
    Panel(
        "Hosts of each slice",
        "short",
        {"{{Name}}": 'count by (Name) (ray_resources@{Name=~"tpu-.+",State="AVAILABLE"})'},
        "A slice that loses a host is recreated as a whole.",
    ),
    Panel(
        "Chips",
        "short",
        {"{{State}}": 'sum by (State) (ray_resources@{Name="TPU"})'},
        "Those in use belong to a replica, busy or idle.",
    ),
    Panel(
        "Chips at work",
        "percent",
        {
            "duty cycle": "avg by (TpuType) (ray_tpu_duty_cycle@)",
            "TensorCores": "avg by (TpuType) (ray_tpu_tensorcore_utilization@)",
            "HBM bandwidth": "avg by (TpuType) (ray_tpu_memory_bandwidth_utilization@)",
        },
        "From GKE's device plugin, through Ray.",
    ),
    Panel(
        "HBM in use",
        "percentunit",
        {"{{TpuType}}": "sum by (TpuType) (ray_tpu_memory_used@) / sum by (TpuType) (ray_tpu_memory_total@)"},
    ),
)
AUTOSCALER = (
    counts(
        "Ray nodes, as the autoscaler counts them",
        {state: f"cluster_{state}_nodes" for state in ("active", "idle", "pending", "failed")},
        "Pending for long: no capacity, or the node pool is at its limit.",
        "node_type",
    ),
    counts(
        "What Serve's autoscaler decides",
        {"replicas": "serve_autoscaling_desired_replicas", "requests": "serve_autoscaling_total_requests"},
    ),
)


def boards_of(service: Service) -> list[Board]:
    """The boards that apply to the service's applications."""
    kinds = {type(app.config) for app in service.applications}
    cells = "|".join(app.serve_name for app in service.applications if isinstance(app.config, CellConfig))
    found = []
    if kinds & {LLMConfig, CellConfig}:
        # Published models answer through the cell, so they have no answers of their own to count.
        panels = LANGUAGE if LLMConfig in kinds else tuple(panel for panel in LANGUAGE if panel is not ANSWERS)
        found.append(Board("language-models", "language models", panels, "ray_podslice_requests_running"))
    if StableDiffusionConfig in kinds:
        found.append(Board("pictures", "pictures", PICTURES, "ray_podslice_pictures_running"))
    if cells:
        found.append(Board("cell", "cell", (*CELL, answers(f'{{application=~"{cells}"}}'))))
    slices = any(app.config.slice for app in service.applications)
    panels = PODS + (SLICES if slices else ()) + (AUTOSCALER if service.elastic else ())
    return [*found, Board("slices", "slices and replicas", panels)]
