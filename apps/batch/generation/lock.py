"""One run at a time for each output.

On a local disk the kernel knows who holds the lock, and lets go of it when the process ends, however it does. In a
bucket there is no such lock: the run writes an object every LEASE_S / 4, and one that is older counts as dead.
"""

import contextlib
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from typing import TextIO

import fsspec
from fsspec.implementations.local import LocalFileSystem

log = logging.getLogger("podslice")

LEASE_S = 120.0


class Busy(RuntimeError):
    """Another run has it; the message says which."""


@contextlib.contextmanager
def held(fs: fsspec.AbstractFileSystem, folder: str, lease_s: float = LEASE_S) -> Iterator[None]:
    """Holds the lock of a folder, which is made for it, and goes with it if nothing else is in it then.

    Raises:
        Busy: another run does. Of a bucket's lock that is known only after waiting for as long as it may be silent.
    """
    if isinstance(fs, LocalFileSystem):
        with _locked(folder) as file:
            try:
                yield
            finally:
                os.unlink(file.name)
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        return
    lease = _Lease(fs, f"{folder}/lock", lease_s)
    lease.take()
    try:
        yield
    finally:
        lease.give()


@contextlib.contextmanager
def _locked(folder: str) -> Iterator[TextIO]:
    while True:
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/lock", "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise Busy(f"another run ({file.read().strip() or 'just starting'}) is writing it") from None
            try:
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                    continue  # the run before removed it between our opening and locking it
            except FileNotFoundError:
                continue
            file.truncate(0)
            file.write(_me())
            file.flush()
            yield file
            return


def _me() -> str:
    return f"process {os.getpid()} on {socket.gethostname()}"


class _Lease:
    def __init__(self, fs: fsspec.AbstractFileSystem, path: str, lease_s: float):
        self._fs, self._path, self._lease_s = fs, path, lease_s
        self._mine, self._ended = {"holder": _me(), "token": uuid.uuid4().hex}, threading.Event()

    def take(self) -> None:
        """Waits until the last holder has been silent for the lease's time. By this clock: theirs may differ."""
        seen, since = self._read(), time.monotonic()
        if seen is not None:
            log.warning("the last run (%s) did not end by itself; making sure that it is dead", seen["holder"])
        while seen is not None and time.monotonic() - since < self._lease_s:
            time.sleep(min(1.0, self._lease_s / 4))
            now = self._read()
            if now is not None and now != seen:
                raise Busy(f"another run ({now['holder']}) is writing it")
            seen = now
        self._write(0)
        if self._read() != self._mine | {"beat": 0}:
            raise Busy("another run began at the same moment")
        threading.Thread(target=self._renew, name="podslice-lease", daemon=True).start()

    def give(self) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._fs.rm_file(self._path)

    def _renew(self) -> None:
        beat = 0
        while not self._ended.wait(self._lease_s / 4):
            beat += 1
            with contextlib.suppress(OSError):  # what is written in vain now is written at the next beat
                self._write(beat)

    def _write(self, beat: int) -> None:
        self._fs.pipe_file(self._path, json.dumps(self._mine | {"beat": beat}).encode())

    def _read(self) -> dict | None:
        self._fs.invalidate_cache()
        try:
            return json.loads(self._fs.cat_file(self._path))
        except FileNotFoundError:
            return None
