"""Which batches this replica works on: each open batch has a lease, which one replica holds at a time.

A replica takes one batch more at each look, so that several share them; it looks again at once when one was made here.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator

from starlette.types import ASGIApp

from apps.llm.batches.asking import Asker
from apps.llm.batches.records import LEASE_S, RENEW_S, Kept, Opened
from apps.llm.batches.work import BatchWork
from apps.llm.engine_model import EngineModel
from apps.serving.files import Holder, Lease, me

log = logging.getLogger("podslice")

LOOK_S = 3.0
"""Between two looks for batches that nobody works on."""
DOUBT_S = 0.3
"""Between taking a lease and looking whether another one took it at the same moment."""
AT_ONCE = 8
"""Batches that one replica works on at a time. They share the engine's places."""
TIDY_S = 3600.0


class Runner:
    """Runs in the event loop of the application."""

    def __init__(self, kept: Kept):
        self._kept = kept
        id_ = uuid.uuid4().hex
        self._me, self._writer = Holder(id_, me()), id_[:8]
        self._leases: dict[str, Lease] = {}
        """Of every open batch, held or watched."""
        self._working: dict[str, asyncio.Task[None]] = {}
        self._woken = asyncio.Event()
        """Set at the next `wake`, which puts another one in its place."""

    def wake(self) -> None:
        """A batch was made, or is to be cancelled."""
        self._woken.set()
        self._woken = asyncio.Event()

    @contextlib.asynccontextmanager
    async def running(self, app: ASGIApp, model: EngineModel) -> AsyncIterator[None]:
        """Works on batches within the block.

        Args:
            app: answers for the model, without API keys.
        """
        tasks = [asyncio.create_task(self._look_forever(Asker(app, model))), asyncio.create_task(self._tidy_forever())]
        try:
            yield
        finally:
            tasks += self._working.values()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _look_forever(self, asker: Asker) -> None:
        while True:
            took, woken = False, self._woken
            try:
                took = await self._look(asker)
            except Exception:  # an object store's own errors have no type in common
                log.exception("batches cannot be looked for; trying again")
            await _until(woken, DOUBT_S if took else LOOK_S)

    async def _look(self, asker: Asker) -> bool:
        """Takes the oldest batch that nobody has; returns whether there was one."""
        found = await asyncio.to_thread(self._kept.records.open)
        ids = {opened.id for opened in found}
        self._leases = {id_: lease for id_, lease in self._leases.items() if id_ in ids}
        for opened in found:
            mine = opened.model == asker.model.name or opened.expires_at < time.time()
            if opened.id in self._working or len(self._working) >= AT_ONCE or not mine:
                continue
            lease = self._leases.setdefault(opened.id, self._kept.records.lease(opened, self._me))
            if await asyncio.to_thread(lease.renew):
                task = asyncio.create_task(self._hold(opened, lease, asker))
                self._working[opened.id] = task
                task.add_done_callback(lambda _, id_=opened.id: self._working.pop(id_))
                return True
        return False

    async def _hold(self, opened: Opened, lease: Lease, asker: Asker) -> None:
        """Works on a batch for as long as its lease is held."""
        try:
            await asyncio.sleep(DOUBT_S)
            if not await asyncio.to_thread(lease.renew):
                return
            work = await self._opened(opened, asker)
            if work is not None:
                await self._watch(opened, lease, work)
        except Exception:
            log.exception("%s: the work on it failed; trying again", opened.id)
            await asyncio.sleep(LEASE_S)  # with its lease: another one would fare no better
        finally:
            await asyncio.shield(asyncio.to_thread(lease.release))

    async def _opened(self, opened: Opened, asker: Asker) -> BatchWork | None:
        """None: there is nothing to do but to forget it."""
        records = self._kept.records
        batch, progress = await asyncio.to_thread(records.read, opened)
        if await asyncio.to_thread(records.ending, opened) or (batch is None and records.never_was(opened)):
            await asyncio.to_thread(records.close, opened)
        elif batch is not None:
            return BatchWork(self._kept, asker, opened, batch, progress, self._writer)
        return None

    async def _watch(self, opened: Opened, lease: Lease, work: BatchWork) -> None:
        """Renews the lease and looks whether the batch is to be cancelled, until it has ended."""
        task = asyncio.create_task(work.run())
        held = time.monotonic()
        try:
            while True:
                woken = self._woken
                with contextlib.suppress(Exception):  # what fails now may work at the next beat
                    if not await asyncio.to_thread(lease.renew):
                        return log.warning("%s: another replica works on it", opened.id)
                    held = time.monotonic()
                    if await asyncio.to_thread(self._kept.records.cancelled, opened):
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
                if removed := await asyncio.to_thread(self._kept.files.tidy):
                    log.info("%d files of uploads that were killed are removed", removed)
            except Exception:
                log.exception("what killed uploads left cannot be removed; trying again")
            await asyncio.sleep(TIDY_S)


async def _until(woken: asyncio.Event, seconds: float, *done: asyncio.Task[None]) -> None:
    """Sleeps for so long; no longer than until the event, or the end of a task."""
    waked = asyncio.create_task(woken.wait())
    await asyncio.wait({waked, *done}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waked.cancel()
