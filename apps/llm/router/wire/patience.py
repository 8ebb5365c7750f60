"""How long a step of an engine may take before the engine counts as stuck."""

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

KEPT_STEPS = 1000
WARM_OUTPUTS = 20
"""The first steps may be slower: so many outputs have to be seen before they are judged as the others."""
FIRST_S, LEAST_S, CHANGING_S = 5.0, 1.0, 60.0
TIMES = 10
SLOW_S = LEAST_S / 2
"""From here on it is noted for how long a step's process has been kept waiting for a core."""


def core_waited() -> float:
    """Seconds that this process's threads have been ready to run and had no core, all of them together.

    0 where Linux does not say so (`schedstats` in the kernel's documentation).
    """
    nanoseconds = 0
    for task in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended since
            nanoseconds += int(task.read_text().split()[1])
    return nanoseconds / 1e9


class Patience:
    """Learns how long an engine's steps take, from how long the current one has been running now and then.

    A step that nobody looked at while it ran was shorter than the time between two looks; with LEAST_S being ten times
    that, it does not matter.

    On a busy machine a step may take many times its usual time, and is not stuck: what its process waited for a core is
    allowed on top. One that hangs waits for none.
    """

    def __init__(self, waited: Callable[[], float] = core_waited) -> None:
        self._waited = waited
        self._waited_before: float | None = None  # when the current step was found to be slow
        self.outputs = 0  # seen so far
        self.changing: set[tuple[bytes, int]] = (
            set()
        )  # calls that change adapters: writing one into the device's memory is a step too
        self._steps: deque[float] = deque(maxlen=KEPT_STEPS)
        self._running_s = 0.0

    def look(self, step_running_s: float) -> float:
        """Note how long the current step has been running. Returns the seconds that it may take."""
        if step_running_s < self._running_s:
            self._steps.append(self._running_s)
            self._waited_before = None
        self._running_s = step_running_s
        if self.changing:
            return CHANGING_S
        usual = max(LEAST_S if self.outputs >= WARM_OUTPUTS else FIRST_S, TIMES * max(self._steps, default=0.0))
        if step_running_s < SLOW_S:
            return usual
        waited = self._waited()
        if self._waited_before is None:
            self._waited_before = waited
        return usual + max(0.0, waited - self._waited_before)
