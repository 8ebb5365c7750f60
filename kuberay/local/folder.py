"""What a run has of its own on this machine: a folder and an address for other processes, and TCP ports."""

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

from kuberay.local import LocalError

LONGEST = 40
"""Characters of its path. Ray puts sockets below it, and the path of a socket has 107 at most."""
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
        self._question = self.path / "question"
        self._lock = socket.socket(socket.AF_UNIX)

    def acquire(self) -> bool:
        """Whether it is this process's now, and empty; False: another run holds it."""
        self._base.mkdir(mode=0o700, exist_ok=True)
        if (status := self._base.lstat()).st_uid != os.getuid() or status.st_mode & 0o022:
            raise LocalError(f"{self._base} is not safely yours; remove it")
        try:
            self._lock.bind(f"\0{self.path}")  # a name that is no file: it goes with the process, however that ends
        except OSError:
            return False
        shutil.rmtree(self.path, ignore_errors=True)  # what a run left that could not end in its own way
        self.path.mkdir(mode=0o700)
        return True

    def release(self) -> None:
        """Remove it all."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()  # last: from here on, the folder may be the next run's

    def ask(self, question: str) -> None:
        """Leave a question for the run that holds it. Raises LocalError where it has only just begun, or ends."""
        written = self._question.with_suffix(".new")
        try:
            written.write_text(question)
            written.rename(self._question)
        except FileNotFoundError as error:
            raise LocalError(f"the run on port {self.path.name} is starting or ending; try again") from error

    def asked(self) -> str | None:
        """What another process asks of this run, if one does."""
        taken = self._question.with_suffix(".taken")  # so that a question asked meanwhile is not lost
        try:
            self._question.rename(taken)
        except FileNotFoundError:
            return None
        return taken.read_text()


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
