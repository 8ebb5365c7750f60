"""Alerting rules: a value, its threshold, and what the person on call should look at."""

from dataclasses import dataclass
from typing import Any

from kuberay.observability.panels import of_service, picked
from ray_configs.cell import CellConfig
from ray_configs.cluster.workers import WorkerGroup
from ray_configs.llm import LLMConfig
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

INTERVAL_S = 30
"""Seconds between two evaluations."""


@dataclass(frozen=True)
class Alert:
    """A rule that fires once `value` has been above `bound` for `minutes`."""

    name: str
    value: str
    """PromQL, with @ as in `panels`."""
    minutes: int
    severity: str
    """critical: requests fail. warning: they will, or are slow."""
    summary: str
    description: str
    """NAME becomes the service's name; {{ $labels.X }} are labels of the value."""
    bound: float = 0


def by_application(function: str, metric: str) -> str:
    return f"sum by (application) ({function}({metric}[5m]))"


def share_of_answers(status: str) -> str:
    some = by_application("rate", f'ray_serve_num_http_requests_total@{{status_code=~"{status}"}}')
    return f"{some} / {by_application('rate', 'ray_serve_num_http_requests_total@')}"


def waiting(what: str) -> str:
    return f"max by (application) (min_over_time(ray_podslice_{what}_waiting@[10m]))"


WANTED = "max by (application, deployment) (ray_serve_autoscaling_target_replicas@)"
HEALTHY = "sum by (application, deployment) (ray_serve_deployment_replica_healthy@)"
SERVICE = (
    Alert(
        "PodsliceHeadUnseen",
        'absent(ray_node_mem_total@{RayNodeType="head"})',
        5,
        "critical",
        "No metrics of NAME's Ray head",
        "The head is gone or not scraped. Without it no replica is replaced, and the other alerts cannot be relied "
        "on. `kubectl get pods -l app.kubernetes.io/instance=NAME`; for a head that is Pending or restarts, `kubectl "
        "describe` says why. If it runs: does the PodMonitoring (or PodMonitor) NAME exist, and is its target up?",
    ),
    Alert(
        "PodsliceNoAnswers",
        f"{WANTED} unless {HEALTHY}",
        5,
        "critical",
        "{{ $labels.application }} of NAME has no healthy replica: requests hang",
        "{{ $labels.deployment }} wants {{ $value }}. `podslice status` says whether they wait for a slice (capacity, "
        "quota, a node pool at its limit) or fail while they load, with the last exception; for a cell's "
        "model see GET /listcell. After a lost host the slice must come back and load the model, which takes minutes.",
    ),
    Alert(
        "PodsliceReplicasMissing",
        f"{WANTED} - {HEALTHY}",
        20,
        "warning",
        "{{ $labels.application }} of NAME lacks {{ $value }} of its replicas",
        "For 20 minutes {{ $labels.deployment }} has had fewer healthy replicas than it wants. `podslice status` says "
        "whether they wait for a slice or fail. If no slices are available, lower max_replicas.",
    ),
    Alert(
        "PodsliceServerErrors",
        share_of_answers("5.."),
        5,
        "critical",
        "{{ $value | humanizePercentage }} of the answers of {{ $labels.application }} of NAME are errors",
        "503: Serve's queue is full, or a cell's model is not loaded; see the board `slices and replicas`. 500: the "
        "replica's log has the exception (`kubectl logs`, Cloud Logging). A lost host fails its slice's open requests "
        "once; then NAME recovers by itself.",
        bound=0.05,
    ),
    Alert(
        "PodsliceRequestsRefused",
        share_of_answers("429"),
        5,
        "warning",
        "{{ $labels.application }} of NAME refuses {{ $value | humanizePercentage }} of its requests",
        "Its queue is full (429 with Retry-After). Raise max_replicas if slices are available, or max_batch_size if "
        "the KV cache has room; max_waiting only lengthens the queue. Or a single client sends far too much.",
        bound=0.05,
    ),
)
COMPILES = Alert(
    "PodsliceCompilesAfterReady",
    "max by (application, model) (ray_podslice_compiles_after_ready@)",
    0,
    "warning",
    "{{ $labels.model }} of NAME compiled a program while it served",
    "Requests waited for the compiler, up to minutes. This is a bug: every shape should be compiled before a replica "
    "is ready. The replica's log names the program; please report it with the config.",
)
LANGUAGE = (
    Alert(
        "PodsliceRequestsWait",
        waiting("requests"),
        5,
        "warning",
        "Requests of {{ $labels.application }} of NAME always wait for a slot",
        "A replica's queue has not been empty for 10 minutes, so time to first token is mostly queueing. See the board "
        "`language models`: if the KV cache has room, raise max_batch_size, else max_replicas.",
    ),
    Alert(
        "PodsliceKVCacheFull",
        "max by (application) (ray_podslice_kv_pages_used@ / ray_podslice_kv_pages_total@)"
        f" and on (application) {by_application('rate', 'ray_podslice_preemptions_total@')} > 0",
        5,
        "warning",
        "{{ $labels.application }} of NAME preempts sequences: its KV cache is full",
        "Preempted sequences lose their pages and are recomputed later. Set quantize_kv_cache int8 (twice the tokens), "
        "a lower max_batch_size or max_model_len, or more chips per replica; `podslice plan` shows what fits.",
        bound=0.9,
    ),
)
PICTURES = Alert(
    "PodslicePicturesWait",
    waiting("pictures"),
    5,
    "warning",
    "Pictures of {{ $labels.application }} of NAME always wait for a place in a batch",
    "A replica's queue has not been empty for 10 minutes. Raise max_replicas, or max_batch_size if a step of a larger "
    "batch is hardly slower (the board `pictures` shows both).",
)


