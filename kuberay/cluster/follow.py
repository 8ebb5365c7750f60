"""Follows the status: watches on everything that it rests on, and a fresh look whenever one of them reports."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from kuberay.cluster.connection import Cluster
from kuberay.cluster.errors import ClusterError
from kuberay.cluster.manifests import Manifest
from kuberay.cluster.state import State
from kuberay.cluster.status import READERS, describe, observe
from kuberay.cluster.surroundings import queue_kind
from kuberay.cluster.watch_stream import WatchStream

WATCHED = (
    ("ray.io/v1", "RayService"),
    ("ray.io/v1", "RayJob"),
    ("ray.io/v1", "RayCluster"),
    ("batch/v1", "Job"),
    ("v1", "Pod"),
    ("v1", "Event"),
)
SETTLE_S = 0.3  # what happens together is looked at together
LOOK_AGAIN_S = 60.0  # nodes are not watched: most people may not


def watch(
    cluster: Cluster,
    objects: Sequence[Manifest],
    show: Callable[[State], None],
    until_ready: bool = False,
    timeout_s: float | None = None,
) -> State:
    """Calls `show` with the state now and whenever its description changes; returns the last state.

    With until_ready it returns as soon as all is ready, or something has failed for good (`state.failed`). Without, it
    goes on until timeout_s (None: for ever) or Ctrl-C, which comes out as KeyboardInterrupt after the watches are shut.
    Raises ClusterError when until_ready and timeout_s has passed, and when the cluster is out of reach for too long.
    """
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    namespaces = {cluster.namespace_of(item) for item in objects if item["kind"] in READERS}
    kinds = {kind for kind in (*WATCHED, queue_kind(cluster)) if kind is not None and cluster.knows(*kind)}
    streams = [cluster.watch(*kind, namespace) for kind in kinds for namespace in namespaces]
    news: queue.SimpleQueue[ClusterError | None] = queue.SimpleQueue()
    threads = [threading.Thread(target=_report, args=(stream, news), daemon=True) for stream in streams]
    for thread in threads:
        thread.start()
    try:
        return _follow(cluster, objects, show, until_ready, deadline, timeout_s, news)
    finally:
        for stream in streams:
            stream.stop()


def _follow(
    cluster: Cluster,
    objects: Sequence[Manifest],
    show: Callable[[State], None],
    until_ready: bool,
    deadline: float | None,
    timeout_s: float | None,
    news: "queue.SimpleQueue[ClusterError | None]",
) -> State:
    shown: list[str] | None = None
    while True:
        state = observe(cluster, objects)
        lines = describe(state)
        if lines != shown:
            shown = lines
            show(state)
        if until_ready and (state.ready or state.failed):
            return state
        left = LOOK_AGAIN_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            if until_ready:
                raise ClusterError(f"Not ready after {timeout_s:g} s: {lines[0]}")
            return state
        _await(news, min(left, LOOK_AGAIN_S))


def _await(news: "queue.SimpleQueue[ClusterError | None]", seconds: float) -> None:
    """Until something has changed, and a moment longer. Raises what a watch died of."""
    with suppress(queue.Empty):
        reports = [news.get(timeout=seconds)]
        time.sleep(SETTLE_S)
        while not news.empty():
            reports.append(news.get())
        for report in reports:
            if report is not None:
                raise report


def _report(stream: WatchStream, news: "queue.SimpleQueue[ClusterError | None]") -> None:
    try:
        for change in stream:
            if change.type != "ADDED":  # of what was there before, the SYNCED that follows is news enough
                news.put(None)
    except ClusterError as error:
        news.put(error)
