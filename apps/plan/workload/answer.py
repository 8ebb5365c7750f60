"""What a simulated service made of a workload."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import Self

from pydantic import Field

from apps.plan.report import Part
from apps.plan.simulation.fleet import Fate, Simulation


class Slo(Part):
    """What a request must keep to count as good, and how many requests must be good."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    share: float = Field(0.99, gt=0, le=1, description="of the requests that must keep to both")

    @classmethod
    def parse(cls, text: str) -> Self:
        """From `ttft=2s,tpot=40ms,share=0.95`.

        Raises:
            ValueError: it is something else.
        """
        found = dict[str, float]()
        try:
            for part in text.split(","):
                name, _, value = part.strip().partition("=")
                number, unit = (value[:-2], 1e-3) if value.endswith("ms") else (value.removesuffix("s"), 1.0)
                field = {"ttft": "ttft_s", "tpot": "tpot_s", "share": "share"}[name]
                found[field] = float(number) * (1.0 if name == "share" else unit)
            if not {"ttft_s", "tpot_s"} & set(found) or not all(0 < each < math.inf for each in found.values()):
                raise ValueError
            return cls(**found)
        except (KeyError, ValueError):
            raise ValueError(f"{text!r} must be such as ttft=2s,tpot=40ms or ttft=500ms,share=0.95") from None

    def kept(self, fate: Fate) -> bool:
        if fate.refused:
            return False
        slow_first = self.ttft_s is not None and fate.ttft > self.ttft_s
        return not slow_first and not (self.tpot_s is not None and fate.tpot > self.tpot_s)

    def __str__(self) -> str:
        parts = [f"{name} {spoken(value)}" for name, value in (("ttft", self.ttft_s), ("tpot", self.tpot_s)) if value]
        return f"{' and '.join(parts)} for {self.share:.3g} of the requests"


class Percentiles(Part):
    """Seconds."""

    mean: float
    p50: float
    p90: float
    p99: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Self | None:
        """Of what is no nan; None if there is nothing."""
        known = sorted(value for value in values if not math.isnan(value))
        if not known:
            return None

        def at(share: float) -> float:
            return known[min(len(known) - 1, int(share * len(known)))]

        return cls(mean=sum(known) / len(known), p50=at(0.5), p90=at(0.9), p99=at(0.99))

    def __str__(self) -> str:
        return f"p50 {spoken(self.p50)}, p90 {spoken(self.p90)}, p99 {spoken(self.p99)}"


class Shares(Part):
    """Of the time from the first request to the last answer, over all devices."""

    hbm: float = Field(description="reading and writing HBM")
    compute: float
    interconnect: float
    host: float = Field(description="waiting for the host, with requests open")
    idle: float = Field(description="without requests")


