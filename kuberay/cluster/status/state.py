"""Phases, problems and verdicts of workloads."""

from dataclasses import dataclass
from enum import IntEnum


class Phase(IntEnum):
    """Phase of a workload or a Pod, ordered by how urgently a person should look at it."""

    DONE = 0  # a job or Pod that succeeded
    READY = 1
    RUNNING = 2  # a running job; a Pod whose readiness probe fails
    STARTING = 3  # or terminating
    WAITING = 4  # for nodes or quota, or suspended
    TROUBLE = 5  # needs a change, or may
    ABSENT = 6
    FAILED = 7  # for good


@dataclass(frozen=True)
class Health:
    """A phase and its text: either a predicate ("is ready", "needs a node with ...") or a sentence without stop."""

    phase: Phase
    text: str


@dataclass(frozen=True)
class WorkloadStatus:
    """A RayService, RayJob, RayCluster or Job: one sentence of verdict, and lines of details below it."""

    phase: Phase
    verdict: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """The state of all objects queried. Plain objects (Services ...) are included only if they are missing."""

    workloads: tuple[WorkloadStatus, ...]

    @property
    def phase(self) -> Phase:
        return max((workload.phase for workload in self.workloads), default=Phase.READY)

    @property
    def ready(self) -> bool:
        """Whether services serve and jobs have succeeded."""
        return self.phase <= Phase.READY

    @property
    def failed(self) -> bool:
        """Whether something has failed for good, so that waiting will not help."""
        return self.phase == Phase.FAILED
