"""Batches in the storage: small files with one writer each, so that replicas need not talk to each other.

batch.json      the request; written once
progress.json   the progress; written by the replica that holds the lease
cancel.json     the request to cancel; written once, by the replica that received it
end.json        how the batch ended; created, never overwritten: a batch ends in exactly one way
lease.json      the replica that works on the batch
part-*.jsonl    saved answers; see parts.py

One of them that cannot be read fails that batch alone, which stays visible with all that can be read of it. A newer
version's additional fields are passed on; a marker of a kind that is not known here is left to it.
"""

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from apps.llm.batch_api.files.storage import (
    BATCH,
    Damaged,
    Found,
    Storage,
    age_s,
    is_broken,
    is_id,
    new_id,
    typed,
)
from apps.llm.batch_api.files.stored_files import Files
from apps.llm.batch_api.validation import MARKER, NOTHING_YET, PROGRESS, REQUEST, Batch, as_seen
from apps.serving.files import Holder, Lease
from apps.serving.ingress.dialects.openai_errors import OpenAIError, QuotaExceeded

log = logging.getLogger("podslice")

LEASE_S, RENEW_S = 20.0, 4.0
"""Time after which a lease that was not renewed expires; time between two renewals."""
LEFTOVER_S = 60.0
"""A marker older than this without a batch is what a killed request left."""
PARTS = ("batch", "progress", "cancel", "end")
KEPT = ("batch.json", "cancel.json", "end.json")
"""Files of an ended batch that are not removed."""


REMEDY = "Delete files that are no longer needed: DELETE /v1/files/{file_id}."


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
        self._known: dict[str, OpenBatch] = {}
        """The markers read so far, which never change."""
        self._told: set[str] = set()
        """Markers that the log was told about."""

    def add(self, owner: str, model: str, asked: Mapping[str, Any], window_s: int, most: int | None = None) -> Batch:
        """Records a new batch, which some replica will take.

        Args:
            most: batches of the owner that may be open at a time, with this one. Raises QuotaExceeded.
        """
        id_, now = new_id(BATCH), int(time.time())
        batch = {"id": id_, "object": "batch", "created_at": now, "expires_at": now + window_s, "model": model, **asked}
        # The marker comes first: a batch without one would never be found. A marker without a batch is removed later.
        marker = {"owner": owner, "model": model, "expires_at": now + window_s}
        self._storage.write(self._marker(id_), marker)
        # Counted after the marker is there: of two requests at once the second sees both.
        if most is not None and (count := sum(opened.owner == owner for opened in self.open())) > most:
            self._storage.remove(self._marker(id_))
            raise QuotaExceeded(
                f"{count - 1} batches of this key have not ended, of at most {most}. Cancel one, or wait."
            )
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
        return [as_seen(id_, *four) for id_, four in zip(ids, zip(found, found, found, found))]

    def newest_first(self, owner: str) -> list[str]:
        """Ids of all of the owner's batches."""
        return [name for name in reversed(self._storage.names("keys", owner, "batches")) if is_id(name)]

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
        known = {name: self._known[name] for name in names if name in self._known}
        new = [name for name in names if name not in known]
        found = dict(known)
        for name, marker in zip(new, self._storage.read([self._storage.path("open", name) for name in new])):
            id_ = name.removesuffix(".json")
            if marker is None or not is_id(id_):
                continue
            opened, whole = self._opened(id_, marker)
            if opened is not None:
                found[name] = opened
            if opened is not None and whole:
                known[name] = opened
        self._known = known
        return [found[name] for name in names if name in found]

    def _opened(self, id_: str, marker: dict[str, Any] | Damaged) -> tuple[OpenBatch | None, bool]:
        """(the batch of a marker, whether its request has been read); None: the marker is left alone.

        The request's own record counts more than the marker, which is only there to find it.
        """
        fields = typed(marker, MARKER)
        said = MARKER.keys() <= fields.keys() and "/" not in fields["owner"]
        owner = fields["owner"] if said else None
        if owner is None or (not self._requested(owner, id_) and age_s(id_) > LEFTOVER_S):
            owners = self._storage.names("keys")
            owner = next((name for name in owners if id_ in self._storage.names("keys", name, "batches")), owner)
        request = self._requested(owner, id_) if owner is not None else {}
        if request:
            opened = OpenBatch(id_, owner or "", request["model"], request["expires_at"])
        elif said:
            opened = OpenBatch(id_, owner or "", fields["model"], fields["expires_at"])
        elif owner is not None and isinstance(marker, Damaged):
            opened = OpenBatch(id_, owner, "", 0)  # any server may fail it
        else:
            opened = None
        if not said and id_ not in self._told:
            self._told.add(id_)
            why = marker.why if isinstance(marker, Damaged) else "its fields are not known here"
            log.error("open/%s.json: %s; %s", id_, why, "its batch goes on" if opened else "leaving it alone")
        return opened, bool(request)

    def _requested(self, owner: str, id_: str) -> dict[str, Any]:
        """The request; empty if it cannot be read."""
        (record,) = self._storage.read([self.path(owner, id_, "batch.json")])
        fields = typed(record, REQUEST)
        return fields if REQUEST.keys() <= fields.keys() else {}

    def read(self, opened: OpenBatch) -> tuple[Found, dict[str, Any]]:
        """(request, progress): None if there is no request, Damaged if it cannot be read."""
        paths = [self.path(opened.owner, opened.id, name) for name in ("batch.json", "progress.json")]
        batch, found = self._storage.read(paths)
        if isinstance(batch, dict) and not REQUEST.keys() <= typed(batch, REQUEST).keys():
            batch = Damaged("its fields are not known here")
        if batch is None and set(self._names(opened)) - {"lease.json"}:
            batch = Damaged("it is missing")
        progress = typed(found, PROGRESS)
        ids = progress.get("file_ids", [])
        if len(ids) != 2 or not all(isinstance(id_, str) and is_id(id_) for id_ in ids):
            progress.pop("file_ids", None)
        return batch, progress

    def ending(self, opened: OpenBatch) -> Found:
        """How the batch ended; None if it has not."""
        return self._storage.read([self.path(opened.owner, opened.id, "end.json")])[0]

    def cancelled(self, opened: OpenBatch) -> bool:
        return self._storage.read([self.path(opened.owner, opened.id, "cancel.json")]) != [None]

    def write_progress(self, opened: OpenBatch, progress: Batch) -> None:
        try:
            self._storage.write(self.path(opened.owner, opened.id, "progress.json"), progress)
        except OSError as error:
            if not is_broken(error):
                raise
            log.error("%s: its progress cannot be written: %s", opened.id, error)  # nothing but a restart needs it

    def end(self, opened: OpenBatch, end: Batch, again: bool = False) -> bool:
        """Records how the batch ended. False if another replica already has, unless `again`: that record is damaged."""
        path = self.path(opened.owner, opened.id, "end.json")
        if again:
            self._storage.write(path, end)
            return True
        return self._storage.create(path, end)

    def close(self, opened: OpenBatch) -> None:
        """Removes an ended batch's working files, the marker last: an interrupted call is then repeated."""
        paths = [self.path(opened.owner, opened.id, name) for name in self._names(opened) if name not in KEPT]
        for path in (*paths, self._marker(opened.id)):
            try:
                self._storage.remove(path)
            except OSError as error:
                if not is_broken(error):
                    raise
                log.error("%s: cannot remove %s", opened.id, error)

    def is_leftover(self, opened: OpenBatch) -> bool:
        """Whether a marker without a batch is a killed request's, not one still being recorded."""
        return age_s(opened.id) > LEFTOVER_S and set(self._names(opened)) <= {"lease.json"}

    def _names(self, opened: OpenBatch) -> list[str]:
        return self._storage.names("keys", opened.owner, "batches", opened.id)

    def lease(self, opened: OpenBatch, me: Holder) -> Lease:
        return Lease(self._storage.fs, self.path(opened.owner, opened.id, "lease.json"), me, LEASE_S)

    def path(self, owner: str, id_: str, *name: str) -> str:
        return self._storage.path("keys", owner, "batches", id_, *name)

    def _marker(self, id_: str) -> str:
        return self._storage.path("open", f"{id_}.json")


