"""Follows the status: looks again every few seconds, and shows what has changed."""

import time
from collections.abc import Callable, Sequence

from kuberay.cluster.connection import Cluster
from kuberay.cluster.errors import ClusterError, Refused
from kuberay.cluster.manifests import Manifest
from kuberay.cluster.status import describe, observe
from kuberay.cluster.status.state import State

LOOK_AGAIN_S = 2.0
FAILURES_IN_A_ROW = 10  # each after retries of its own: some minutes


def watch(
    cluster: Cluster,
    objects: Sequence[Manifest],
    show: Callable[[State], None],
    until_ready: bool = False,
    timeout_s: float | None = None,
) -> State:
    """Calls `show` with the state now and whenever its description changes; returns the last state.

    With until_ready it returns as soon as all is ready, or something has failed for good (`state.failed`). Without, it
    goes on until timeout_s (None: for ever) or Ctrl-C. Raises ClusterError when until_ready and timeout_s has passed,
    and when the cluster is out of reach for too long.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    shown: list[str] | None = None
    failures = 0
    while True:
        try:
            state = observe(cluster, objects)
        except Refused:
            raise
        except ClusterError:  # control planes are upgraded, laptops change networks
            failures += 1
            if shown is None or failures == FAILURES_IN_A_ROW:
                raise
        else:
            failures = 0
            lines = describe(state)
            if lines != shown:
                shown = lines
                show(state)
            if until_ready and (state.ready or state.failed):
                return state
        if deadline is not None and time.monotonic() >= deadline:
            if until_ready:
                raise ClusterError(f"Not ready after {timeout_s:g} s: {shown[0] if shown else ''}")
            return state
        time.sleep(LOOK_AGAIN_S if deadline is None else min(LOOK_AGAIN_S, max(0.0, deadline - time.monotonic())))
