"""The engine: takes requests for pictures, runs the loop, hands out events.

    engine = Engine.load(StableDiffusionConfig(model="CompVis/stable-diffusion-v1-4"))
    for event in engine.submit([PictureRequest("a red fox in the snow", ...)]):
        ...

The life of a request:
1. `submit`, in the caller's thread, checks and queues it.
2. The loop, in its own thread, launches some denoising steps for the pictures whose turn it is.
3. While the device computes, waiting pictures that fit into that batch are started (prompts encoded, noise drawn):
   they join it at the next launch.
4. Pictures at their last step are decoded and returned at once, which frees their places.
5. A picture whose client has left is dropped before the next launch.
"""

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from apps.serving.engine_thread import EngineThread, drained
from apps.serving.errors import AnswerFailed, EngineStopped, QueueFull, RequestError, panics_as
from apps.serving.event_loops import wake
from apps.serving.progress import tell
from apps.stable_diffusion.engine.backends.backend import Backend
from apps.stable_diffusion.engine.job import PictureJob, QueuePosition
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.loras.slots import SlotsTaken
from apps.stable_diffusion.engine.open_jobs import OpenJobs
from apps.stable_diffusion.engine.picture_queue import PictureTask
from apps.stable_diffusion.engine.request import PictureRequest, check_size
from apps.stable_diffusion.engine.step_times import StepTimes
from ray_configs.stable_diffusion import StableDiffusionConfig

log = logging.getLogger("podslice")

MAX_PREVIEWS = 10


@dataclass(frozen=True, slots=True)
class EngineStats:
    """State of the engine; counters are totals since it started."""

    running: int  # pictures started
    waiting: int
    pictures: int  # finished
    aborted: int  # pictures whose client left
    failed: int  # pictures that ended with an error
    steps: int  # denoising steps, counted once for each picture
    compiles_after_ready: int
    programs_compiled: int  # before it was ready, because none was prepared
    seconds_ahead: float  # estimated time for all running and waiting pictures
    step_running_s: float  # how long the current turn of the loop has taken so far; 0 when idle


