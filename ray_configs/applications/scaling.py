"""What a language model's autoscaling aims at, between `min_replicas` and `max_replicas`."""

from pydantic import Field

from ray_configs.base import Config


class ScalingConfig(Config):
    """What replicas need is averaged over half a minute, and followed after Serve's own delays: 30 s up, 600 s down."""

    target_ongoing_requests: float = Field(24, gt=0)
    """Requests in flight per replica that autoscaling aims at, where it has none of the two targets below."""
    target_ttft_ms: float | None = Field(None, gt=0)
    """Time to first token that autoscaling aims at. When the prompts that wait at a replica would take it longer to
    compute, its rate is known; from then on there are as many replicas as what arrives needs, at four fifths of it.
    Needs `routers`."""
    target_tpot_ms: float | None = Field(None, gt=0)
    """Time per output token that autoscaling aims at: replicas are added while a replica's steps take longer. A lone
    request must meet it, or `max_replicas` are bought. Needs `routers`."""
    zero_after_s: float | None = Field(None, ge=0)
    """How long a service with `min_replicas` 0 keeps its last replica without a request. None: Serve's delay for any
    other, ten minutes."""

    @property
    def scaling_targets(self) -> tuple[str, ...]:
        """Names of the targets that are set."""
        return tuple(name for name in ("target_ttft_ms", "target_tpot_ms") if getattr(self, name) is not None)
