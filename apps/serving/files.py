"""Files that appear whole or not at all, and who may write them: on a local disk, and in a bucket.

On a disk a file is written beside its place, synced and renamed; in a bucket an object is whole by nature. Who writes
is settled on a disk by the kernel's locks, which end with their process; in a bucket, which has none, by a lease.
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
"""End of the names of files that are being written, or were when their writer was killed."""
LOCK = ".lock"
NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS)
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)
"""What file systems without one, such as GCSFuse, answer."""


class Busy(RuntimeError):
    """Another process writes there; the message says which."""


def is_local(fs: fsspec.AbstractFileSystem) -> bool:
    return isinstance(fs, LocalFileSystem)


def _busy(who: str, where: str) -> str:
    return f"another process ({who}) is writing {where}; wait for it, or stop it"


def me() -> str:
    """This process, for people."""
    return f"process {os.getpid()} on {socket.gethostname()}"


@contextlib.contextmanager
def writing(fs: fsspec.AbstractFileSystem, path: str, alone: bool = True) -> Iterator[IO[bytes]]:
    """A file that is there, whole and synced, when the block has ended well, and is not otherwise.

    Args:
        alone: nobody else writes this file meanwhile, so that what a killed writer left is written over.
    """
    if not is_local(fs):
        file = fs.open(path, "wb")
        try:
            yield file
        except BaseException:
            with contextlib.suppress(Exception):  # what broke the upload may break this; the first error counts
                file.discard()
            raise
        file.close()
        return
    with _beside(path, alone) as (partial, file):
        yield file
        _sync(file)
        os.replace(partial, path)
    sync_folder(path)


def create(fs: fsspec.AbstractFileSystem, path: str, data: bytes) -> None:
    """All of a file that was not there before, synced. Raises FileExistsError."""
    if not is_local(fs):
        fs.pipe_file(path, data, mode="create")
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with _beside(path, alone=False) as (partial, file):
        file.write(data)
        _sync(file)
        try:
            os.link(partial, path)
        except OSError as error:
            if error.errno not in NO_LINKS:
                raise
            # A file system without hard links (a mounted bucket): the lease alone keeps two writers apart.
            if os.path.exists(path):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path) from None
            os.replace(partial, path)
    sync_folder(path)


@contextlib.contextmanager
def _beside(path: str, alone: bool) -> Iterator[tuple[str, IO[bytes]]]:
    """Where a file is written before it is there; removed however the block ends."""
    partial = f"{path}{PARTIAL}" if alone else f"{path}.{uuid.uuid4().hex}{PARTIAL}"
    try:
        with open(partial, "wb") as file:
            yield partial, file
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(partial)


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def sync_folder(path: str) -> None:
    """What was renamed or removed in a file's folder stays so after a power cut, too."""
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
    """Holds the lock of a local folder, which is made for it. The kernel drops it with the process.

    Raises:
        Busy: another process does.
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
                    continue  # the holder before removed it between our opening and locking it
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
    """The same in a bucket, by a lease that is renewed in a thread.

    Raises:
        Busy: another process does. That is known only after waiting for as long as it may be silent.
    """
    lease = Lease(fs, f"{folder}/{LOCK}", Holder(uuid.uuid4().hex, me()), lease_s)
    told = False
    while not lease.renew():
        if not lease.undecided:
            raise Busy(_busy(lease.other.where, folder))
        if not told:
            log.warning("the last one (%s) did not end by itself; making sure that it is dead", lease.other.where)
            told = True
        time.sleep(min(1.0, lease_s / 4))
    if not lease.renew():
        raise Busy(_busy(lease.other.where, folder))  # both began at the same moment
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(lease_s / 4):
            with contextlib.suppress(Exception):  # what is written in vain now is written at the next beat
                lease.renew()

    beat = threading.Thread(target=renew, name="podslice-lease", daemon=True)
    beat.start()
    try:
        yield
    finally:
        ended.set()
        beat.join(lease_s)  # a beat that is under way would write the lease again after its release
        lease.release()


@dataclass(frozen=True)
class Holder:
    """Who holds a lease, as others are told of it."""

    owner: str
    """The same for whoever was started again in its own place: it need not wait for itself."""
    where: str
    """For people."""


class Lease:
    """One of several processes may write, and says so every few seconds in a file. Call `renew` that often; blocking.

    Another one that finds its words takes its place only after it saw the same words for `lease_s`, by its own clock:
    no two machines' clocks need agree. A holder that stood still meanwhile does not know that it lost the lease; who
    cannot bear that writes with `create`.
    """

    def __init__(self, fs: fsspec.AbstractFileSystem, path: str, me: Holder, lease_s: float):
        self._fs, self._path, self._me, self._lease_s = fs, path, me, lease_s
        self._count = 0
        self._seen: tuple[Any, float] | None = None
        self.held = False
        self.other: Holder | None = None
        """Who holds it, when it is not this process."""
        self.undecided = False
        """Whether that one has not been seen to live: it may have been killed, and its words be left over."""

    def renew(self) -> bool:
        """Takes, keeps or looks at the lease; returns whether this process holds it. Raises what the storage raises."""
        found, now = self._read(), time.monotonic()
        if found is not None and found.get("owner") != self._me.owner:
            if self._seen is None or self._seen[0] != found:
                self.undecided = self._seen is None
                self._seen = (found, now)
            if now - self._seen[1] < self._lease_s:
                self.held, self.other = False, Holder(str(found.get("owner")), str(found.get("where")))
                return False
        self._count += 1
        self._write({"owner": self._me.owner, "where": self._me.where, "count": self._count})
        self._seen, self.other, self.held, self.undecided = None, None, True, False
        return True

    def release(self) -> None:
        """Lets another one begin at once."""
        if self.held:
            self.held = False
            with contextlib.suppress(Exception):  # then it waits for the lease's end
                self._fs.rm_file(self._path)

    def _read(self) -> dict[str, Any] | None:
        """None: nobody's, or without sense."""
        self._fs.invalidate_cache()
        try:
            content = json.loads(self._fs.cat_file(self._path))
        except (FileNotFoundError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def _write(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        if not is_local(self._fs):
            self._fs.pipe_file(self._path, data)
            return
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        with _beside(self._path, alone=False) as (partial, file):
            file.write(data)
            file.close()
            os.replace(partial, self._path)