def slow_first_token(seconds: float) -> Alert:
    per_bucket = "sum by (le, application) (rate(ray_podslice_time_to_first_token_s_bucket@[5m]))"
    return Alert(
        "PodsliceSlowFirstToken",
        f"histogram_quantile(0.95, {per_bucket})",
        10,
        "warning",
        "{{ $labels.application }} of NAME takes {{ $value | humanizeDuration }} to the first token (p95)",
        f"The threshold is ttft_p95_s in the config's observability, {seconds:g} s. If sequences wait (board `language "
        "models`), there are too few slots or replicas; if not, prompts are very long, or a program was compiled.",
        bound=seconds,
    )


def hosts_missing(group: WorkerGroup) -> Alert:
    """The alert on a group of slices: a slice, by name, lacks hosts, or whole slices are missing."""
    there = f'count by (Name) (ray_resources@{{Name=~"{group.name}-[0-9]+",State="AVAILABLE"}})'
    gone = f"{group.hosts} * ({group.minimum} - (count({there}) or vector(0)))"
    return Alert(
        "PodsliceSliceHostsMissing",
        f"{group.hosts} - {there} > 0 or {gone}" if group.hosts > 1 else gone,
        10,
        "critical",
        f"Slices {group.name} of NAME lack {{{{ $value }}}} hosts",
        "The operator recreates a whole slice when it loses a host; after 10 minutes that has not worked. "
        f"`kubectl get pods -l ray.io/group={group.name}`: Pending means no machine (preempted Spot, capacity, quota; "
        "`kubectl describe` says which), CrashLoopBackOff a host that does not start.",
    )


def alerts(service: Service) -> list[Alert]:
    """The alerts that apply to the service's applications."""
    kinds = {type(app.config) for app in service.applications}
    found = [*SERVICE, COMPILES]
    if kinds & {LLMConfig, CellConfig}:
        found += [slow_first_token(service.observability.ttft_p95_s), *LANGUAGE]
    if StableDiffusionConfig in kinds:
        found.append(PICTURES)
    return found + [hosts_missing(group) for group in service.worker_groups if group.slice]


def alert_groups(service: Service) -> list[dict[str, Any]]:
    """The `groups` of a Rules or PrometheusRule object."""
    rules = [
        {
            "alert": alert.name,
            "expr": f"({picked(alert.value, *of_service(service))}) > {alert.bound:g}",
            "for": f"{alert.minutes}m",
            "labels": {"severity": alert.severity, "service": service.name},
            "annotations": {
                "summary": alert.summary.replace("NAME", service.name),
                "description": alert.description.replace("NAME", service.name),
            },
        }
        for alert in alerts(service)
    ]
    return [{"name": service.name, "interval": f"{INTERVAL_S}s", "rules": rules}]
