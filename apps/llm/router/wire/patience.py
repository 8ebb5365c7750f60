"""How long a step of an engine may take before the engine counts as stuck."""

from collections import deque

KEPT_STEPS = 1000
WARM_OUTPUTS = 20
"""The first steps may be slower: so many outputs have to be seen before they are judged as the others."""
FIRST_S, LEAST_S, CHANGING_S = 5.0, 1.0, 60.0
TIMES = 10


class Patience:
    """Learns how long an engine's steps take, from how long the current one has been running now and then.

    A step that nobody looked at while it ran was shorter than the time between two looks; with LEAST_S being ten times
    that, it does not matter.
    """

    def __init__(self) -> None:
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
        self._running_s = step_running_s
        if self.changing:
            return CHANGING_S
        return max(LEAST_S if self.outputs >= WARM_OUTPUTS else FIRST_S, TIMES * max(self._steps, default=0.0))
