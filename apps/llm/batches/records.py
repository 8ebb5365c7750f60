"""Batches in the storage: small files, each with one writer, so that no replica needs to ask another.

batch.json      what was asked for; written once
progress.json   how far it is; written by whoever holds the lease
cancel.json     that it is to be cancelled; written once, by whoever was asked
end.json        how it ended; created, never written over: a batch ends in exactly one way
lease.json      who works on it
part-*.jsonl    answers so far; see parts.py
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.llm.batches.files import Files
from apps.llm.batches.storage import BATCH, Storage, age_s, is_id, new_id
from apps.serving.files import Holder, Lease
from apps.serving.ingress.openai_errors import OpenAIError

LEASE_S, RENEW_S = 20.0, 4.0
"""How long a silent replica is believed to live; how often one says that it does."""
LEFT_OVER_S = 60.0
"""A marker without a batch is of a request that was killed, when it is older than this."""
PARTS = ("batch", "progress", "cancel", "end")
KEPT = ("batch.json", "cancel.json", "end.json")
"""What stays of a batch that has ended."""

Batch = dict[str, Any]
"""As OpenAI's clients see it."""
TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
NOTHING_YET: Batch = {
    "status": "validating",
    "errors": None,
    "output_file_id": None,
    "error_file_id": None,
    "request_counts": {"total": 0, "completed": 0, "failed": 0},
} | {f"{name}_at": None for name in TIMES}


@dataclass(frozen=True)
class Opened:
    """A batch that has not ended."""

    id: str
    owner: str
    """The principal of the key that made it."""
    model: str
    """Whose server made it: only such a one may answer it."""
    expires_at: int
    """Unix time."""


class Records:
    """Everyone's batches; each call says whose. Blocking."""

    def __init__(self, storage: Storage):
        self._storage = storage

    def add(self, owner: str, model: str, asked: Mapping[str, Any], window_s: int) -> Batch:
        """Records what was asked for; some replica will work on it."""
        id_, now = new_id(BATCH), int(time.time())
        batch = {"id": id_, "object": "batch", "created_at": now, "expires_at": now + window_s, "model": model, **asked}
        # The marker comes first: a batch without one would never be found. One without a batch is removed.
        marker = {"owner": owner, "model": model, "expires_at": now + window_s}
        self._storage.write(self._marker(id_), marker)
        self._storage.write(self.path(owner, id_, "batch.json"), batch)
        return batch | NOTHING_YET

    def get(self, owner: str, id_: str) -> Batch:
        """Raises OpenAIError if the key has no such batch."""
        (found,) = self.several(owner, [id_]) if is_id(id_) else [None]
        if found is None:
            raise OpenAIError(404, f"No batch found with id '{id_}'.", "id", "batch_not_found")
        return found

    def several(self, owner: str, ids: list[str]) -> list[Batch | None]:
        """None for each that is gone."""
        paths = [self.path(owner, id_, f"{part}.json") for id_ in ids for part in PARTS]
        found = iter(self._storage.read(paths))
        return [_seen(*four) for four in zip(found, found, found, found)]

    def newest_first(self, owner: str) -> list[str]:
        """Ids of all of the key's batches."""
        return self._storage.names("keys", owner, "batches")[::-1]

    def cancel(self, owner: str, id_: str) -> Batch:
        """Asks whoever works on it to stop. Raises OpenAIError if it has ended."""
        batch = self.get(owner, id_)
        if batch["status"] == "cancelling":
            return batch
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            raise OpenAIError(400, f"Cannot cancel a batch with status '{batch['status']}'.", None, "batch_ended")
        self._storage.create(self.path(owner, id_, "cancel.json"), {"cancelling_at": int(time.time())})
        return self.get(owner, id_)

    # For who works on them.

    def open(self) -> list[Opened]:
        """Batches that have not ended, oldest first."""
        names = [name for name in self._storage.names("open") if name.endswith(".json")]
        markers = self._storage.read([self._storage.path("open", name) for name in names])
        return [Opened(name.removesuffix(".json"), **marker) for name, marker in zip(names, markers) if marker]

    def read(self, opened: Opened) -> tuple[Batch | None, dict[str, Any] | None]:
        """(what was asked for, how far it is); None where there is nothing."""
        paths = [self.path(opened.owner, opened.id, name) for name in ("batch.json", "progress.json")]
        batch, progress = self._storage.read(paths)
        return batch, progress

    def ending(self, opened: Opened) -> Batch | None:
        """How it ended; None: it has not."""
        return self._storage.read([self.path(opened.owner, opened.id, "end.json")])[0]

    def cancelled(self, opened: Opened) -> bool:
        return self._storage.read([self.path(opened.owner, opened.id, "cancel.json")]) != [None]

    def write_progress(self, opened: Opened, progress: Batch) -> None:
        self._storage.write(self.path(opened.owner, opened.id, "progress.json"), progress)

    def end(self, opened: Opened, end: Batch) -> bool:
        """Records how it ended. False: another replica did so before."""
        return self._storage.create(self.path(opened.owner, opened.id, "end.json"), end)

    def close(self, opened: Opened) -> None:
        """Forgets what an ended batch needs no more. The marker goes last: a kill before leaves it to the next one."""
        for name in self._storage.names("keys", opened.owner, "batches", opened.id):
            if name not in KEPT:
                self._storage.remove(self.path(opened.owner, opened.id, name))
        self._storage.remove(self._marker(opened.id))

    def never_was(self, opened: Opened) -> bool:
        """Whether whoever recorded it was killed before it had answered."""
        return age_s(opened.id) > LEFT_OVER_S

    def lease(self, opened: Opened, me: Holder) -> Lease:
        return Lease(self._storage.fs, self.path(opened.owner, opened.id, "lease.json"), me, LEASE_S)

    def path(self, owner: str, id_: str, *name: str) -> str:
        return self._storage.path("keys", owner, "batches", id_, *name)

    def _marker(self, id_: str) -> str:
        return self._storage.path("open", f"{id_}.json")


@dataclass(frozen=True)
class Limits:
    """Of a file that is uploaded, and of a batch."""

    file_bytes: int
    lines: int


class Kept:
    """What is kept for clients, in one storage."""

    def __init__(self, storage: Storage, limits: Limits):
        self.storage, self.limits = storage, limits
        self.files, self.records = Files(storage), Records(storage)


def _seen(batch: Batch | None, progress: Batch | None, cancel: Batch | None, end: Batch | None) -> Batch | None:
    if batch is None:
        return None
    seen = NOTHING_YET | batch | {key: value for key, value in (progress or {}).items() if key in NOTHING_YET}
    if cancel is not None:
        seen |= cancel | {"status": "cancelling"}
    return seen | (end or {})
