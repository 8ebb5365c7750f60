"""Where a cell's state is kept: a folder or an object store, one file for each version.

    STATE_URI/CELL/state-000000042.json

A change is a new file, created only if none has that name: of two writers the second is refused, and overwrites
nothing. So every write is atomic and every version complete, on a local disk (a hard link appears at once, or not at
all) and on Cloud Storage (`ifGenerationMatch=0`) alike. The newest file is the state; a few older ones are kept.
"""

import contextlib
import hashlib
import json
import logging
import os
import re
import time
import uuid
from dataclasses import dataclass
from typing import Any

import fsspec

from apps.cell.desired.state import FORMAT, CellState
from apps.serving.files import PARTIAL, Holder, Lease, create, is_local

log = logging.getLogger("podslice")

FILE = re.compile(r"state-(\d{9})\.json")
KEPT = 10
"""Older versions that are kept."""
UNFINISHED_S = 60
"""A temporary file older than this was abandoned by its writer."""
LEASE_FILE = "lease.json"
LEASE_S, RENEW_S = 20.0, 5.0
"""Seconds after which an unrenewed lease expires, and seconds between renewals."""


class StateError(Exception):
    """The state cannot be read or written. Existing files were not touched; the message says what to do."""


class StateTaken(StateError):
    """Another cell wrote the version that this one was about to write."""


@dataclass(frozen=True)
class StoredState:
    number: int
    """Its version; 0: nothing is stored yet."""
    state: CellState | None


class Store:
    """The files of one cell. Calls block; on gs:// each takes a few tenths of a second."""

    def __init__(self, state_uri: str, cell: str):
        self.cell = cell
        try:
            self._fs, root = fsspec.core.url_to_fs(state_uri)
        except (ImportError, ValueError) as error:
            raise StateError(f"state_uri {state_uri!r} cannot be opened: {error}") from error
        if is_local(self._fs):
            root = os.path.expanduser(root)
        self.root = f"{root.rstrip('/')}/{cell}"
        self.uri = f"{state_uri.rstrip('/')}/{cell}"
        self._writer = uuid.uuid4().hex
        """Tells this process's own retried write, whose answer was lost, from another cell's."""

    def read(self) -> StoredState:
        """The newest version. Raises StateError if it is damaged or of a newer format."""
        numbers = self._numbers()
        if not numbers:
            return StoredState(0, None)
        number = max(numbers)
        return StoredState(number, self._parsed(number, self._bytes(number)))

    def write(self, number: int, state: CellState) -> None:
        """Store a state as that version, durably by the time this returns. Raises StateTaken, StateError."""
        content = {
            "format": FORMAT,
            "version": number,
            "writer": self._writer,
            "sha256": _digest(state.model_dump(mode="json")),
            "state": state.model_dump(mode="json"),
        }
        path, data = self._path(number), json.dumps(content, indent=1).encode()
        try:
            create(self._fs, path, data)
        except FileExistsError:
            if self._bytes(number) != data:
                raise StateTaken(f"{path} was written by another cell meanwhile") from None
        except OSError as error:
            raise StateError(f"{path} cannot be written: {error.strerror or error}") from error
        except Exception as error:  # object stores' errors have no common type
            raise StateError(f"{path} cannot be written: {error}") from error
        self._prune(number)

    def _path(self, number: int) -> str:
        return f"{self.root}/state-{number:09d}.json"

    def _numbers(self) -> list[int]:
        try:
            names = self._fs.ls(self.root, detail=False, refresh=True)
        except FileNotFoundError:
            return []
        except Exception as error:
            raise StateError(f"{self.uri} cannot be read: {error}") from error
        return [int(match[1]) for name in names if (match := FILE.fullmatch(name.rpartition("/")[2]))]

    def _bytes(self, number: int) -> bytes:
        try:
            return self._fs.cat_file(self._path(number))
        except Exception as error:
            raise StateError(f"{self._path(number)} cannot be read: {error}") from error

    def _parsed(self, number: int, data: bytes) -> CellState:
        path = self._path(number)
        advice = "nothing was changed. To go back to an older version, move the newer files away"
        try:
            content = json.loads(data)
            written_as = content["format"]
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StateError(f"{path} is damaged ({error}); {advice}") from error
        if not isinstance(written_as, int) or written_as > FORMAT:
            raise StateError(
                f"{path} was written by a newer Podslice (format {written_as}; this one reads up to {FORMAT}); "
                "nothing was changed. Start that version"
            )
        try:
            if _digest(content["state"]) != content["sha256"] or content["version"] != number:
                raise StateError(f"{path} is damaged (its checksum does not match); {advice}")
            state = CellState.model_validate(content["state"])
        except (KeyError, TypeError, ValueError, RecursionError) as error:  # ValidationError is a ValueError
            raise StateError(f"{path} is damaged ({error}); {advice}") from error
        if state.cell != self.cell:
            raise StateError(f"{path} is the state of cell {state.cell!r}, not of {self.cell!r}; use another state_uri")
        return state

    def _prune(self, newest: int) -> None:
        """Remove old versions and abandoned temporary files; failures are retried after the next write."""
        with contextlib.suppress(Exception):
            for number in self._numbers():
                if number <= newest - KEPT:
                    self._fs.rm_file(self._path(number))
            if is_local(self._fs):
                for entry in os.scandir(self.root):  # left by a cell that was killed while writing
                    if entry.name.endswith(PARTIAL) and time.time() - entry.stat().st_mtime > UNFINISHED_S:
                        os.unlink(entry)

    def lease(self, me: Holder) -> Lease:
        """The lease that lets one of several cells change this state; its file is beside the state."""
        return Lease(self._fs, f"{self.root}/{LEASE_FILE}", me, LEASE_S)


def _digest(state: Any) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()
