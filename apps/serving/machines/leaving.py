"""Nodes that Ray drains: their Pods were told to stop, or their machines are preempted."""

import contextlib
import threading
from collections.abc import Callable, Sequence

from apps.serving import private_ray

LOOK_PERIOD_S = 1.0


class LeavingNodes:
    """Looks, in a thread, which of some nodes are being drained, until `close`.

    Args:
        nodes: their Ray ids.
    """

    def __init__(self, nodes: Sequence[str]):
        self._nodes = nodes
        self._then: list[Callable[[], object]] = []
        self._lock, self._closed = threading.Lock(), threading.Event()
        self.ranks: list[int] = []
        """Those that are being drained, by their places in `nodes`."""
        threading.Thread(target=self._watch, name="podslice-drains", daemon=True).start()

    def then(self, tell: Callable[[], object]) -> None:
        """Call `tell`, from any thread, once the first of the nodes is being drained; now, if one is."""
        with self._lock:
            self._then.append(tell)
            begun = bool(self.ranks)
        if begun:
            tell()

    def close(self) -> None:
        """Look no more."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._closed.wait(LOOK_PERIOD_S):
            with contextlib.suppress(Exception):  # the head may be unreachable for a moment
                self._look()

    def _look(self) -> None:
        going = private_ray.draining_nodes()
        ranks = [rank for rank, node in enumerate(self._nodes) if node in going]
        with self._lock:
            told = self._then if ranks and not self.ranks else []
            self.ranks = ranks
        for tell in told:
            tell()
