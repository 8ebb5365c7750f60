"""A watch that does not end: it goes on after the server hangs up, and lists anew when the server forgot the past."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import urllib3
from kubernetes.client.exceptions import ApiException
from kubernetes.watch import Watch

from kuberay.cluster.errors import ClusterError
from kuberay.cluster.manifests import Manifest

# The server ends a watch after this long, so that one whose connection died unnoticed does not last.
STREAM_S = 45
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0
FAILURES_IN_A_ROW = 6
STOP_TRIES = 50


@dataclass(frozen=True)
class Change:
    """`type` is ADDED, MODIFIED or DELETED, or SYNCED (without an object) when all that there is has been named."""

    type: str
    object: Manifest | None = None


class WatchStream:
    """Iterates over Changes until `stop()`, which any thread may call.

    First comes every present object as ADDED and then SYNCED; the same again whenever the server no longer remembers
    where the stream was (410 Gone): what was not named between is gone.
    """

    def __init__(
        self,
        listed: Callable[[], tuple[list[Manifest], str]],
        stream: Callable[[str, Any, int], Iterator[Manifest]],
    ):
        self._listed, self._stream = listed, stream
        self._stopped = threading.Event()
        self._idle = threading.Event()  # nobody reads from the server
        self._idle.set()
        self._watcher = Watch()

    def stop(self) -> None:
        self._stopped.set()
        # Again and again: a stream that is only just being opened cannot be shut yet.
        for _ in range(STOP_TRIES):
            if self._idle.wait(0.02):
                return
            self._watcher.stop()

    def __iter__(self) -> Iterator[Change]:
        version, failures = None, 0
        while not self._stopped.is_set():
            if version is None:
                present, version = self._listed()
                for item in present:
                    yield Change("ADDED", item)
                yield Change("SYNCED")
            try:
                for raw in self._events(version):
                    failures = 0
                    version = raw["object"]["metadata"]["resourceVersion"]
                    if raw["type"] != "BOOKMARK":
                        yield Change(raw["type"], raw["object"])
            except ClusterError as error:
                if self._stopped.is_set():  # what looks like a failure is our own hanging up
                    return
                if _gone(error):
                    version = None
                elif not _broken(error) or (failures := failures + 1) == FAILURES_IN_A_ROW:
                    raise
                else:
                    self._stopped.wait(min(FIRST_PAUSE_S * 2**failures, LONGEST_PAUSE_S))

    def _events(self, version: str) -> Iterator[dict[str, Any]]:
        """One request's worth of events."""
        stream = self._stream(version, self._watcher, STREAM_S)
        while True:
            self._idle.clear()
            try:
                event = None if self._stopped.is_set() else next(stream, None)
            finally:
                self._idle.set()
            if event is None or self._stopped.is_set():
                return
            yield {"type": event["type"], "object": event["raw_object"]}


def _gone(error: ClusterError) -> bool:
    return isinstance(error.__cause__, ApiException) and error.__cause__.status == 410


def _broken(error: ClusterError) -> bool:
    """The connection or the server broke, which passes; not: the server says no."""
    cause = error.__cause__
    if isinstance(cause, ApiException):
        return not cause.status or cause.status in (429, 500, 502, 503, 504)
    return isinstance(cause, urllib3.exceptions.HTTPError | OSError)