class Engine(EngineThread):
    """A loaded model and its loop. Make one with `Engine.load`, or over any Backend that is ready."""

    def __init__(self, backend: Backend[Any], max_waiting: int = 64):
        super().__init__()
        self.backend, self.max_waiting = backend, max_waiting
        self.step_times = StepTimes(backend.batch_sizes)
        self._jobs = OpenJobs(backend, self._lock)
        self._incoming: deque[PictureTask] = deque()
        self._leaving: deque[PictureJob] = deque()
        self._numbers = self._steps = 0
        self._thread.start()

    @classmethod
    def load(cls, config: StableDiffusionConfig) -> "Engine":
        """Read the model, compile every program and start the loop. Takes seconds to minutes; logs progress.

        Raises:
            CheckpointError: the model or a LoRA cannot be read, or is of an unknown kind.
            ValueError: the config does not fit the model or the machine.
        """
        from apps.stable_diffusion.engine.backends.choice import open_backend

        backend = open_backend(
            config.model,
            tokenizer=config.tokenizer,
            prediction=config.prediction,
            vae=config.vae,
            sizes=config.pixel_sizes,
            backend=config.backend,
            max_batch_size=config.max_batch_size,
            guidance_scale=config.guidance_scale,
            dtype=config.dtype,
            compile_cache=config.compile_cache,
            lora_room=LoraRoom.of(config),
            controlnets=config.controlnets,
            prompt_chunks=config.prompt_chunks,
            prepared_programs=config.prepared_programs,
            progress=_say,
        )
        if config.scheduler not in backend.schedulers:
            only = " or ".join(backend.schedulers)
            raise ValueError(f"scheduler is {config.scheduler}, which cannot serve {config.model}: set it to {only}")
        if config.clip_skip > max(1, backend.text_layers):
            raise ValueError(_why_not(config.clip_skip, backend.text_layers))
        for name, location in config.loras.items():
            backend.loras.load(name, location)
        backend.loras.folder = config.lora_folder
        backend.loras.refresh()
        return cls(backend, config.max_waiting)

    # -- the callers' side --------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[PictureRequest], previews: int = 0, loop: Any = None) -> PictureJob:
        """Queue pictures and return at once. Read the job by iterating it (with `loop`, by `async for`).

        Args:
            previews: how many previews of each picture, spread evenly over its steps.

        Raises:
            RequestError: a size that the backend is not ready for, an unknown LoRA or ControlNet, or weights that its
                prompts do not have.
            QueueFull: `max_waiting` pictures wait already.
            EngineStopped: the loop has ended.
        """
        if not requests:
            raise RequestError("n", "a job needs at least one picture")
        if not 0 <= previews <= MAX_PREVIEWS:
            raise RequestError("previews", f"previews is {previews}; it must be from 0 to {MAX_PREVIEWS}")
        for request in requests:
            check_size((request.width, request.height), self.backend.sizes)
            if (second := request.second_pass) is not None:
                check_size((second.width, second.height), self.backend.sizes)
            self.backend.loras.combination(request.loras)
            self.backend.controls.check(request.controls)
            if (skip := request.clip_skip) > 1 and skip > self.backend.text_layers:
                raise RequestError("clip_skip", _why_not(skip, self.backend.text_layers))
            if request.emphasis and not self.backend.emphasis:
                raise RequestError("emphasis", "emphasis: this model's prompts have no weights; leave it out")
        job, now = PictureJob(requests, previews, self, loop), time.monotonic()
        with self._lock:
            self.check_open()
            if self._jobs.waiting and self._jobs.waiting + len(requests) > self.max_waiting:
                message = f"{self._jobs.waiting} pictures wait already, of at most {self.max_waiting}"
                raise QueueFull(message, self._retry_after(len(requests)))
            job.put(QueuePosition(self._jobs.waiting + self._jobs.queue.running))
            groups = [self.backend.group((request.width, request.height)) for request in requests]
            tasks = [PictureTask(job, i, self._numbers + i, now, group) for i, group in enumerate(groups)]
            self._numbers += len(tasks)
            self._jobs.waiting += len(tasks)
            self._ask(self._incoming, tasks)
        return job

    def abort(self, job: PictureJob) -> None:
        self._ask(self._leaving, [job])

    def stats(self) -> EngineStats:
        return EngineStats(
            running=self._jobs.queue.running,
            waiting=self._jobs.waiting,
            pictures=self._jobs.pictures,
            aborted=self._jobs.aborted,
            failed=self._jobs.failed,
            steps=self._steps,
            compiles_after_ready=self.backend.compiles_after_ready,
            programs_compiled=self.backend.programs_compiled,
            seconds_ahead=self._seconds_ahead(),
            step_running_s=self.step_running_s,
        )

    def lose_stuck(self, step_deadline_s: float) -> None:
        """If `check` finds the loop stuck, end all open jobs for their readers. One that goes on is as before."""
        try:
            self.check(step_deadline_s)
        except EngineStopped as stopped:
            try:
                with self._lock:
                    jobs = {task.job for task in (*self._incoming, *self._jobs.queue.tasks())}
            except RuntimeError:  # the loop changes the queue: it goes on
                return
            for job in jobs:
                job.lose(stopped)
            wake(jobs)

    @property
    def busy(self) -> bool:
        """Whether jobs are open."""
        return self._jobs.waiting > 0 or self._jobs.queue.running > 0

    def _retry_after(self, pictures: int) -> float:
        """Estimated seconds until this many of the waiting pictures have been started."""
        waiting = max(1, self._jobs.waiting)
        return min(600.0, max(1.0, self._seconds_ahead() * min(1.0, pictures / waiting)))

    def _seconds_ahead(self) -> float:
        try:
            return self._jobs.queue.seconds_ahead(self.step_times.slowest)
        except RuntimeError:  # the loop changed the queue meanwhile; an estimate is not worth a lock
            return 0.0

    # -- the loop's side ----------------------------------------------------------------------------------------

    def _rest(self) -> None:
        if not self._jobs.queue.running and not self._jobs.queue.waiting:
            self._sleep()

    def _take(self) -> None:
        for task in drained(self._incoming):
            self._jobs.queue.add(task)
        leaving = list(drained(self._leaving))
        for job in leaving:
            if job.end is None:
                self._jobs.abort(job)
        wake(leaving)

    def _turn(self) -> None:
        batch = self._jobs.queue.batch()
        began = time.monotonic()
        steps = self._launch(batch)
        started = self._start_joining()
        if batch:
            self.backend.wait([task.picture for task in batch])
            if not started:  # else the time includes more than the steps
                self.step_times.note(batch[0].group, len(batch), steps, time.monotonic() - began)
            self._jobs.hand_out(batch)

    def _launch(self, batch: list[PictureTask]) -> int:
        """Launch the next steps of a batch; returns how many."""
        if not batch:
            return 0
        steps = self._jobs.queue.steps(batch, self.step_times.seconds_per_step(batch[0].group, len(batch)))
        self._steps += steps * len(batch)
        self.backend.denoise([task.picture for task in batch], steps)
        return steps

    def _start_joining(self) -> int:
        """Start waiting pictures that fit into the batch; returns how many. If one cannot be started, its job fails."""
        started = 0
        for task in self._jobs.queue.joining():
            if task.job.end is not None or task.job.leaving:  # its job failed, or is about to be dropped
                continue
            if self._jobs.queue.no_loras and task.request.loras:
                continue
            try:
                with panics_as(AnswerFailed):
                    picture = self.backend.start(task.request)
            except SlotsTaken:
                self._jobs.queue.no_loras = True
                continue
            except Exception as error:
                self._jobs.refuse(task.job, error)
                continue
            self._jobs.started(task, picture)
            started += 1
        return started

    def _end(self, reason: str) -> None:
        self._jobs.fail_all(list(drained(self._incoming)), reason)


def _why_not(clip_skip: int, layers: int) -> str:
    if not layers:
        return "clip_skip: this model's text encoders are read at a fixed layer; leave it out"
    return f"clip_skip is {clip_skip}; this model's text encoder has {layers} layers"


def _say(program: str, done: int, of: int, seconds: float) -> None:
    tell({"part": "compiling programs", "done": done, "total": of})
    log.info("compiled %s in %.1f s (%d of %d)", program, seconds, done, of)
