"""Continuous batching between denoising steps: which pictures advance together, and by how many steps.

Pictures of a batch share their group of sizes and nothing else: schedulers, step counts and guidance are per-picture
numbers. The oldest picture decides the group, and others of it join. So a picture waits only for older ones, and no
size starves another.
"""

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass

from apps.stable_diffusion.engine.backends.backend import Picture
from apps.stable_diffusion.engine.job import PictureJob
from apps.stable_diffusion.engine.request import PictureRequest

LAUNCH_S = 0.05
"""Longest launch, unless a single step takes longer: aborts and progress events wait for the end of a launch."""


@dataclass(eq=False, slots=True)
class PictureTask:
    """One picture of a job, from the queue to its end."""

    job: PictureJob
    index: int  # which of the job's pictures
    number: int  # tasks submitted before it
    submitted: float  # time.monotonic()
    group: Hashable  # see `Backend.group`
    picture: Picture | None = None  # None: it waits
    previews: tuple[int, ...] = ()  # steps after which previews are still to be sent
    shown: int = 0  # previews sent
    second: PictureRequest | None = None  # its second pass, once that has its turn
    steps_before: int = 0  # of the first pass, in the second

    @property
    def request(self) -> PictureRequest:
        """What is drawn now."""
        return self.second or self.asked

    @property
    def asked(self) -> PictureRequest:
        """What the job asked for."""
        return self.job.requests[self.index]

    @property
    def steps_done(self) -> int:
        return self.steps_before + self.begun.steps_done

    @property
    def steps_total(self) -> int:
        """Of both passes; of a second one that is still to come as far as it is known."""
        wanted = self.request.second_pass
        ahead = 0 if wanted is None else wanted.steps(self.request.num_inference_steps)
        return self.steps_before + self.begun.steps_total + ahead

    @property
    def begun(self) -> Picture:
        """Its picture, of a task that no longer waits."""
        assert self.picture is not None
        return self.picture

    @property
    def left(self) -> int:
        """Steps to its next preview, or to its end."""
        stop = self.previews[0] if self.previews else self.begun.steps_total
        return stop - self.begun.steps_done


class PictureQueue:
    """The waiting and the running tasks, by group. At most `largest` of a group run at once.

    When there is no place for a task's LoRAs, no other with LoRAs may start before a task has ended: it could keep the
    place that the first waits for.
    """

    def __init__(self, largest: int):
        self._largest = largest
        self._waiting: dict[Hashable, deque[PictureTask]] = {}
        self._running: dict[Hashable, list[PictureTask]] = {}
        self.no_loras = False
        """Whether a task waits for a place for its LoRAs."""

    @property
    def running(self) -> int:
        return sum(map(len, self._running.values()))

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def tasks(self) -> Iterator[PictureTask]:
        """All tasks, running ones first."""
        for tasks in (*self._running.values(), *self._waiting.values()):
            yield from tasks

    def add(self, task: PictureTask) -> None:
        self._waiting.setdefault(task.group, deque()).append(task)

    def started(self, task: PictureTask) -> None:
        """Move a task, which has its picture now, from waiting to running."""
        self._waiting[task.group].remove(task)
        self._running.setdefault(task.group, []).append(task)

    def again(self, task: PictureTask, second: PictureRequest, group: Hashable) -> None:
        """A running task waits for its second pass, in front of younger ones."""
        self._running[task.group].remove(task)
        task.second, task.steps_before, task.group = second, task.begun.steps_total, group
        task.picture, task.previews = None, ()
        self._waiting.setdefault(group, deque()).appendleft(task)
        self.no_loras = False

    def remove(self, task: PictureTask) -> None:
        """Remove a task that has ended, in whatever way."""
        tasks = self._waiting if task.picture is None else self._running
        tasks[task.group].remove(task)
        self.no_loras = False

    def batch(self) -> list[PictureTask]:
        """The tasks to advance next; empty if there are none, or if the next in turn must be started first."""
        group = self._turn()
        return [] if group is None else list(self._running.get(group, ()))

    def joining(self) -> list[PictureTask]:
        """The waiting tasks that fit into the batch whose turn it is."""
        if (group := self._turn()) is None:
            return []
        places = self._largest - len(self._running.get(group, ()))
        return [task for task, _ in zip(self._able(group), range(places))]

    def _able(self, group: Hashable) -> Iterator[PictureTask]:
        """The waiting tasks of a group that may start."""
        return (task for task in self._waiting.get(group, ()) if not (self.no_loras and task.request.loras))

    def steps(self, batch: list[PictureTask], seconds_per_step: float | None) -> int:
        """Steps of one launch: none beyond a picture's end or preview, and just one while others can join."""
        least = min(task.left for task in batch)
        if seconds_per_step is None or self.joining():
            return 1
        return max(1, min(least, int(LAUNCH_S / max(seconds_per_step, 1e-6))))

    def seconds_ahead(self, seconds_per_step: Callable[[Hashable], float]) -> float:
        """Estimated seconds for all running and waiting tasks, as far as steps have been timed."""
        total = 0.0
        for group in {*self._running, *self._waiting}:
            running, waiting = self._running.get(group, ()), self._waiting.get(group, ())
            steps = sum(task.begun.steps_total - task.begun.steps_done for task in running)
            steps += sum(task.request.num_inference_steps for task in waiting)
            together = max(1, min(self._largest, len(running) + len(waiting)))
            total += steps / together * seconds_per_step(group)
        return total

    def _turn(self) -> Hashable | None:
        """The group of the oldest task that runs or may start."""
        firsts = [tasks[0] for tasks in self._running.values() if tasks]
        firsts += [task for group in self._waiting for task in itertools.islice(self._able(group), 1)]
        return min(firsts, key=lambda task: task.number).group if firsts else None
