"""A day of a language model's autoscaling by its targets, on played replicas and a played clock.

Oracle: Serve's own wrapper of policies decides when, with its delays; the replicas are arithmetic.
"""

import itertools
import math
import random
from collections import deque
from dataclasses import fields, replace
from typing import Any

import pytest
from ray.serve._private.common import DeploymentID, ReplicaID
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext

from apps.llm.api import EngineStats
from apps.llm.served.scaling import ByLoad, ReplicaReport
from ray_configs.llm import LLMConfig

PROMPT, ANSWER, SLOTS = 1000, 200, 64
PREFILL = 8000
"""Prompt tokens a second of one replica."""
STARTS_S, RECORD_S, WINDOW = 180, 6, 5
"""A slice and its replica; Serve's interval and average of what replicas tell."""
ZERO = EngineStats(**dict.fromkeys((field.name for field in fields(EngineStats)), 0))


class PlayedReplica:
    """A step takes longer with each answer that runs and with each prompt in it; all answers are equally long."""

    def __init__(self, now: int):
        self.ready, self.stats = now + STARTS_S, ZERO
        self.waiting: deque[int] = deque()  # when each came
        self.told: deque[dict[str, float]] = deque(maxlen=WINDOW)
        self.report = ReplicaReport(lambda: self.now)
        self.now, self._budget, self._steps = float(now), 0.0, 0.0
        self._ends: deque[float] = deque()  # at which step each running answer does

    @property
    def open(self) -> int:
        return len(self.waiting) + len(self._ends)

    def second(self, now: int) -> list[int]:
        """How long those waited whose first tokens come in this second."""
        self.now, computed, waited = float(now), 0, []
        self._budget = min(self._budget + PREFILL, PREFILL) if self.waiting else 0.0
        while self.waiting and self._budget >= PROMPT and len(self._ends) < SLOTS:
            self._budget -= PROMPT
            computed += PROMPT
            waited.append(now - self.waiting.popleft())
            self._ends.append(self._steps + ANSWER)
        self._steps += 1 / (0.012 + 0.0005 * len(self._ends) + computed / PREFILL / 50)
        while self._ends and self._ends[0] <= self._steps:
            self._ends.popleft()
        self.stats = replace(
            self.stats,
            running=len(self._ends),
            waiting=len(self.waiting),
            waiting_tokens=PROMPT * len(self.waiting),
            prompt_tokens=self.stats.prompt_tokens + computed,
            steps=int(self._steps),
        )
        return waited


class PlayedDay:
    """Serve's controller, its replicas, and requests at `rate(second)` a second."""

    def __init__(self, config: LLMConfig, monkeypatch: pytest.MonkeyPatch):
        self.config, self.now = config, 0
        self.replicas: list[PlayedReplica] = []
        self.history: list[tuple[int, int]] = []
        self.waited: list[int] = []
        self._queue: deque[int] = deque()  # where no replica is
        self._state: dict[str, Any] = {}
        targets = {name: getattr(config, name) for name in config.scaling_targets}
        self._policy = _apply_autoscaling_config(ByLoad(config.target_ongoing_requests, **targets))
        monkeypatch.setattr("ray.serve.autoscaling_policy.time.time", lambda: float(self.now))

    def run(self, seconds: int, rate: Any, seed: int = 1) -> None:
        draws = random.Random(seed)
        for _ in range(seconds):
            self.now += 1
            for _ in range(_poisson(draws, rate(self.now))):
                self._queue.append(self.now)
            ready = [each for each in self.replicas if each.ready <= self.now]
            while ready and self._queue:
                least = min(ready, key=lambda each: each.open)
                least.waiting.append(self._queue.popleft())
            for each in ready:
                self.waited += each.second(self.now)
            if self.now % RECORD_S == 0:
                for each in ready:
                    each.told.append(each.report.of(each.stats))
                self._decide()

    def _decide(self) -> None:
        target = len(self.replicas)
        wanted, self._state = self._policy(self._context(target))
        wanted = min(max(wanted, self.config.min_replicas), self.config.max_replicas)  # as Serve does after it
        if wanted != target:
            self.history.append((self.now, wanted))
        self.replicas += [PlayedReplica(self.now) for _ in range(wanted - target)]
        for gone in self.replicas[wanted:]:
            self._queue.extendleft(reversed(gone.waiting))
        del self.replicas[wanted:]

    def _context(self, target: int) -> AutoscalingContext:
        deployment = DeploymentID(name="LLMEngine", app_name="llm")
        ids = [ReplicaID(str(number), deployment) for number in range(target)]
        told: dict[str, dict[ReplicaID, float]] = {}
        for id, each in zip(ids, self.replicas):
            for name in each.told[-1] if each.told else ():
                those = [report[name] for report in each.told if name in report]
                told.setdefault(name, {})[id] = sum(those) / len(those)
        most, least = self.config.max_replicas, self.config.min_replicas
        return AutoscalingContext(
            deployment_id=deployment,
            deployment_name=deployment.name,
            app_name=deployment.app_name,
            current_num_replicas=sum(each.ready <= self.now for each in self.replicas),
            target_num_replicas=target,
            running_replicas=ids,
            total_num_requests=len(self._queue),
            total_queued_requests=len(self._queue),
            aggregated_metrics=told,
            raw_metrics={},
            capacity_adjusted_min_replicas=least,
            capacity_adjusted_max_replicas=most,
            policy_state=self._state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=None,
            config=AutoscalingConfig(
                min_replicas=least, max_replicas=most, downscale_to_zero_delay_s=self.config.zero_after_s
            ),
        )


