"""Changes of adapters between the steps of running sequences."""

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field

from apps.llm.api import EngineStopped
from apps.llm.engine.adapters.stack import Adapted


@dataclass(eq=False)
class AdapterChange:
    """An adapter's index whose matrices change, once no sequence uses it."""

    index: int
    layers: deque[tuple[int, Adapted | None]]  # to write, one between two steps; see `Executor.write_adapter`
    done: Future[None] = field(default_factory=Future)

    @classmethod
    def of(cls, index: int, layers: Iterable[Adapted | None]) -> "AdapterChange":
        """All layers of one index; None clears one."""
        return cls(index, deque(enumerate(layers)))


class AdapterChanges:
    """Those that are not done yet, oldest first."""

    def __init__(self) -> None:
        self._changes: list[AdapterChange] = []

    def __len__(self) -> int:
        return len(self._changes)

    def add(self, changes: Iterable[AdapterChange]) -> None:
        self._changes.extend(changes)

    def write(self, used: set[int], write: Callable[[int, int, Adapted | None], None]) -> None:
        """Write one layer: more would hold up the answers in progress.

        Args:
            used: indices that sequences use.
            write: see `Executor.write_adapter`.
        """
        change = next((change for change in self._changes if change.index not in used), None)
        if change is None:
            return
        if change.layers:
            write(change.index, *change.layers.popleft())
        if not change.layers:
            self._changes.remove(change)
            change.done.set_result(None)

    def fail(self, reason: str) -> None:
        """Fail all of them: the engine has ended."""
        for change in self._changes:
            change.done.set_exception(EngineStopped(reason))
        self._changes = []
