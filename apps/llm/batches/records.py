"""Batches in the storage: small files with one writer each, so that replicas need not talk to each other.

batch.json      the request; written once
progress.json   the progress; written by the replica that holds the lease
cancel.json     the request to cancel; written once, by the replica that received it
end.json        how the batch ended; created, never overwritten: a batch ends in exactly one way
lease.json      the replica that works on the batch
part-*.jsonl    saved answers; see parts.py
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
"""Time after which a lease that was not renewed expires; time between two renewals."""
LEFTOVER_S = 60.0
"""A marker older than this without a batch is what a killed request left."""
PARTS = ("batch", "progress", "cancel", "end")
KEPT = ("batch.json", "cancel.json", "end.json")
"""Files of an ended batch that are not removed."""

Batch = dict[str, Any]
"""A batch object of OpenAI's API."""
TIMES = ("in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled")
NOTHING_YET: Batch = {
    "status": "validating",
    "errors": None,
    "output_file_id": None,
    "error_file_id": None,
    "request_counts": {"total": 0, "completed": 0, "failed": 0},
} | {f"{name}_at": None for name in TIMES}


@dataclass(frozen=True)
class OpenBatch:
    """A batch that has not ended."""

    id: str
    owner: str
    """Principal of the key that created it."""
    model: str
    """Model of the server that created it; only servers of this model answer it."""
    expires_at: int
    """Unix time."""


class Records:
    """The batches of all owners. Blocking."""

    def __init__(self, storage: Storage):
        self._storage = storage

    def add(self, owner: str, model: str, asked: Mapping[str, Any], window_s: int) -> Batch:
        """Records a new batch, which some replica will take."""
        id_, now = new_id(BATCH), int(time.time())
        batch = {"id": id_, "object": "batch", "created_at": now, "expires_at": now + window_s, "model": model, **asked}
        # The marker comes first: a batch without one would never be found. A marker without a batch is removed later.
        marker = {"owner": owner, "model": model, "expires_at": now + window_s}
        self._storage.write(self._marker(id_), marker)
        self._storage.write(self.path(owner, id_, "batch.json"), batch)
        return batch | NOTHING_YET

    def get(self, owner: str, id_: str) -> Batch:
        """Raises OpenAIError if the owner has no such batch."""
        (found,) = self.several(owner, [id_]) if is_id(id_) else [None]
        if found is None:
            raise OpenAIError(404, f"No batch found with id '{id_}'.", "id", "batch_not_found")
        return found

    def several(self, owner: str, ids: list[str]) -> list[Batch | None]:
        """The batches with these ids; None for one that does not exist."""
        paths = [self.path(owner, id_, f"{part}.json") for id_ in ids for part in PARTS]
        found = iter(self._storage.read(paths))
        return [_seen(*four) for four in zip(found, found, found, found)]

    def newest_first(self, owner: str) -> list[str]:
        """Ids of all of the owner's batches."""
        return self._storage.names("keys", owner, "batches")[::-1]

    def cancel(self, owner: str, id_: str) -> Batch:
        """Asks the replica that works on the batch to stop. Raises OpenAIError if the batch has ended."""
        batch = self.get(owner, id_)
        if batch["status"] == "cancelling":
            return batch
        if batch["status"] in ("completed", "failed", "expired", "cancelled"):
            raise OpenAIError(400, f"Cannot cancel a batch with status '{batch['status']}'.", None, "batch_ended")
        self._storage.create(self.path(owner, id_, "cancel.json"), {"cancelling_at": int(time.time())})
        return self.get(owner, id_)

    # For the replicas that work on batches.

    def open(self) -> list[OpenBatch]:
        """The batches that have not ended, oldest first."""
        names = [name for name in self._storage.names("open") if name.endswith(".json")]
        markers = self._storage.read([self._storage.path("open", name) for name in names])
        return [OpenBatch(name.removesuffix(".json"), **marker) for name, marker in zip(names, markers) if marker]

    def read(self, opened: OpenBatch) -> tuple[Batch | None, dict[str, Any] | None]:
        """(request, progress); each None if it is not recorded."""
        paths = [self.path(opened.owner, opened.id, name) for name in ("batch.json", "progress.json")]
        batch, progress = self._storage.read(paths)
        return batch, progress

    def ending(self, opened: OpenBatch) -> Batch | None:
        """How the batch ended; None if it has not."""
        return self._storage.read([self.path(opened.owner, opened.id, "end.json")])[0]

    def cancelled(self, opened: OpenBatch) -> bool:
        return self._storage.read([self.path(opened.owner, opened.id, "cancel.json")]) != [None]

    def write_progress(self, opened: OpenBatch, progress: Batch) -> None:
        self._storage.write(self.path(opened.owner, opened.id, "progress.json"), progress)

    def end(self, opened: OpenBatch, end: Batch) -> bool:
        """Records how the batch ended. False if another replica already has."""
        return self._storage.create(self.path(opened.owner, opened.id, "end.json"), end)

    def close(self, opened: OpenBatch) -> None:
        """Removes an ended batch's working files, the marker last: an interrupted call is then repeated."""
        for name in self._storage.names("keys", opened.owner, "batches", opened.id):
            if name not in KEPT:
                self._storage.remove(self.path(opened.owner, opened.id, name))
        self._storage.remove(self._marker(opened.id))

    def is_leftover(self, opened: OpenBatch) -> bool:
        """Whether a marker without a batch is a killed request's, not one still being recorded."""
        return age_s(opened.id) > LEFTOVER_S

    def lease(self, opened: OpenBatch, me: Holder) -> Lease:
        return Lease(self._storage.fs, self.path(opened.owner, opened.id, "lease.json"), me, LEASE_S)

    def path(self, owner: str, id_: str, *name: str) -> str:
        return self._storage.path("keys", owner, "batches", id_, *name)

    def _marker(self, id_: str) -> str:
        return self._storage.path("open", f"{id_}.json")


@dataclass(frozen=True)
class Limits:
    """Maximum size of an uploaded file, and lines of a batch."""

    file_bytes: int
    lines: int


class BatchStore:
    """The files and batches of one storage."""

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