@dataclass(frozen=True)
class Limits:
    """Most bytes of an uploaded file and lines of a batch; most bytes, files and open batches of a key."""

    file_bytes: int
    lines: int
    key_bytes: int = 100 * 2**30
    key_files: int = 10_000
    key_open: int = 200
    keep_s: float | None = None
    """How old files, and batches that have ended, may become; None: any age."""


class BatchStore:
    """The files and batches of one storage."""

    def __init__(self, storage: Storage, limits: Limits):
        self.storage, self.limits = storage, limits
        self.files, self.records = Files(storage), Records(storage)

    def room(self, owner: str, id_: str = "") -> int:
        """Most bytes that the file with this id may have, beside the others. Raises QuotaExceeded if that is none."""
        count, size = self.files.used(owner, besides=id_)
        if count >= self.limits.key_files:
            raise QuotaExceeded(f"this key has {count:,} files, of at most {self.limits.key_files:,}. {REMEDY}")
        if size >= self.limits.key_bytes:
            raise self.over_quota()
        return self.limits.key_bytes - size

    def expire(self) -> int:
        """Deletes what is older than `keep_s`, but no open batch or its files. Returns how much was deleted."""
        keep_s, deleted = self.limits.keep_s, 0
        if keep_s is None:
            return 0
        open_ = self.records.open()
        batches, read = {opened.id for opened in open_}, set[str]()
        for opened in open_:
            batch, progress = self.records.read(opened)
            read.update(progress.get("file_ids", ()))
            if isinstance(batch, dict):
                read.add(batch["input_file_id"])
        for owner in self.storage.names("keys"):
            for id_ in self.files.ids(owner):
                if age_s(id_) > keep_s and id_ not in read:
                    self.files.remove(owner, id_)
                    deleted += 1
            for id_ in self.records.newest_first(owner):
                if age_s(id_) > keep_s and id_ not in batches:
                    self.storage.remove_folder("keys", owner, "batches", id_)
                    deleted += 1
        return deleted

    def over_quota(self) -> QuotaExceeded:
        """The error for a file that does not fit beside the others."""
        return QuotaExceeded(f"the files of this key may have {self.limits.key_bytes:,} bytes in all. {REMEDY}")
