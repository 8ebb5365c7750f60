"""Shows a changing state: redrawn in place on a terminal, as new lines elsewhere."""

import time
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.text import Text


class StatusDisplay:
    """`with StatusDisplay() as display: display.show(lines)`, as often as needed."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        self._last: list[str] = []

    def __enter__(self) -> "StatusDisplay":
        if self._live:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._live:
            self._live.stop()

    def show(self, lines: list[str]) -> None:
        if lines == self._last:
            return
        if self._live:
            self._live.update(Text("\n".join(lines)), refresh=True)
        else:
            # In a log each line has a timestamp, and only new lines are printed.
            stamp = time.strftime("%H:%M:%S ") if self._last else ""
            for line in lines:
                if line not in self._last:
                    print(stamp + line, flush=True)
        self._last = lines
