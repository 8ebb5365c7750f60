"""What operators watch, through ray.serve.metrics: Ray's Prometheus endpoint has it with the prefix `ray_`."""

import logging
import time
from dataclasses import asdict

from ray.serve.metrics import Counter, Gauge, Histogram

from apps.stable_diffusion.engine.engine import Engine, EngineStats

log = logging.getLogger("podslice")

LOG_PERIOD_S = 10
STEP_S = [0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30]
PICTURE_S = [0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300]
BATCH = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256]

GAUGES = {
    "running": ("podslice_pictures_running", "Pictures begun and not finished."),
    "waiting": ("podslice_pictures_waiting", "Pictures that wait for a place in the batch."),
    "seconds_ahead": ("podslice_pictures_seconds_ahead", "About how long what runs and waits will take."),
    "compiles_after_ready": ("podslice_compiles_after_ready", "Programs compiled since ready: a defect if not 0."),
}
COUNTERS = {
    "pictures": ("podslice_pictures", "Pictures finished."),
    "aborted": ("podslice_pictures_aborted", "Pictures whose client left."),
    "failed": ("podslice_pictures_failed", "Pictures that ended with an error."),
    "steps": ("podslice_denoising_steps", "Denoising steps, counted once for each picture."),
}
"""EngineStats field -> (metric, description)."""


class Metrics:
    """The metrics of one model in this replica."""

    def __init__(self, model: str):
        keys = ("model",)
        self._gauges = {field: Gauge(*metric, keys) for field, metric in GAUGES.items()}
        self._counters = {field: Counter(*metric, keys) for field, metric in COUNTERS.items()}
        self._step = Histogram("podslice_denoising_step_s", "Time of a denoising step of a batch.", STEP_S, keys)
        self._batch = Histogram("podslice_picture_batch_size", "Pictures denoised together.", BATCH, keys)
        self._picture = Histogram("podslice_picture_s", "From a picture's request to its last pixel.", PICTURE_S, keys)
        for metric in (*self._gauges.values(), *self._counters.values(), self._step, self._batch, self._picture):
            metric.set_default_tags({"model": model})  # a dict for each: Serve writes its own tags into it
        self._last: dict[str, float] = dict.fromkeys(COUNTERS, 0)
        self._logged: tuple[float, EngineStats] | None = None  # (when, the stats then) of the last log line
        self._step_s = 0.0

    def picture(self, seconds: float) -> None:
        self._picture.observe(seconds)

    def publish(self, engine: Engine) -> None:
        """Called about once a second; what the counters have gained since the last call is added."""
        stats = engine.stats()
        values = asdict(stats)
        for field, gauge in self._gauges.items():
            gauge.set(values[field])
        for field, counter in self._counters.items():
            if gained := values[field] - self._last[field]:
                counter.inc(gained)
            self._last[field] = values[field]
        launches = engine.pace.launches
        for _ in range(len(launches)):
            launch = launches.popleft()
            self._step.observe(launch.seconds_per_step)
            self._batch.observe(launch.pictures)
            self._step_s = launch.seconds_per_step
        self._log(stats)

    def _log(self, stats: EngineStats) -> None:
        now = time.monotonic()
        then, before = self._logged = self._logged or (now, stats)
        if (seconds := now - then) < LOG_PERIOD_S:
            return
        self._logged = now, stats
        if stats.steps > before.steps:
            log.info(
                "running %d, waiting %d | %.2f pictures/s, %.0f picture steps/s | %.1f ms a step | %.0f s ahead",
                stats.running,
                stats.waiting,
                (stats.pictures - before.pictures) / seconds,
                (stats.steps - before.steps) / seconds,
                1000 * self._step_s,
                stats.seconds_ahead,
            )