def _poisson(draws: random.Random, mean: float) -> int:
    count, left = 0, draws.expovariate(1) if mean else math.inf
    while left < mean:
        count += 1
        left += draws.expovariate(1)
    return count


def turns(history: list[tuple[int, int]]) -> int:
    """How often the number of replicas turned from rising to falling or back."""
    numbers = [0, *(number for _, number in history)]
    signs = [math.copysign(1, after - before) for before, after in itertools.pairwise(numbers)]
    return sum(one != other for one, other in itertools.pairwise(signs))


def working_day(second: int) -> float:
    """Nobody at night; then up to 20 requests a second at two in the afternoon, and nobody again."""
    hour = second / 3600
    return max(0.0, 20 * math.sin(math.pi * (hour - 7) / 14)) if 7 < hour < 21 else 0.0


@pytest.mark.slow
@pytest.mark.parametrize("targets", [{"target_ttft_ms": 2000.0}, {"target_tpot_ms": 40.0}])
def test_a_day_has_one_rise_and_one_fall(targets: dict[str, float], monkeypatch: pytest.MonkeyPatch) -> None:
    config = LLMConfig(min_replicas=0, max_replicas=16, zero_after_s=300, **targets)
    day = PlayedDay(config, monkeypatch)
    day.run(24 * 3600, working_day)
    numbers = [number for _, number in day.history]
    assert numbers[0] == 1 and numbers[-1] == 0, "from none, and to none"
    assert turns(day.history) <= 1, day.history
    assert max(numbers) <= 8, "twice what the noon needs"
    waited = sorted(day.waited)
    assert len(waited) > 500_000 and waited[int(0.99 * len(waited))] <= 2, "but for those that came before any slice"


def test_a_steady_load_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    config = LLMConfig(min_replicas=1, max_replicas=16, target_ttft_ms=2000, target_tpot_ms=40)
    day = PlayedDay(config, monkeypatch)
    day.run(3 * 3600, lambda second: 12.0)
    settled = [number for second, number in day.history if second > 3600]
    assert settled == [], day.history


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"target_ttft_ms": 500}, "max_replicas is min_replicas"),
        ({"target_tpot_ms": 40, "max_replicas": 3, "routers": 0}, "set routers=1"),
    ],
)
def test_a_target_that_nothing_follows_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        LLMConfig(**fields)


def test_a_jump_is_followed_by_what_arrives_and_not_by_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    """While new replicas start, for minutes, what waits grows without end: it must not buy more and more."""
    config = LLMConfig(min_replicas=1, max_replicas=16, target_ttft_ms=1000, routers=1)
    day = PlayedDay(config, monkeypatch)
    day.run(1800, lambda second: 4.0)
    day.run(1800, lambda second: 22.0)
    numbers = [number for _, number in day.history]
    assert 4 <= max(numbers) <= 6, "22 a second at 7.3 each need 3.0, and four fifths of it are used"
    assert turns(day.history) == 0, day.history
