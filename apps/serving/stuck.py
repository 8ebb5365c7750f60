"""Ends what readers wait for when an engine is stuck: without it they would wait as long as the device does."""

import asyncio
import time
from collections.abc import Callable

from apps.serving.errors import EngineStopped

LOOKS = 4
"""Looks at the engine within its deadline, though at least one a second."""


class StuckWatch:
    """Looks at an engine while requests are open, in the event loop that reads them.

    Args:
        check: raises EngineStopped if a step takes longer than the deadline.
        lose: ends the requests that wait for it, with an error that says why.
        busy: whether requests are open.
        deadline_s: of a step.
    """

    def __init__(
        self, check: Callable[[], None], lose: Callable[[], None], busy: Callable[[], bool], deadline_s: float
    ):
        self._check, self._lose, self._busy = check, lose, busy
        self._period_s = min(1.0, deadline_s / LOOKS)
        self._task: asyncio.Task[None] | None = None

    def look(self) -> None:
        """Watch from now on until no request is open. Called in the event loop, for each request once it is."""
        if self._task is None or self._task.done() or self._task.get_loop() is not asyncio.get_running_loop():
            self._task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        seen = 0  # looks in a row that found the engine stuck
        while True:
            began = time.monotonic()
            await asyncio.sleep(self._period_s)
            # A process that was stopped and goes on finds every clock advanced. Its engine gets its turn first.
            late = time.monotonic() - began > 3 * self._period_s
            seen = seen + 1 if self._stuck() and not late else 0
            if seen >= 2:
                self._lose()
            elif not self._busy():
                return

    def _stuck(self) -> bool:
        try:
            self._check()
        except EngineStopped:
            return True
        return False
