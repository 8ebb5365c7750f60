"""Atomic files and exclusive writers, on a local disk and in a bucket.

On a disk a file is written under a temporary name, synced and renamed; in a bucket, object writes are atomic anyway.
Exclusive writers take a kernel lock on a disk, which ends with the process; in a bucket, which has no locks, a lease.
"""

import contextlib
import errno
import fcntl
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

log = logging.getLogger("podslice")

PARTIAL = ".partial"
"""Suffix of files that are being written, or whose writer was killed."""
LOCK = ".lock"
MAX_LEASE_BYTES = 2**16
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without the feature, such as GCSFuse."""


class Busy(RuntimeError):
    """Another process is writing there; the message says which."""


def is_local(fs: fsspec.AbstractFileSystem) -> bool:
    return isinstance(fs, LocalFileSystem)


def _busy(who: str, where: str) -> str:
    return f"another process ({who}) is writing {where}; wait for it, or stop it"


def me() -> str:
    """This process, for messages."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextlib.contextmanager
def writing(fs: fsspec.AbstractFileSystem, path: str, alone: bool = True, private: bool = True) -> Iterator[IO[bytes]]:
    """Write a file that appears, complete and synced, only if the block succeeds.

    Args:
        alone: no other process writes this file, so a killed writer's partial file may be overwritten.
        private: on a disk, only this user may read it, and what is missing of its folder. False: as the umask says.
    """
    if not is_local(fs):
        file = fs.open(path, "wb")
        try:
            yield file
        except BaseException:
            with contextlib.suppress(Exception):  # what broke the upload may break this too; report the first error
                file.discard()
            raise
        file.close()
        return
    with _beside(path, alone, private) as (partial, file):
        yield file
        _sync(file)
        os.replace(partial, path)
    sync_folder(path)


def create(fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> None:
    """Create a file with its whole content, synced. Raises FileExistsError."""
    if not is_local(fs):
        fs.pipe_file(path, data, mode="create")
        return
    with _beside(path, alone=False) as (partial, file):
        file.write(data)
        _sync(file)
        try:
            os.link(partial, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # A file system without hard links (a mounted bucket): only the lease keeps two writers apart.
            if os.path.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            os.replace(partial, path)
    sync_folder(path)


@contextlib.contextmanager
def _beside(path: str, alone: bool, private: bool = True) -> Iterator[tuple[str, IO[bytes]]]:
    """A partial file beside `path` to write to, in its folder, which is created; removed however the block ends."""
    make_folder(os.path.dirname(path) or ".", private)
    partial = f"{path}{PARTIAL}" if alone else f"{path}.{uuid.uuid4().hex}{PARTIAL}"
    try:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)  # a killed writer's, whose mode would stay
        with open(partial, "wb", opener=_for_owner if private else None) as file:
            yield partial, file
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _for_owner(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def make_folder(path: str, private: bool = True) -> None:
    """Create a local folder if it is missing. `private`: what is created of it is open to this user alone."""
    missing = []
    while path and not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, 0o700 if private else 0o777)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """Sync a file's folder, so that renames and removals in it survive a power cut."""
    folder = os.open(os.path.dirname(path) or ".", os.O_RDONLY)
    try:
        os.fsync(folder)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(folder)


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Hold the lock of a local folder, which is created if missing. The kernel releases it when the process ends.

    Raises:
        Busy: another process holds it.
    """
    while True:
        os.makedirs(folder, exist_ok=True)
        with open(f"{folder}/{LOCK}", "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                raise Busy(_busy(file.read().strip() or "just starting", folder)) from None
            except OSError as error:
                if error.errno not in NO_LOCKS:
                    raise
            try:
                if not os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                    continue  # the previous holder removed it between our opening and locking it
            except FileNotFoundError:
                continue
            file.truncate(0)
            file.write(me())
            file.flush()
            try:
                yield
            finally:
                os.unlink(file.name)
            return


@contextlib.contextmanager
def leased(fs: fsspec.AbstractFileSystem, folder: str, lease_s: float) -> Iterator[None]:
    """Hold the lock of a folder in a bucket, by a lease that a thread renews.

    Raises:
        Busy: another process holds it. This can take a whole lease period to tell.
    """
    lease = Lease(fs, f"{folder}/{LOCK}", Holder(uuid.uuid4().hex, me()), lease_s)
    told = False
    while not lease.renew():
        if not lease.undecided:
            raise Busy(_busy(lease.other, folder))
        if not told:
            log.warning("the last writer (%s) left its lease behind; making sure that it is dead", lease.other)
            told = True
        time.sleep(min(1.0, lease_s / 4))
    if not lease.renew():
        raise Busy(_busy(lease.other, folder))  # both began at the same moment
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease_s / 4):
            with contextlib.suppress(Exception):  # a failed write is repeated at the next renewal
                lease.renew()

    beat = threading.Thread(target=renew, name="podslice-lease", daemon=True)
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join(lease_s)  # a renewal in progress would write the lease again after its release
        lease.release()


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, as written in it."""

    owner: str
    """The holder's id. A restarted holder may keep it, and then need not wait for its own lease."""
    where: str
    """The process, for messages."""


class Lease:
    """A lease in a file that makes one of several processes the writer. Call `renew` every few seconds; it blocks.

    Another process takes the lease only after it has seen the same content for `lease_s` by its own clock, so clocks
    need not agree. A holder that stalled for that long does not know that it lost the lease; writers that must never
    overwrite each other use `create`.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, path: str, me: Holder, lease_s: float):
        self._fs, self._path, self._me, self._lease_s = fs, path, me, lease_s
        # Not in a bucket, which refuses a range of an empty object.
        self._most = {"end": MAX_LEASE_BYTES} if is_local(fs) else {}
        self._count = 0
        self._seen: tuple[Any, float] | None = None
        self.held = False
        self.other = ""
        """Where the holder is, if it is not this process."""
        self.undecided = False
        """Whether the holder has not renewed since it was first seen: it may be dead and its lease left over."""

    def renew(self) -> bool:
        """Take, renew or check the lease; returns whether this process holds it. Raises the storage's own errors."""
        found, now = self._read(), time.monotonic()
        if found is not None and found.get("owner") != self._me.owner:
            if self._seen is None or self._seen[0] != found:
                self.undecided = self._seen is None
                self._seen = (found, now)
            if now - self._seen[1] < self._lease_s:
                self.held, self.other = False, str(found.get("where"))
                return False
        self._count += 1
        self._write({"owner": self._me.owner, "where": self._me.where, "count": self._count})
        self._seen, self.other, self.held, self.undecided = None, "", True, False
        return True

    def release(self) -> None:
        """Give the lease up, so that another process can take it at once."""
        if self.held:
            self.held = False
            with contextlib.suppress(Exception):  # otherwise the next holder waits until the lease expires
                self._fs.rm_file(self._path)

    def _read(self) -> dict[str, Any] | None:
        """The lease's content; None if there is no lease or it is not valid JSON."""
        self._fs.invalidate_cache()
        try:
            content = json.loads(self._fs.cat_file(self._path, **self._most))
        except (FileNotFoundError, ValueError, RecursionError):
            return None
        return content if isinstance(content, dict) else None

    def _write(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        if not is_local(self._fs):
            self._fs.pipe_file(self._path, data)
            return
        with _beside(self._path, alone=False) as (partial, file):
            file.write(data)
            file.close()
            os.replace(partial, self._path)
