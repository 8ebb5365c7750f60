"""The folder or bucket that all replicas share.

    keys/NAME/files/FILE.jsonl, FILE.json           content, and what is known of it: who sees the second sees the first
    keys/NAME/batches/BATCH/batch.json ...          see records.py
    open/BATCH.json                                 batches that have not ended, whoever's they are

NAME is the principal of the API key that made it, `default` where there are no keys. Ids begin with the time, so that
a sorted listing is in order of creation, and nothing but a listing is needed to find the newest.
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
    """Whether it was made by `new_id`: only then may it become part of a path."""
    return _ID.fullmatch(text) is not None


def age_s(id_: str) -> float:
    """Seconds since `new_id` made it."""
    return time.time() - int(id_[-28:-16], 16) / 1000


class Storage:
    """Files by their paths in it. Blocking; a bucket takes some tenths of a second a call.

    Args:
        uri: a folder, or an fsspec URL such as gs://bucket/batches.

    Raises:
        ValueError: nothing can be kept there.
    """

    def __init__(self, uri: str):
        self.uri = uri
        try:
            # What other replicas write must be seen at once.
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
        """What is in a folder, sorted; nothing if there is none."""
        try:
            found = self.fs.ls(self.path(*folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

    def read(self, paths: Sequence[str]) -> list[dict[str, Any] | None]:
        """JSON objects, at once; None for each that is not there."""
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
        """Keeps an object. False: there is one already, which stays."""
        try:
            create(self.fs, path, json.dumps(content).encode())
        except FileExistsError:
            return False
        return True

    def write(self, path: str, content: dict[str, Any]) -> None:
        """Keeps an object in the place of the one before."""
        with writing(self.fs, path, alone=False) as file:
            file.write(json.dumps(content).encode())

    def remove(self, *paths: str) -> None:
        """What is gone already is no error."""
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
    """What a client is told when the storage does not do what it was asked for."""
    if isinstance(error, OSError) and error.errno in FULL:
        return OpenAIError(
            507, "The server's storage for files is full; nothing was kept.", None, "insufficient_storage"
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
    return OpenAIError(500, f"The server's storage for files failed ({reason}); try again.", None, "storage_failed")
