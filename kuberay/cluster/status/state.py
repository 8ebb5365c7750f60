"""How things stand, as data: what status observes, and what decides which words come first."""

from dataclasses import dataclass
from enum import IntEnum


class Phase(IntEnum):
    """How a workload or a Pod stands. The greater, the more a person should look at it first."""

    DONE = 0  # a job, or a Pod, that ended well
    READY = 1
    RUNNING = 2  # a job at work; a Pod whose readiness probe says no
    STARTING = 3  # or ending
    WAITING = 4  # for nodes, for quota, or suspended
    TROUBLE = 5  # will not come right without a change, or may not
    ABSENT = 6
    FAILED = 7  # over, and badly


@dataclass(frozen=True)
class Health:
    """How something stands, in words that go on from its name ("is ready", "needs a node with ...") or that are a
    sentence without its full stop."""

    phase: Phase
    text: str


@dataclass(frozen=True)
class WorkloadStatus:
    """A RayService, RayJob, RayCluster or Job. The verdict is one sentence, the details are lines below it."""

    phase: Phase
    verdict: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class State:
    """Of everything that was asked about. Plain objects (Services ...) are among it where they are not there."""

    workloads: tuple[WorkloadStatus, ...]

    @property
    def phase(self) -> Phase:
        return max((workload.phase for workload in self.workloads), default=Phase.READY)

    @property
    def ready(self) -> bool:
        """Services serve and jobs have ended well."""
        return self.phase <= Phase.READY

    @property
    def failed(self) -> bool:
        """Waiting longer will not help."""
        return self.phase == Phase.FAILED