class ServedTrace(Part):
    """A workload on replicas that are alike."""

    replicas: int
    requests: int
    refused: dict[str, int] = Field(description="requests that were not served, by the reason")
    seconds: float = Field(description="from the first request to the last answer")
    ttft: Percentiles | None = Field(description="None: nothing was served")
    tpot: Percentiles | None = Field(description="of each request: seconds for each of its tokens after the first")
    latency: Percentiles | None = Field(description="from a request to its last token")
    tokens_per_s: float = Field(description="of answers")
    requests_per_s: float
    goodput_per_s: float | None = Field(description="requests a second that kept to the SLO; None: there is none")
    good: float | None = Field(description="share of the requests that did")
    meets: bool | None
    hit_rate: float = Field(description="share of the prompts' tokens that a prefix cache had")
    preemptions: int
    batch: float = Field(description="sequences in a step, on average")
    shares: Shares
    full: float = Field(description="share of the time in which requests waited for a slot")
    short_of_pages: float = Field(description="share of the time in which they waited for pages")
    interpreter: float = Field(description="share of the time in which the busiest replica's interpreter works")

    @classmethod
    def of(cls, simulation: Simulation, slo: Slo | None) -> Self:
        """Of a simulation that has run."""
        fates, ranks = simulation.fates, simulation.ranks
        served = [fate for fate in fates if not fate.refused]
        seconds = max((fate.ended for fate in served), default=0.0) or 1e-9
        whole = seconds * len(ranks)
        hbm, compute, ici = (sum(rank.cost[cause] for rank in ranks) / whole for cause in range(3))
        host = sum(rank.starved_s for rank in ranks) / whole
        good = None if slo is None else sum(map(slo.kept, fates))
        return cls(
            replicas=len(simulation.replicas),
            requests=len(fates),
            refused=dict(Counter(fate.refused for fate in fates if fate.refused)),
            seconds=seconds,
            ttft=Percentiles.of([fate.ttft for fate in served]),
            tpot=Percentiles.of([fate.tpot for fate in served]),
            latency=Percentiles.of([fate.ended - fate.arrived for fate in served]),
            tokens_per_s=sum(fate.answer for fate in served) / seconds,
            requests_per_s=len(served) / seconds,
            goodput_per_s=None if good is None else good / seconds,
            good=None if good is None else good / len(fates),
            meets=None if good is None or slo is None else good >= slo.share * len(fates),
            hit_rate=sum(fate.cached for fate in served) / max(1, sum(fate.prompt for fate in served)),
            preemptions=sum(rank.scheduler.preemptions for rank in ranks),
            batch=sum(rank.rows for rank in ranks) / max(1, sum(rank.steps for rank in ranks)),
            shares=Shares(
                hbm=hbm, compute=compute, interconnect=ici, host=host, idle=max(0.0, 1 - hbm - compute - ici - host)
            ),
            full=sum(rank.full_s for rank in ranks) / whole,
            short_of_pages=sum(rank.short_s for rank in ranks) / whole,
            interpreter=max(sum(rank.host_s for rank in replica.ranks) for replica in simulation.replicas) / seconds,
        )

    @property
    def binds(self) -> str:
        """What limits it, in words."""
        if self.ttft is None:
            return "nothing: every request was refused"
        if self.short_of_pages > 0.2:
            return "pages: requests wait for room in the KV cache"
        if self.interpreter > 0.8:
            return "the host: one interpreter plans the steps and makes the text of a replica"
        shares = self.shares
        causes = {"HBM bandwidth": shares.hbm, "compute": shares.compute, "the interconnect": shares.interconnect}
        causes["the host"] = shares.host
        most = max(causes, key=causes.__getitem__)
        if self.full > 0.2:
            return f"the batch: requests wait for a slot, and a step's time is {most}'s"
        return (
            f"{most}, in each step; no queue" if shares.idle < 0.5 else f"nothing: the devices idle ({most} in a step)"
        )


MOMENTS = 120


class Moment(Part):
    """A part of the run; times in seconds."""

    began: float
    arrived: int
    waiting: float = Field(description="requests without a slot, at its beginning")
    running: float
    ttft_p50: float | None = Field(description="of those that arrived in it; None: there were none")
    ttft_p99: float | None


def moments_of(fates: Sequence[Fate]) -> list[Moment]:
    """The run in MOMENTS parts."""
    served = [fate for fate in fates if not fate.refused]
    if not served:
        return []
    length = max(fate.ended for fate in served) / MOMENTS or 1.0
    arrived: list[list[float]] = [[] for _ in range(MOMENTS)]
    waiting, running = [0] * (MOMENTS + 1), [0] * (MOMENTS + 1)  # changes from one beginning to the next

    def part(at: float) -> int:
        return min(int(at / length) + 1, MOMENTS)

    for fate in served:
        arrived[min(int(fate.arrived / length), MOMENTS - 1)].append(fate.ttft)
        for counts, begins, ends in ((waiting, fate.arrived, fate.entered), (running, fate.entered, fate.ended)):
            counts[part(begins)] += 1
            counts[part(ends)] -= 1
    found, waits, runs = [], 0, 0
    for number, ttfts in enumerate(arrived):
        waits, runs = waits + waiting[number], runs + running[number]
        spread = Percentiles.of(ttfts)
        found.append(
            Moment(
                began=number * length,
                arrived=len(ttfts),
                waiting=waits,
                running=runs,
                ttft_p50=spread and spread.p50,
                ttft_p99=spread and spread.p99,
            )
        )
    return found


def spoken(seconds: float) -> str:
    """A time in words."""
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
