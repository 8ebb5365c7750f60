"""Metrics, through ray.serve.metrics: Ray's Prometheus endpoint exports them with the prefix `ray_`."""

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger("podslice")

LOG_PERIOD_S = 10
Stats = TypeVar("Stats", bound="DataclassInstance")
"""A dataclass of numbers: an engine's load, and counters that are totals since it started."""


class Instruments(Generic[Stats]):
    """Gauges and counters of stats that are recorded again and again, and histograms of observed values."""

    KEYS: ClassVar[tuple[str, ...]] = ()
    """Tags beside the model's."""
    GAUGES: ClassVar[Mapping[str, tuple[str, str]]]
    COUNTERS: ClassVar[Mapping[str, tuple[str, str]]]
    """Field of the stats -> (metric, description)."""
    HISTOGRAMS: ClassVar[Mapping[str, tuple[str, str, Sequence[float]]]]
    """Name for `observe` -> (metric, description, buckets)."""

    def __init__(self, model: str):
        from ray.serve.metrics import Counter, Gauge, Histogram  # importing this module needs no Ray

        # Ray annotates its tags as a tuple of one.
        keys: Any = ("model", *self.KEYS)
        self._gauges = {field: Gauge(*metric, keys) for field, metric in self.GAUGES.items()}
        self._counters = {field: Counter(*metric, keys) for field, metric in self.COUNTERS.items()}
        self._histograms = {
            name: Histogram(metric, told, list(buckets), keys)
            for name, (metric, told, buckets) in self.HISTOGRAMS.items()
        }
        for instrument in (*self._gauges.values(), *self._counters.values(), *self._histograms.values()):
            instrument.set_default_tags({"model": model})  # a separate dict each: Serve adds its own tags to it
        self._last: dict[tuple[str, ...], dict[str, Any]] = {}  # by the values of KEYS

    def observe(self, name: str, value: float, **tags: str) -> None:
        self._histograms[name].observe(value, tags)

    def record(self, stats: Stats, **tags: str) -> None:
        """Set the gauges and add to the counters what they gained since the last call."""
        values: dict[str, Any] = asdict(stats)
        last, self._last[*tags.values()] = self._last.get((*tags.values(),), {}), values
        for field, gauge in self._gauges.items():
            gauge.set(values[field], tags)
        for field, counter in self._counters.items():
            if gained := values[field] - last.get(field, 0):
                counter.inc(gained, tags)


class Metrics(Instruments[Stats], ABC):
    """The metrics of one model in this replica: its engine's stats, observed values, and a periodic log line."""

    def __init__(self, model: str):
        super().__init__(model)
        self._logged: tuple[float, Stats] | None = None  # (time, stats) of the last log line

    @abstractmethod
    def line(self, stats: Stats, before: Stats, seconds: float) -> str:
        """The log line for the last `seconds`, in which the stats went from `before` to `stats`."""

    def publish(self, stats: Stats) -> None:
        """Called about once a second."""
        self.record(stats)
        now = time.monotonic()
        then, before = self._logged = self._logged or (now, stats)
        if (seconds := now - then) >= LOG_PERIOD_S:
            self._logged = now, stats
            if stats != before:
                log.info("%s", self.line(stats, before, seconds))

    async def publish_forever(self, stats: Callable[[], Stats]) -> None:
        """Publishes every second, and logs a line every ten while there is work."""
        try:
            while True:
                await asyncio.sleep(1)
                self.publish(stats())
        except Exception:
            log.exception("metrics are no longer published")
