"""One batch, from its file to its output. The one who works on it holds its lease.

validating -> in_progress -> finalizing -> completed
    |               |-> expired, cancelled: with the answers so far
    |-> failed: no line is asked where one is bad
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any, Literal

from apps.llm.batches.asking import Asker
from apps.llm.batches.input_file import InputFile, missing, scan
from apps.llm.batches.lines import answered, dump, json_object
from apps.llm.batches.outputs import Outputs, line_name
from apps.llm.batches.parts import Answers, PartDamaged, Parts
from apps.llm.batches.records import Batch, Kept, Opened
from apps.llm.batches.storage import FILE, new_id
from apps.llm.batches.validation import BatchFailed, told_error, validate
from apps.serving.files import is_local

log = logging.getLogger("podslice")

Ending = Literal["completed", "cancelled", "expired", "failed"]

SAVED_S = {True: (0.5, 5.0), False: (2.0, 10.0)}
"""Least and greatest time between two parts, on a disk and in a bucket: what a kill costs at most."""
TICK_S = 0.1
STORAGE_PAUSE_S = 5.0
"""A storage that failed is tried again after this; nothing is asked meanwhile."""
MOST_STARTS = 5
"""A batch that was begun so often without an answer in between is given up: it may be what kills the replicas."""


class BatchWork:
    """`run` it to its end, or cancel that: whoever takes it next goes on from there."""

    def __init__(self, kept: Kept, asker: Asker, opened: Opened, batch: Batch, progress: Batch | None, writer: str):
        self._kept, self._asker, self._opened, self._batch = kept, asker, opened, batch
        self._progress: dict[str, Any] = progress or {}
        self._writer = writer
        self._source: InputFile | None = None
        self._parts: Parts | None = None
        self._ending = False
        self._cancelled = asyncio.Event()
        self._storage_works = asyncio.Event()
        self._storage_works.set()

    def cancel(self) -> None:
        """The client wants no more answers."""
        self._cancelled.set()

    async def run(self) -> None:
        """Answers and ends the batch. Raises what the storage raises."""
        answering = asyncio.create_task(self._answer())
        stop = asyncio.create_task(self._cancelled.wait())
        left_s = self._batch["expires_at"] - time.time()
        try:
            await asyncio.wait({answering, stop}, timeout=max(0.0, left_s), return_when=asyncio.FIRST_COMPLETED)
        finally:
            answering.cancel()
            stop.cancel()
            (outcome, _) = await asyncio.gather(answering, stop, return_exceptions=True)
            if self._parts is not None:
                await asyncio.to_thread(self._parts.save)
        if isinstance(outcome, BatchFailed):
            await self._end("failed", outcome.errors)
        elif outcome is None:
            await self._end("completed")
        elif isinstance(outcome, asyncio.CancelledError):
            await self._end("cancelled" if self._cancelled.is_set() else "expired")
        else:
            raise outcome

    async def stopped(self) -> None:
        """The replica ends, and not because of this batch."""
        if self._is_good and not self._ending:
            await self._tell(starts=0)

    async def _open(self) -> None:
        """Reads the file, and what was answered before. Raises BatchFailed."""
        owner, input_id = self._opened.owner, self._batch["input_file_id"]
        try:
            self._source = await asyncio.to_thread(scan, self._kept.files.url(owner, input_id))
            if not self._is_good:
                most, asked = self._kept.limits.lines, self._batch["endpoint"]
                await asyncio.to_thread(validate, self._source, most, asked, self._opened.model)
        except FileNotFoundError:
            raise BatchFailed(told_error("input_file_gone", f"{input_id} was deleted", None, "input_file_id")) from None
        fs, folder = self._kept.storage.fs, self._kept.records.path(owner, self._opened.id)
        parts = Parts(fs, folder, self._source.lines, SAVED_S[is_local(fs)], self._writer)
        try:
            await asyncio.to_thread(parts.load)
        except PartDamaged as error:
            raise BatchFailed(told_error("storage_failed", str(error))) from None
        self._parts = parts

    @property
    def _is_good(self) -> bool:
        """Whether the file has been validated."""
        return "in_progress_at" in self._progress

    async def _answer(self) -> None:
        """Returns when each line has its answer. Raises BatchFailed."""
        await self._open()
        assert self._source is not None and self._parts is not None
        starts = self._progress.get("starts", 0) + 1
        if starts > MOST_STARTS:
            message = (
                f"the server ended {MOST_STARTS} times in a row while it worked on this batch, and answered no line"
            )
            raise BatchFailed(told_error("server_ended", message))
        first = {} if self._is_good else {"in_progress_at": int(time.time())}
        await self._tell(status="in_progress", starts=starts, request_counts=self._counts(), **first)
        log.info("%s: %d of %d lines are answered", self._opened.id, self._parts.saved, self._source.lines)
        saving = asyncio.create_task(self._save_forever(self._parts))
        try:
            await self._ask_all(self._source, self._parts)
        finally:
            saving.cancel()
            await asyncio.gather(saving, return_exceptions=True)

    async def _ask_all(self, source: InputFile, parts: Parts) -> None:
        async with asyncio.TaskGroup() as group:
            for todo in missing(source, parts.done):
                chunks = await asyncio.to_thread(lambda todo=todo: list(todo.chunks(source, source.lines)))
                for indices, texts in chunks:
                    for index, text in zip(indices, texts):
                        await self._storage_works.wait()
                        await self._asker.places.acquire()
                        asked = group.create_task(self._ask(parts, int(index), text))
                        asked.add_done_callback(lambda _: self._asker.places.release())

    async def _ask(self, parts: Parts, index: int, text: bytes) -> None:
        line = json_object(text)
        status, body = await self._asker.ask(line["url"], line["body"], self._opened.owner)
        answer = answered(line_name(self._opened, index), line["custom_id"], status, body)
        parts.take(Answers([index], [dump(answer).encode()], int(status != 200)))

    async def _save_forever(self, parts: Parts) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not parts.due:
                continue
            try:
                await asyncio.to_thread(parts.save)
                await self._tell(starts=0, request_counts=self._counts())
                self._storage_works.set()
            except Exception:  # an object store's own errors have no type in common
                log.exception("%s: answers cannot be saved; trying again", self._opened.id)
                self._storage_works.clear()
                await asyncio.sleep(STORAGE_PAUSE_S)

    async def _tell(self, **progress: Any) -> None:
        self._progress |= progress
        await asyncio.to_thread(self._kept.records.write_progress, self._opened, dict(self._progress))

    async def _end(self, ending: Ending, errors: Sequence[dict[str, Any]] = ()) -> None:
        self._ending, records, now = True, self._kept.records, int(time.time())
        if self._parts is None and self._is_good:  # it was over before it was opened
            with contextlib.suppress(BatchFailed):
                await self._open()
        ids = self._progress.get("file_ids") or [new_id(FILE), new_id(FILE)]
        finalizing = {"status": "finalizing", "finalizing_at": now} if ending == "completed" else {}
        await self._tell(file_ids=ids, **finalizing)  # so that whoever must do this again writes the same files
        end = {"status": ending, f"{ending}_at": int(time.time())}
        end |= {name: self._progress[name] for name in ("in_progress_at", "finalizing_at") if name in self._progress}
        outputs = Outputs(self._kept.files, self._opened, ids)
        end |= await asyncio.to_thread(outputs.write, self._parts, self._source, ending == "expired")
        if errors:
            end["errors"] = {"object": "list", "data": list(errors)}
        if not await asyncio.to_thread(records.end, self._opened, end):
            await asyncio.to_thread(outputs.remove_but, await asyncio.to_thread(records.ending, self._opened))
        await asyncio.to_thread(records.close, self._opened)
        log.info("%s: %s, %s", self._opened.id, ending, end["request_counts"])

    def _counts(self) -> dict[str, int]:
        assert self._parts is not None
        saved, errors = self._parts.saved, self._parts.saved_errors
        return {"total": len(self._parts.done), "completed": saved - errors, "failed": errors}
