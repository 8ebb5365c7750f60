"""Starts a server's process, and ends it with all its descendants."""

import ctypes
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

import psutil

from apps.serving.progress import EVENTS, Event
from kuberay.local.ports import free_ports, hold, is_free

KILL_S = 10
INNER_PORTS = {
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": 8500,
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": 9500,
}
"""Variables of Serve's internal ports, with their defaults. Two servers on one machine need different ports."""
PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


class Server:
    """A server's process and its descendants."""

    def __init__(self, command: Sequence[str], folder: Path, port: int, environment: Mapping[str, str]):
        """`environment`: variables besides those of this process, which come first."""
        self.log = folder / "podslice-serve.log"
        events = folder / "events"
        events.touch()
        self._events = events.open()
        # Orphaned descendants become children of this process, so `kill` finds them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        ports, self._claims = inner_ports(port)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**environment, **os.environ} | ports | {EVENTS: str(events)},
                start_new_session=True,  # a terminal's Ctrl-C reaches only the command, which handles it
            )

    def events(self) -> Iterator[Event]:
        """The events since the last call."""
        while line := self._events.readline():
            yield json.loads(line)

    def keep_log(self, folder: str) -> None:
        """Moves the log to Ray's logs; its present folder is removed when the command ends."""
        self.log = Path(shutil.move(self.log, Path(folder, self.log.name)))

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """Kills all remaining processes and waits until they are gone."""
        deadline = time.monotonic() + KILL_S
        while (left := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            for process in left:
                with suppress(psutil.Error, OSError):  # it is gone, or not yet a child of this process
                    process.kill()
                    os.waitpid(process.pid, os.WNOHANG)
            time.sleep(0.01)
        for claim in self._claims:
            claim.close()


def inner_ports(port: int) -> tuple[dict[str, str], list[socket.socket]]:
    """INNER_PORTS for the environment of the server on `port`, and claims to them, open for as long as it may run.

    They are the ports of this environment, or else the defaults. One in use, for example by the server that set this
    environment, or claimed by a server that is still starting and listens only later, is replaced by a free one.
    """
    wanted = {name: int(os.environ.get(name, default)) for name, default in INNER_PORTS.items()}
    others = (free for free in free_ports(port) if free not in wanted.values())
    found, claims = {}, []
    for name, own in wanted.items():
        for candidate in chain([own], others):
            claim = hold(candidate)
            if claim is not None and is_free(candidate, "0.0.0.0"):
                found[name] = str(candidate)
                claims.append(claim)
                break
            if claim is not None:
                claim.close()
    return found, claims
