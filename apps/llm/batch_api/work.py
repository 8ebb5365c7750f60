"""Works on one batch, from its input file to its output. The caller holds the batch's lease.

validating -> in_progress -> finalizing -> completed
    |               |-> expired, cancelled: with the answers so far
    |-> failed: a bad line fails the batch before any request runs
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Literal

from apps.llm.batch_api.asking import Asker
from apps.llm.batch_api.files.storage import FILE, Damaged, is_broken, new_id
from apps.llm.batch_api.input_file import InputFile, missing, scan
from apps.llm.batch_api.lines import answered, custom_id, dump, json_object
from apps.llm.batch_api.outputs import Outputs, line_name
from apps.llm.batch_api.parts import MAX_LINES, Answers, PartDamaged, Parts
from apps.llm.batch_api.records import BatchStore, OpenBatch
from apps.llm.batch_api.validation import Batch, BatchFailed, batch_error, damaged_record, validate
from apps.serving.files import is_local
from apps.serving.ingress.dialects.openai_errors import OpenAIError

log = logging.getLogger("podslice")

Ending = Literal["completed", "cancelled", "expired", "failed"]

SAVE_PERIOD_S = {True: (0.5, 5.0), False: (2.0, 10.0)}
"""Minimum and maximum time between two parts, by whether the storage is local; bounds the work that a kill loses."""
TICK_S = 0.1
STORAGE_PAUSE_S = 5.0
"""Time before a failed save is retried; no new requests start meanwhile."""
MAX_STARTS = 5
"""Starts without a saved answer after which a batch fails: it may be what kills the replicas."""


class BatchWork:
    """The work on one batch. `run` may be cancelled; the next holder of the lease resumes from the saved answers.

    Args:
        batch: the request; a damaged one fails the batch, with the answers that are saved.
        ended: whether the batch has ended, and the record of how is damaged.
    """

    def __init__(
        self,
        store: BatchStore,
        asker: Asker,
        opened: OpenBatch,
        batch: Batch | Damaged,
        progress: Batch | None,
        writer: str,
        ended: bool = False,
    ):
        self._store, self._asker, self._opened = store, asker, opened
        self._batch: Batch = {} if isinstance(batch, Damaged) else batch
        self._damage = batch if isinstance(batch, Damaged) else None
        self._progress: dict[str, Any] = progress or {}
        self._writer, self._ended = writer, ended
        self._source: InputFile | None = None
        self._parts: Parts | None = None
        self._ending = False
        self._cancelled = asyncio.Event()
        self._storage_works = asyncio.Event()
        self._storage_works.set()

    def cancel(self) -> None:
        """Ends the batch as cancelled, at the client's request."""
        self._cancelled.set()

    async def run(self) -> None:
        """Answers and ends the batch. Raises the storage's errors."""
        if self._damage:
            await self.fail(self._damage.why)
            return
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
        """Resets the count of starts: the replica shuts down, and not because of this batch."""
        if self._is_validated and not self._ending:
            await self._write_progress(starts=0)

    async def fail(self, why: str) -> None:
        """Ends the batch as failed, with the answers that are saved. Raises the storage's errors."""
        await self._end("failed", [damaged_record(why)])

    async def _open(self) -> None:
        """Scans the input file, validates it once, and loads saved answers. Raises BatchFailed."""
        owner, input_id, files = self._opened.owner, self._batch["input_file_id"], self._store.files

        def failed(code: str, why: str) -> BatchFailed:
            return BatchFailed(batch_error(code, f"{input_id} {why}", None, "input_file_id"))

        try:
            size = await asyncio.to_thread(files.size, owner, input_id)
            with contextlib.suppress(OpenAIError):  # its metadata was deleted: only its content matters
                about = await asyncio.to_thread(files.get, owner, input_id)
                if size != about["bytes"]:
                    raise failed(
                        "input_file_damaged", f"is damaged: {size or 0:,} of its {about['bytes']:,} bytes are there"
                    )
            source = await asyncio.to_thread(scan, files.url(owner, input_id))
            if not self._is_validated:
                most, asked = self._store.limits.lines, self._batch["endpoint"]
                self._source = source
                await asyncio.to_thread(validate, source, most, asked, self._opened.model)
        except FileNotFoundError:
            raise failed("input_file_gone", "was deleted") from None
        except OSError as error:
            if not is_broken(error):
                raise
            raise failed("input_file_damaged", f"cannot be read: {error.strerror}") from None
        if self._is_validated and self._total not in (0, source.lines):
            raise failed("input_file_damaged", f"is damaged: {source.lines:,} of its {self._total:,} lines are there")
        self._source = source
        await self._load(source.lines)

    async def _load(self, lines: int) -> None:
        """Loads the saved answers; those of damaged parts are to be asked again. Lines 0: the number is not known."""
        fs, folder = self._store.storage.fs, self._store.records.path(self._opened.owner, self._opened.id)
        parts = Parts(fs, folder, lines, SAVE_PERIOD_S[is_local(fs)], self._writer)
        await asyncio.to_thread(parts.load, partial(log.error, "%s: left out: %s", self._opened.id), not lines)
        self._parts = parts

    @property
    def _total(self) -> int:
        """Lines of the input file by the recorded progress; 0 if that is not known."""
        total = self._progress.get("request_counts", {}).get("total")
        return total if isinstance(total, int) and 0 <= total <= MAX_LINES else 0

    @property
    def _is_validated(self) -> bool:
        """Whether the file has been validated."""
        return "in_progress_at" in self._progress

    async def _answer(self) -> None:
        """Answers every line that has no saved answer. Raises BatchFailed."""
        await self._open()
        assert self._source is not None and self._parts is not None
        starts = self._progress.get("starts", 0) + 1
        if starts > MAX_STARTS:
            message = f"the server died {MAX_STARTS} times in a row while working on this batch, answering no line"
            raise BatchFailed(batch_error("server_ended", message))
        first = {} if self._is_validated else {"in_progress_at": int(time.time())}
        await self._write_progress(status="in_progress", starts=starts, request_counts=self._counts(), **first)
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
                for index, text in await asyncio.to_thread(todo.lines, source):
                    await self._storage_works.wait()
                    await self._asker.open_lines.acquire()
                    asked = group.create_task(self._ask(parts, index, text))
                    asked.add_done_callback(lambda _: self._asker.open_lines.release())

    async def _ask(self, parts: Parts, index: int, text: bytes) -> None:
        try:
            line = json_object(text)
            url, body = str(line["url"]), dict(line["body"])
        except (OpenAIError, KeyError, TypeError, ValueError):  # damaged since the file was validated
            damaged = OpenAIError(400, "The line of the input file is damaged.", None, "line_damaged")
            status, said = damaged.status, damaged.body()
        else:
            status, said = await self._asker.ask(url, body, self._opened.owner)
        answer = answered(line_name(self._opened, index), custom_id(text), status, said)
        parts.take(Answers([index], [dump(answer).encode()], int(status != 200)))

    async def _save_forever(self, parts: Parts) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            if not parts.due:
                continue
            try:
                await asyncio.to_thread(parts.save)
                await self._write_progress(starts=0, request_counts=self._counts())
                self._storage_works.set()
            except Exception:  # an object store's own errors have no type in common
                log.exception("%s: cannot save answers; trying again", self._opened.id)
                self._storage_works.clear()
                await asyncio.sleep(STORAGE_PAUSE_S)

    async def _write_progress(self, **progress: Any) -> None:
        self._progress |= progress
        await asyncio.to_thread(self._store.records.write_progress, self._opened, dict(self._progress))

    async def _end(self, ending: Ending, errors: Sequence[dict[str, Any]] = ()) -> None:
        self._ending, records, now = True, self._store.records, int(time.time())
        if self._parts is None and self._is_validated and self._batch:  # cancelled or expired before it was opened
            with contextlib.suppress(BatchFailed):
                await self._open()
        if self._parts is None:  # the answers that there are, without the input file
            await self._load(self._source.lines if self._source else self._total)
        ids = self._progress.get("file_ids") or [new_id(FILE), new_id(FILE)]
        finalizing = {"status": "finalizing", "finalizing_at": now} if ending == "completed" else {}
        await self._write_progress(file_ids=ids, **finalizing)  # saved first, so that a retry writes the same files
        end: dict[str, Any] = {"status": ending, f"{ending}_at": int(time.time())}
        end |= {name: self._progress[name] for name in ("in_progress_at", "finalizing_at") if name in self._progress}
        while True:
            outputs = Outputs(self._store.files, self._opened, ids)
            try:
                end |= await asyncio.to_thread(outputs.write, self._parts, self._source, ending == "expired")
                break
            except PartDamaged as error:
                if ending == "completed" or error.part is None:
                    raise  # to be opened again, and the part's lines answered again
                log.error("%s: left out: %s", self._opened.id, error)
                self._parts.drop(error.part)  # type: ignore[union-attr]
        if errors:
            end["errors"] = {"object": "list", "data": list(errors)}
        if not await asyncio.to_thread(records.end, self._opened, end, self._ended):
            other = await asyncio.to_thread(records.ending, self._opened)
            if isinstance(other, dict):
                await asyncio.to_thread(outputs.remove_unless_named, other)
        await asyncio.to_thread(records.close, self._opened)
        log.info("%s: %s, %s", self._opened.id, ending, end["request_counts"])

    def _counts(self) -> dict[str, int]:
        assert self._parts is not None
        saved, errors = self._parts.saved, self._parts.saved_errors
        return {"total": len(self._parts.done), "completed": saved - errors, "failed": errors}
