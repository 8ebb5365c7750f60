"""A picture model's metrics."""

from typing import ClassVar

from apps.serving.metrics import Metrics
from apps.stable_diffusion.engine.engine import EngineStats
from apps.stable_diffusion.engine.step_times import StepTimes


class PictureMetrics(Metrics[EngineStats]):
    GAUGES: ClassVar = {
        "running": ("podslice_pictures_running", "Pictures started and not finished."),
        "waiting": ("podslice_pictures_waiting", "Pictures that wait for a place in the batch."),
        "seconds_ahead": ("podslice_pictures_seconds_ahead", "Estimated time for running and waiting pictures."),
        "compiles_after_ready": ("podslice_compiles_after_ready", "Programs compiled since ready: a defect if not 0."),
        "programs_compiled": ("podslice_programs_compiled", "Programs compiled at the start: none was prepared."),
    }
    COUNTERS: ClassVar = {
        "pictures": ("podslice_pictures", "Pictures finished."),
        "aborted": ("podslice_pictures_aborted", "Pictures whose client left."),
        "failed": ("podslice_pictures_failed", "Pictures that ended with an error."),
        "steps": ("podslice_denoising_steps", "Denoising steps, counted once for each picture."),
    }
    HISTOGRAMS: ClassVar = {
        "step": (
            "podslice_denoising_step_s",
            "Time of a denoising step of a batch.",
            (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30),
        ),
        "batch": (
            "podslice_picture_batch_size",
            "Pictures denoised together.",
            (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256),
        ),
        "picture": (
            "podslice_picture_s",
            "From a picture's request to its last pixel.",
            (0.05, 0.1, 0.2, 0.5, 1, 2, 3, 5, 7.5, 10, 15, 20, 30, 60, 120, 300),
        ),
    }

    def __init__(self, model: str, times: StepTimes):
        super().__init__(model)
        self._times, self._step_s = times, 0.0

    def publish(self, stats: EngineStats) -> None:
        launches = self._times.launches
        for _ in range(len(launches)):
            launch = launches.popleft()
            self.observe("step", launch.seconds_per_step)
            self.observe("batch", launch.pictures)
            self._step_s = launch.seconds_per_step
        super().publish(stats)

    def line(self, stats: EngineStats, before: EngineStats, seconds: float) -> str:
        pictures, steps = (stats.pictures - before.pictures) / seconds, (stats.steps - before.steps) / seconds
        return (
            f"running {stats.running}, waiting {stats.waiting} | {pictures:.2f} pictures/s, "
            f"{steps:.0f} picture steps/s | {1000 * self._step_s:.1f} ms a step | {stats.seconds_ahead:.0f} s ahead"
        )
