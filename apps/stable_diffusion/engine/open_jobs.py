"""The jobs that the engine's loop has, and what becomes of each."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from apps.serving.errors import EngineStopped, RequestError
from apps.serving.event_loops import wake
from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.job import Finished, PictureFailed, PictureJob, Preview, Step
from apps.stable_diffusion.engine.picture_queue import PictureQueue, PictureTask
from apps.stable_diffusion.engine.second_pass import second_request

log = logging.getLogger("podslice")

FAILED_STARTS = 3
"""Consecutive pictures that fail to start, not because of their requests, before the engine counts as broken."""
UNSOUND = (
    "the numbers that the model computed for this picture are not finite: its weights are too large for their type "
    "(try dtype float32), or damaged"
)


class OpenJobs:
    """Ends every job in one way: its pictures are finished, its client has left, or it failed with an error.

    The loop's thread calls the methods; other threads read the counts.

    Args:
        backend: decodes pictures.
        lock: held where `waiting` changes.
    """

    def __init__(self, backend: Backend[Any], lock: threading.Condition):
        self._backend, self._lock = backend, lock
        self.queue = PictureQueue(backend.batch_sizes[-1])
        self.waiting = 0
        """Pictures that are submitted and not yet started: what max_waiting bounds."""
        self.pictures = self.aborted = self.failed = 0
        """Totals: pictures that are finished, whose client has left, and that ended with an error."""
        self._failed_starts = 0

    def started(self, task: PictureTask, picture: Any) -> None:
        """Take a waiting picture into the batch."""
        self._failed_starts = 0
        if task.second is None:
            task.previews = _preview_steps(picture.steps_total, task.job.previews)
        task.picture = picture
        self.queue.started(task)
        with self._lock:
            self.waiting -= 1

    def refuse(self, job: PictureJob, error: Exception) -> None:
        """End a job of which a picture cannot be started. After too many in a row, raise: the engine is broken."""
        if isinstance(error, RequestError):
            self._failed_starts = 0
        else:
            log.error("a picture could not be started", exc_info=error)
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                raise error
            error = PictureFailed(f"the picture could not be started: {type(error).__name__}: {error}")
        self._fail_job(job, error)

    def abort(self, job: PictureJob) -> None:
        """End a job whose client has left."""
        self.aborted += self._drop(job)
        job.close("aborted")

    def _fail_job(self, job: PictureJob, error: Exception) -> None:
        self.failed += self._drop(job)
        job.close("failed", error)
        wake([job])

    def hand_out(self, batch: list[PictureTask]) -> None:
        """Report each picture's progress to its reader, with previews and finished pictures."""
        for task in batch:
            task.job.put(Step(task.index, task.steps_done, task.steps_total))
        wake(task.job for task in batch)
        wanted = [task for task in batch if not task.job.leaving]
        ended = [task for task in wanted if task.begun.steps_done >= task.begun.steps_total]
        done = [task for task in ended if task.request.second_pass is None]
        shown = [task for task in wanted if task.previews and task.begun.steps_done >= task.previews[0]]
        if done:
            for task, pixels in zip(done, self._backend.decode([task.picture for task in done])):
                if task.job.end is not None:  # another picture of it has failed
                    continue
                if pixels is None:
                    self._fail_job(task.job, PictureFailed(UNSOUND))
                else:
                    self._finish(task, pixels)
        if shown:
            for task, pixels in zip(shown, self._backend.decode([task.picture for task in shown], estimate=True)):
                if pixels is not None and task.job.end is None:
                    task.job.put(Preview(task.index, task.shown, task.steps_done, task.steps_total, pixels))
                task.previews, task.shown = task.previews[1:], task.shown + 1
        for task in ended:
            if task.request.second_pass is not None and task.job.end is None:
                self._begin_second(task)
        wake(task.job for task in (*done, *shown))

    def _begin_second(self, task: PictureTask) -> None:
        """Put a picture whose first pass is done into the queue for its second."""
        first = task.begun
        latents = self._backend.latents(first)
        if not np.isfinite(latents).all():
            self._fail_job(task.job, PictureFailed(UNSOUND))
            return
        second = second_request(task.request, latents)
        self.queue.again(task, second, self._backend.group((second.width, second.height)))
        self._backend.end(first)
        with self._lock:
            self.waiting += 1

    def _finish(self, task: PictureTask, pixels: Any) -> None:
        self._remove(task)
        self.pictures += 1
        job, steps, seconds = task.job, task.steps_total, time.monotonic() - task.submitted
        job.put(Finished(task.index, pixels, task.asked, steps, tuple(task.begun.warnings), seconds))
        if job.pictures_done == len(job.requests):
            job.close("finished")

    def _drop(self, job: PictureJob) -> int:
        """Remove a job's pictures, waiting or running; returns how many there were."""
        tasks = [task for task in self.queue.tasks() if task.job is job]
        for task in tasks:
            self._remove(task)
            if task.picture is None:
                with self._lock:
                    self.waiting -= 1
        return len(tasks)

    def _remove(self, task: PictureTask) -> None:
        self.queue.remove(task)
        if task.picture is not None:
            self._backend.end(task.picture)

    def fail_all(self, incoming: Sequence[PictureTask], reason: str) -> None:
        """Fail every job, and those of `incoming`, which the queue does not have yet."""
        with self._lock:
            self.waiting = 0
        tasks = [*self.queue.tasks(), *incoming]
        self.queue = PictureQueue(self._backend.batch_sizes[-1])
        self.failed += len(tasks)
        jobs = {task.job for task in tasks if task.job.end is None}
        for job in jobs:
            job.close("failed", EngineStopped(reason))
        wake(jobs)


def _preview_steps(steps: int, previews: int) -> tuple[int, ...]:
    """Steps after which to send a preview: evenly spread, never the last, fewer if there are few steps."""
    return tuple(sorted({steps * (i + 1) // (previews + 1) for i in range(previews)} - {0, steps}))
