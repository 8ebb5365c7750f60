"""How many replicas a language model needs: what each one tells, and the policy that adds it up in Serve's controller.

A queue says that replicas are missing, but not how many, and an empty one not that some are too many. So the policy
goes by rates: prompt tokens that arrive, over those that one replica was seen to compute when it could not keep up.
"""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from apps.llm.api import EngineStats

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

OPEN, ARRIVING, COMPUTED, WAITING, STEP = "open", "arriving", "computed", "waiting", "step"
USED = 0.8
"""Share of a replica's rate that arrivals may take. The rest works off what waits."""
NEWEST = 0.3
"""Weight of the newest measurement of that rate in its average."""
SPARE, SPARE_OPEN = 1.15, 1.5
"""Factors on the need before a replica is stopped, by rates and by open requests: rates of a steady traffic vary by
less, and fewer replicas take longer for the same traffic, so that more of it is open."""
FEWER = 8
"""One of so many replicas is stopped at a time, for those that are left are faster or slower than before."""
AT_ONCE = 2.0
"""Factor by which one decision adds replicas at most: new ones are not seen to work yet."""


class ReplicaReport:
    """Measures between two calls of `of`, which come every few seconds; Serve averages over half a minute.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._before: tuple[float, EngineStats] | None = None

    def of(self, stats: EngineStats) -> dict[str, float]:
        """Open requests, prompt tokens that arrive and are computed in a second, those that wait, and seconds a step.

        Only the first of them at the first call: zeros would count in the averages.
        """
        now, before = self._clock(), self._before
        self._before = now, stats
        told: dict[str, float] = {OPEN: stats.running + stats.waiting}
        if before is None or now <= before[0]:
            return told
        seconds, then = now - before[0], before[1]
        computed, steps = stats.prompt_tokens - then.prompt_tokens, stats.steps - then.steps
        arriving = max(0, computed + stats.waiting_tokens - then.waiting_tokens)
        step_s = (seconds / steps if steps else stats.step_running_s) if then.running and stats.running else 0.0
        rates = {ARRIVING: arriving / seconds, COMPUTED: computed / seconds}
        return told | rates | {WAITING: stats.waiting_tokens, STEP: step_s}


class ByLoad:
    """A policy for Serve's `AutoscalingConfig`. Serve applies its bounds and delays, and keeps the state.

    Args:
        target_ongoing_requests, target_ttft_ms, target_tpot_ms: see `ScalingConfig`.
    """

    def __init__(
        self, target_ongoing_requests: float, target_ttft_ms: float | None = None, target_tpot_ms: float | None = None
    ):
        self._open, self._ttft_ms, self._tpot_ms = target_ongoing_requests, target_ttft_ms, target_tpot_ms

    def __call__(self, context: "AutoscalingContext") -> tuple[float, dict[str, Any]]:
        """How many replicas there should be. A call through a handle that waits for a replica asks for one."""
        told: dict[str, dict[Any, float]] = context.aggregated_metrics or {}
        state = {"capacity": self._capacity(told, context.policy_state.get("capacity"))}
        if not told.get(OPEN) and context.current_num_replicas:  # they have not said anything yet
            return context.target_num_replicas, state
        open_requests = sum(told.get(OPEN, {}).values())
        if not open_requests:
            return float(bool(context.total_queued_requests)), state
        if self._ttft_ms is None and self._tpot_ms is None:
            return open_requests / self._open, state
        needs = []
        if self._tpot_ms is not None:
            needs.append(1000 * sum(told.get(STEP, {}).values()) / self._tpot_ms)
        if self._ttft_ms is not None and state["capacity"]:
            needs.append(sum(told.get(ARRIVING, {}).values()) / (USED * state["capacity"]))
        # Without them, the target was never missed yet.
        need, spare = (max(needs), SPARE) if needs else (open_requests / self._open, SPARE_OPEN)
        there = context.target_num_replicas
        if need < there:
            return min(max(need * spare, there - max(1, there // FEWER)), there), state
        return min(need, AT_ONCE * max(1, context.current_num_replicas)), state

    def _capacity(self, told: dict[str, dict[Any, float]], known: float | None) -> float | None:
        """Prompt tokens a second of one replica, as seen when its waiting prompts would have missed the target."""
        if self._ttft_ms is None:
            return None
        rates, waiting = told.get(COMPUTED, {}), told.get(WAITING, {})
        behind = [rate for name, rate in rates.items() if rate and 1000 * waiting.get(name, 0.0) / rate > self._ttft_ms]
        if behind:
            seen = sum(behind) / len(behind)
            return seen if known is None else NEWEST * seen + (1 - NEWEST) * known
        return None if known is None else max(known, *rates.values(), 0.0)
