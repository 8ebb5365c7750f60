"""The folder of a run on this machine, through which other processes reach it."""

import os
import shutil
import socket
import tempfile
from pathlib import Path

from kuberay.local import LocalError
from kuberay.local.ports import hold

LONGEST = 40
"""Maximum length of the folder's path: Ray puts sockets below it, whose paths may have 107 characters."""


class RunFolder:
    """The folder of the run on a port: `acquire` it first and `release` it last, or `ask` its holder."""

    def __init__(self, port: int):
        base = Path(tempfile.gettempdir())
        if len(str(base)) > LONGEST - 20:
            base = Path("/tmp")
        self._base = base / f"podslice-{os.getuid()}"
        self.path = self._base / str(port)
        self._request = self.path / "request"
        self._lock: socket.socket | None = None

    def acquire(self) -> bool:
        """Lock and empty the folder. False if another run holds it."""
        self._base.mkdir(mode=0o700, exist_ok=True)
        if (status := self._base.lstat()).st_uid != os.getuid() or status.st_mode & 0o022:
            raise LocalError(f"{self._base} is not safely yours; remove it")
        self._lock = hold(int(self.path.name))
        if self._lock is None:
            return False
        shutil.rmtree(self.path, ignore_errors=True)  # leftovers of a run that crashed
        self.path.mkdir(mode=0o700)
        return True

    def release(self) -> None:
        """Remove the folder and free the lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()  # last: now another run may take the folder

    def ask(self, request: str) -> None:
        """Leave a request for the run that holds the folder. Raises LocalError if it is starting or ending."""
        written = self._request.with_suffix(".new")
        try:
            written.write_text(request)
            written.rename(self._request)
        except FileNotFoundError as error:
            raise LocalError(
                f"the run on port {self.path.name} is starting or ending, or is no `podslice local` of yours; try again"
            ) from error

    def asked(self) -> str | None:
        """The next request of another process to this run, if any."""
        taken = self._request.with_suffix(".taken")  # so that a request made meanwhile is not lost
        try:
            self._request.rename(taken)
        except FileNotFoundError:
            return None
        return taken.read_text()
