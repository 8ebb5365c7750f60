"""Takes open batches and works on them: each has a lease, which one replica holds at a time.

A replica takes at most one batch per poll, so that replicas share them. A batch created here causes a poll at once.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from functools import partial

from starlette.types import ASGIApp

from apps.llm.batch_api.asking import Asker
from apps.llm.batch_api.files.storage import is_broken
from apps.llm.batch_api.records import LEASE_S, RENEW_S, BatchStore, OpenBatch
from apps.llm.batch_api.work import BatchWork
from apps.llm.served.text_model import TextModel
from apps.serving.files import Holder, Lease, me

log = logging.getLogger("podslice")

POLL_S = 3.0
"""Time between two polls for batches without a holder."""
CONFIRM_S = 0.3
"""Time between taking a lease and checking whether another replica took it at the same moment."""
MAX_WORKING = 8
"""Batches that one replica works on at a time; they share the engine."""
PAUSE_S, MAX_PAUSE_S = 20.0, 600.0
"""First and longest time until a batch that could not be worked on is tried again."""
TIDY_S = 3600.0


class Runner:
    """Runs in the event loop of the application."""

    def __init__(self, store: BatchStore):
        self._store = store
        id_ = uuid.uuid4().hex
        self._me, self._writer = Holder(id_, me()), id_[:8]
        self._leases: dict[str, Lease] = {}
        """Leases of all open batches, held by this replica or observed."""
        self._working: dict[str, asyncio.Task[None]] = {}
        self._paused: dict[str, tuple[float, float]] = {}
        """Batches that could not be worked on: (time of the next attempt, seconds of the pause until then)."""
        self._woken = asyncio.Event()
        """Set by the next `wake`, which also replaces it."""

    def wake(self) -> None:
        """Polls at once: a batch was created or its cancellation requested."""
        self._woken.set()
        self._woken = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, app: ASGIApp, model: TextModel) -> AsyncIterator[None]:
        """Works on batches within the block.

        Args:
            app: the application that serves the model, without the API key check.
        """
        tasks = [asyncio.create_task(self._poll_forever(Asker(app, model))), asyncio.create_task(self._tidy_forever())]
        try:
            yield
        finally:
            tasks += self._working.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _poll_forever(self, asker: Asker) -> None:
        while True:
            took, woken = False, self._woken
            try:
                took = await self._poll(asker)
            except Exception:  # an object store's own errors have no type in common
                log.exception("polling for batches failed; trying again")
            await _until(woken, CONFIRM_S if took else POLL_S)

    async def _poll(self, asker: Asker) -> bool:
        """Takes the oldest batch without a holder; returns whether there was one."""
        found = await asyncio.to_thread(self._store.records.open)
        ids = {opened.id for opened in found}
        self._leases = {id_: lease for id_, lease in self._leases.items() if id_ in ids}
        self._paused = {id_: pause for id_, pause in self._paused.items() if id_ in ids}
        for opened in found:
            mine = opened.model == asker.model.name or opened.expires_at < time.time()
            waits = self._paused.get(opened.id, (0.0, 0.0))[0] > time.monotonic()
            if opened.id in self._working or len(self._working) >= MAX_WORKING or waits or not mine:
                continue
            lease = self._leases.setdefault(opened.id, self._store.records.lease(opened, self._me))
            try:
                taken = await asyncio.to_thread(lease.renew)
            except Exception as error:  # one batch's lease must not hold up the others
                await self._without_lease(opened, error, asker)
                continue
            if taken:
                task = asyncio.create_task(self._hold(opened, lease, asker))
                self._working[opened.id] = task
                task.add_done_callback(partial(self._ended, opened.id))
                return True
        return False

    def _ended(self, id_: str, _: object) -> None:
        del self._working[id_]

    async def _hold(self, opened: OpenBatch, lease: Lease, asker: Asker) -> None:
        """Works on a batch while its lease is held."""
        try:
            await asyncio.sleep(CONFIRM_S)
            if not await asyncio.to_thread(lease.renew):
                return
            work = await self._work_on(opened, asker)
            if work is not None:
                await self._watch(opened, lease, work)
        except Exception:
            self._pause(opened, "working on it failed")
        finally:
            await asyncio.shield(asyncio.to_thread(lease.release))

    def _pause(self, opened: OpenBatch, why: str) -> None:
        """Logs an error and leaves the batch alone for a while, twice as long each time."""
        seconds = min(2 * self._paused.get(opened.id, (0.0, PAUSE_S / 2))[1], MAX_PAUSE_S)
        self._paused[opened.id] = (time.monotonic() + seconds, seconds)
        log.exception("%s: %s; trying again in %.0f s", opened.id, why, seconds)

    async def _without_lease(self, opened: OpenBatch, error: Exception, asker: Asker) -> None:
        """Fails a batch whose lease can never be taken. Its end is recorded once, whoever else tries."""
        try:
            if not is_broken(error):
                raise error
            if work := await self._work_on(opened, asker):
                await work.fail(f"its lease cannot be written: {error.strerror}")  # type: ignore[attr-defined]
        except Exception:
            self._pause(opened, "taking its lease failed")

    async def _work_on(self, opened: OpenBatch, asker: Asker) -> BatchWork | None:
        """The batch's work; None if it has ended or was never recorded, and is now closed."""
        records = self._store.records
        batch, progress = await asyncio.to_thread(records.read, opened)
        ending = await asyncio.to_thread(records.ending, opened)
        leftover = batch is None and await asyncio.to_thread(records.is_leftover, opened)
        if isinstance(ending, dict) or leftover:
            await asyncio.to_thread(records.close, opened)
        elif batch is not None:
            return BatchWork(self._store, asker, opened, batch, progress, self._writer, ended=ending is not None)
        return None

    async def _watch(self, opened: OpenBatch, lease: Lease, work: BatchWork) -> None:
        """Runs the work while renewing the lease and checking for cancellation, until the batch has ended."""
        task = asyncio.create_task(work.run())
        held = time.monotonic()
        try:
            while True:
                woken = self._woken
                with contextlib.suppress(Exception):  # a storage error now may be gone at the next renewal
                    if not await asyncio.to_thread(lease.renew):
                        return log.warning("%s: another replica works on it", opened.id)
                    held = time.monotonic()
                    if await asyncio.to_thread(self._store.records.cancelled, opened):
                        work.cancel()
                await _until(woken, RENEW_S, task)
                if task.done():
                    return await task
                if time.monotonic() - held > LEASE_S / 2:
                    log.warning("%s: another replica may work on it; stopping", opened.id)
                    return None
        finally:
            if not task.done():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                if lease.held:
                    await work.stopped()

    async def _tidy_forever(self) -> None:
        while True:
            try:
                if removed := await asyncio.to_thread(self._store.files.tidy):
                    log.info("removed %d files that killed uploads left", removed)
            except Exception:
                log.exception("cannot remove the files that killed uploads left; trying again")
            try:
                if deleted := await asyncio.to_thread(self._store.expire):
                    log.info("deleted %d files and batches that were older than batch_keep_days", deleted)
            except Exception:
                log.exception("cannot delete old files and batches; trying again")
            await asyncio.sleep(TIDY_S)


async def _until(woken: asyncio.Event, seconds: float, *done: asyncio.Task[None]) -> None:
    """Sleeps for `seconds`, or until the event is set or a task is done."""
    waiting = asyncio.create_task(woken.wait())
    await asyncio.wait({waiting, *done}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
