"""The folder or bucket that all replicas share.

    keys/NAME/files/FILE.jsonl, FILE.json           content and metadata; the metadata is written last
    keys/NAME/batches/BATCH/batch.json ...          see records.py
    open/BATCH.json                                 markers of the batches that have not ended, of all owners

NAME, the owner, is the principal of the API key that created the object; `default` without keys. Ids begin with the
time, so a sorted listing is in order of creation.
"""

import contextlib
import errno
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsspec.core import url_to_fs

from apps.serving.files import create, is_local, make_folder, writing
from apps.serving.ingress.dialects.openai_errors import OpenAIError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_BYTES = 2**20
MAX_RECORD_BYTES = 4 * 2**20
"""Size above which a file is no record of ours."""
SURE_BYTES = 1024
UNSURE = re.compile(rb"\\u|NaN|Infinity|\d[eE]")
"""What may read as JSON and yet not be written as such: half a surrogate, not a number, infinity; or depth."""
BROKEN = (errno.EISDIR, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP)
"""Errors of one file, not of the whole storage: what is there cannot be read, now or later."""
Kinds = Mapping[str, type | tuple[type, ...]]
"""Fields of a record and the types that they may have."""
FILE, BATCH = "file-", "batch_"
_ID = re.compile(rf"(?:{FILE}|{BATCH})[0-9a-f]{{28}}")


def new_id(prefix: str) -> str:
    """The prefix, milliseconds since 1970 and 64 random bits in hexadecimal."""
    return f"{prefix}{time.time_ns() // 10**6:012x}{secrets.token_hex(8)}"


def is_id(text: str) -> bool:
    """Whether the text has the format of `new_id`; only such ids may become part of a path."""
    return _ID.fullmatch(text) is not None


def created_s(id_: str) -> float:
    """Unix time at which `new_id` made the id."""
    return int(id_[-28:-16], 16) / 1000


def age_s(id_: str) -> float:
    """Seconds since `new_id` made the id."""
    return time.time() - created_s(id_)


@dataclass(frozen=True)
class Damaged:
    """What is where a record should be, and cannot be read."""

    why: str
    """Such as `it is empty`; never a path."""


Found = dict[str, Any] | Damaged | None
"""A record; None if there is none."""


def typed(record: Found, kinds: Kinds) -> dict[str, Any]:
    """The fields of a record whose types are right, and those that a newer version has added; empty if damaged."""
    known = record if isinstance(record, dict) else {}
    return {name: value for name, value in known.items() if name not in kinds or isinstance(value, kinds[name])}


def is_broken(error: BaseException) -> bool:
    """Whether the error is about one file alone, and a retry will not help."""
    return isinstance(error, OSError) and error.errno in BROKEN


class Storage:
    """Access to objects by path. Blocking; a call to a bucket takes some tenths of a second.

    Args:
        uri: a folder, or an fsspec URL such as gs://bucket/batches.

    Raises:
        ValueError: the storage cannot be opened or written.
    """

    def __init__(self, uri: str):
        self.uri = uri
        try:
            # No cache: other replicas' writes must be seen at once.
            self.fs, root = url_to_fs(os.path.expanduser(uri), use_listings_cache=False)
        except (ImportError, ValueError) as error:
            raise ValueError(f"batches={uri!r} cannot be opened: {error}") from error
        self.root = root.rstrip("/")
        try:
            if is_local(self.fs):
                make_folder(f"{self.root}/open")
        except OSError as error:
            raise ValueError(f"batches={uri!r} cannot be written: {error.strerror or error}") from error

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def entries(self, *folder: str) -> list[dict[str, Any]]:
        """fsspec's description of what is in a folder; empty if there is no such folder."""
        while True:
            try:
                return self.fs.ls(self.path(*folder), detail=True, refresh=True)
            except FileNotFoundError:
                if not self.fs.isdir(self.path(*folder)):
                    return []  # else a file in it was removed meanwhile

    def names(self, *folder: str) -> list[str]:
        """Names in a folder, sorted; empty if there is no such folder."""
        try:
            found = self.fs.ls(self.path(*folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def read(self, paths: Sequence[str]) -> list[Found]:
        """JSON objects, read concurrently from a bucket. Raises the storage's errors, except those of one file."""
        if is_local(self.fs):
            return [self._read(path) for path in paths]
        found = self.fs.cat(list(paths), on_error="return") if paths else {}
        return [_decoded(found[path]) if isinstance(found[path], bytes) else _missing(found[path]) for path in paths]

    def create(self, path: str, content: dict[str, Any]) -> bool:
        """Writes a new object. False if it exists already; it is then unchanged."""
        try:
            create(self.fs, path, json.dumps(content).encode())
        except FileExistsError:
            return False
        return True

    def write(self, path: str, content: dict[str, Any]) -> None:
        """Writes an object, replacing any earlier one."""
        with writing(self.fs, path, alone=False) as file:
            file.write(json.dumps(content).encode())

    def remove(self, *paths: str) -> None:
        """Removes objects; a missing one is no error."""
        for path in paths:
            try:
                self.fs.rm_file(path)
            except FileNotFoundError:
                continue

    def remove_folder(self, *folder: str) -> None:
        """Removes a folder with all that is in it; a missing one is no error."""
        with contextlib.suppress(FileNotFoundError):
            self.fs.rm(self.path(*folder), recursive=True)

    def _read(self, path: str) -> Found:
        try:
            about = os.stat(path)
            if not stat.S_ISREG(about.st_mode):
                return Damaged("it is not a file")
            with open(path, "rb") as file:
                return _decoded(file.read(min(about.st_size, MAX_RECORD_BYTES) + 1))
        except OSError as error:
            return _missing(error)


def _missing(error: Exception) -> Damaged | None:
    if isinstance(error, FileNotFoundError):
        return None
    if isinstance(error, OSError) and (is_broken(error) or isinstance(error, PermissionError | IsADirectoryError)):
        return Damaged(f"it cannot be read: {error.strerror or type(error).__name__}")
    raise error


def _decoded(data: bytes) -> dict[str, Any] | Damaged:
    if len(data) > MAX_RECORD_BYTES:
        return Damaged(f"it is larger than {MAX_RECORD_BYTES // 2**20} MiB")
    if not data.strip(b"\0 \t\r\n"):
        return Damaged("it is empty")
    try:
        found = json.loads(data)
        if len(data) > SURE_BYTES or UNSURE.search(data):
            json.dumps(found, ensure_ascii=False, allow_nan=False).encode()  # as it must go into an answer
    except (ValueError, RecursionError):
        return Damaged("it is not JSON")
    return found if isinstance(found, dict) else Damaged("it is not a JSON object")


def refusal(error: Exception) -> OpenAIError:
    """The client's error for a failure of the storage."""
    if isinstance(error, OSError) and error.errno in FULL:
        return OpenAIError(507, "The server's file storage is full; nothing was stored.", None, "insufficient_storage")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return OpenAIError(500, f"The server's file storage failed ({reason}); try again.", None, "storage_failed")
