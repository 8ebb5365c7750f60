"""The folder or bucket that all replicas share.

    keys/NAME/files/FILE.jsonl, FILE.json           content and metadata; the metadata is written last
    keys/NAME/batches/BATCH/batch.json ...          see records.py
    open/BATCH.json                                 markers of the batches that have not ended, of all owners

NAME, the owner, is the principal of the API key that created the object; `default` without keys. Ids begin with the
time, so a sorted listing is in order of creation.
"""

import errno
import json
import os
import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

from fsspec.core import url_to_fs

from apps.serving.files import create, is_local, writing
from apps.serving.ingress.openai_errors import OpenAIError

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
READ_BYTES = 2**20
FILE, BATCH = "file-", "batch_"
_ID = re.compile(rf"(?:{FILE}|{BATCH})[0-9a-f]{{28}}")


def new_id(prefix: str) -> str:
    """The prefix, milliseconds since 1970 and 64 random bits in hexadecimal."""
    return f"{prefix}{time.time_ns() // 10**6:012x}{secrets.token_hex(8)}"


def is_id(text: str) -> bool:
    """Whether the text has the format of `new_id`; only such ids may become part of a path."""
    return _ID.fullmatch(text) is not None


def age_s(id_: str) -> float:
    """Seconds since `new_id` made the id."""
    return time.time() - int(id_[-28:-16], 16) / 1000


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
                os.makedirs(f"{self.root}/open", exist_ok=True)
        except OSError as error:
            raise ValueError(f"batches={uri!r} cannot be written: {error.strerror or error}") from error

    def path(self, *parts: str) -> str:
        return "/".join((self.root, *parts))

    def names(self, *folder: str) -> list[str]:
        """Names in a folder, sorted; empty if there is no such folder."""
        try:
            found = self.fs.ls(self.path(*folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def read(self, paths: Sequence[str]) -> list[dict[str, Any] | None]:
        """JSON objects, read concurrently from a bucket; None for one that does not exist."""
        if is_local(self.fs):
            return [self._read(path) for path in paths]
        found = self.fs.cat(list(paths), on_error="return") if paths else {}
        contents = []
        for path in paths:
            data = found[path]
            if isinstance(data, Exception) and not isinstance(data, FileNotFoundError):
                raise data
            contents.append(None if isinstance(data, Exception) else json.loads(data))
        return contents

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

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            return json.loads(self.fs.cat_file(path))
        except FileNotFoundError:
            return None


def refusal(error: Exception) -> OpenAIError:
    """The client's error for a failure of the storage."""
    if isinstance(error, OSError) and error.errno in FULL:
        return OpenAIError(507, "The server's file storage is full; nothing was stored.", None, "insufficient_storage")
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return OpenAIError(500, f"The server's file storage failed ({reason}); try again.", None, "storage_failed")
