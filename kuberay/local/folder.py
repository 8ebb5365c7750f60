"""What a run has of its own on this machine: a folder and an address for other processes, and TCP ports."""

import contextlib
import fcntl
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kuberay.local import LocalError

LONGEST = 40
"""Characters of its path. Ray puts sockets below it, and the path of a socket has 107 at most."""
MOST = 1 << 16
LOWEST, HIGHEST = 20000, 29900
"""Above the range of Ray's workers by default, below those of Serve's replicas and of the kernel's own choice."""


class RunFolder:
    """The folder of the run on a port: `acquire` it before anything else and `release` it, or `ask` its holder."""

    def __init__(self, port: int):
        base = Path(tempfile.gettempdir())
        if len(str(base)) > LONGEST - 20:
            base = Path("/tmp")
        self._base = base / f"podslice-{os.getuid()}"
        self.path = self._base / str(port)
        self._lock_path = self._base / f"{port}.lock"
        self._socket_path = self._base / f"{port}.sock"
        self._lock: int | None = None
        self._socket: socket.socket | None = None

    def acquire(self) -> bool:
        """Whether it is this process's now, and empty; False: another run holds it."""
        self._base.mkdir(mode=0o700, exist_ok=True)
        if (status := self._base.lstat()).st_uid != os.getuid() or status.st_mode & 0o022:
            raise LocalError(f"{self._base} is not safely yours; remove it")
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(lock)
                return False
            try:  # the one before may have removed the file between our two steps
                if os.path.samestat(os.fstat(lock), os.stat(self._lock_path)):
                    break
            except FileNotFoundError:
                pass
            os.close(lock)
        self._lock = lock
        self._clear()  # what a run left that could not end in its own way
        self.path.mkdir(mode=0o700)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(self._socket_path))
        self._socket.listen()
        self._socket.setblocking(False)
        return True

    def release(self) -> None:
        """Remove it all."""
        if self._lock is None:
            return
        if self._socket:
            self._socket.close()
        self._clear()
        self._lock_path.unlink(missing_ok=True)
        os.close(self._lock)
        self._lock = None
        with contextlib.suppress(OSError):  # another run's is in there
            self._base.rmdir()

    def _clear(self) -> None:
        self._socket_path.unlink(missing_ok=True)
        shutil.rmtree(self.path, ignore_errors=True)

    def request(self) -> "Request | None":
        """What another process asks of this run, if one does."""
        assert self._socket is not None
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return None
        connection.settimeout(2)
        try:
            return Request(connection, json.loads(connection.recv(MOST)))
        except (OSError, ValueError):
            connection.close()
            return None

    def ask(self, **question: Any) -> dict[str, Any]:
        """Ask the run that holds it. Raises LocalError if it does not answer."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            try:
                connection.connect(str(self._socket_path))
                connection.sendall(json.dumps(question).encode())
                connection.shutdown(socket.SHUT_WR)
                return json.loads(connection.recv(MOST))
            except (OSError, ValueError) as error:
                raise LocalError(f"the run on port {self.path.name} does not answer ({error})") from error


class Request:
    """A request of another process; it is answered once."""

    def __init__(self, connection: socket.socket, question: dict[str, Any]):
        self._connection, self.question = connection, question

    def answer(self, **answer: Any) -> None:
        with self._connection, contextlib.suppress(OSError):  # it may not have waited
            self._connection.sendall(json.dumps(answer).encode())


def address_of(port: int) -> str:
    """A loopback address for the hosts of the run that serves on `port`: 127.31.64.1 for 8000.

    Not 127.0.0.1, which Ray would replace by the machine's address on the network, which a laptop changes.
    """
    return f"127.{port >> 8}.{port & 255}.1"


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def free_ports(port: int) -> Iterator[int]:
    """Ports that nobody listens on; each run begins to look elsewhere."""
    span = HIGHEST - LOWEST
    for i in range(span):
        candidate = LOWEST + (port * 211 + i) % span
        if is_free(candidate, "0.0.0.0"):
            yield candidate
