"""What routers ask of a replica's engine, done in threads that may wait for it."""

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from itertools import count
from queue import SimpleQueue

from apps.llm.api import AdapterInfo, Sink, TokenOutput
from apps.llm.engine.interface import TokenEngine
from apps.llm.router.wire.errors import sent_error
from apps.llm.router.wire.mailbox import guarded
from apps.llm.router.wire.messages import Abort, CallDone, Cancel, ChangeAdapter, Submit, submitted


class ConnectedRouter:
    """A router, as a replica sees it. Requests have an id of the router's and one of the engine's."""

    def __init__(self, identity: bytes):
        self.identity = identity
        self.sink: Sink
        self.gone = False
        self.news_numbers: list[int] = []  # of what it knows of each rank's cache
        self.unsent: deque[bytes] = deque()
        self.unsent_bytes = 0
        self.theirs: dict[int, int] = {}  # by the engine's ids
        self.ours: dict[int, int] = {}  # by the router's ids
        self.calls: dict[int, Future[None]] = {}  # that are not done
        self.cancelled: set[int] = set()

    def forget(self, ids: Iterable[int]) -> None:
        """These have ended; ids are the engine's."""
        for id in ids:
            theirs = self.theirs.pop(id, None)
            if theirs is not None and self.ours.get(theirs) == id:
                del self.ours[theirs]

    def ended(self, outputs: list[TokenOutput]) -> tuple[list[int], list[TokenOutput]]:
        """The outputs of open requests with the router's ids. Forgets those that end here."""
        known = [output for output in outputs if output.request in self.theirs]
        ids = [self.theirs[output.request] for output in known]
        self.forget([output.request for output in known if output.finish_reason is not None])
        return ids, known


Answer = Callable[[ConnectedRouter, CallDone], None]


class Intake:
    """Does what routers ask for, in order, in a thread of its own; changes of adapters in one each.

    Args:
        answer: sends the result of a call. Called by any thread.
    """

    def __init__(self, engine: TokenEngine, answer: Answer):
        self._engine, self._answer = engine, answer
        self._ids = count(1)
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="podslice-wire-intake", daemon=True).start()

    def take(self, router: ConnectedRouter, message: Submit | Cancel | Abort | ChangeAdapter) -> None:
        match message:
            case Submit():
                self._tasks.put(partial(self._submit, router, message))
            case Cancel():
                self._tasks.put(partial(self._cancel, router, message))
            case Abort():
                self._tasks.put(partial(self._abort, router, message.ids))
            case ChangeAdapter():
                work = partial(self._change_adapter, router, message)
                threading.Thread(target=work, name="podslice-wire-adapter", daemon=True).start()

    def end(self, router: ConnectedRouter) -> None:
        """Abort all that a router has. It is gone."""
        router.gone = True
        self._tasks.put(partial(self._end, router))

    def close(self) -> None:
        self._tasks.put(None)

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            guarded(task)

    def _submit(self, router: ConnectedRouter, message: Submit) -> None:
        if router.gone:
            return
        ids = [next(self._ids) for _ in message.requests]
        for id, request in zip(ids, message.requests, strict=True):
            router.theirs[id], router.ours[request.id] = request.id, id
        try:
            queued = self._engine.submit(submitted(message, ids), router.sink)
        except BaseException as error:
            queued = Future()
            queued.set_exception(error)
        router.calls[message.call] = queued
        queued.add_done_callback(partial(self._queued, router, message.call, ids))

    def _queued(self, router: ConnectedRouter, call: int, ids: list[int], queued: "Future[None]") -> None:
        router.calls.pop(call, None)
        if queued.cancelled():
            router.forget(ids)
            return
        error = queued.exception()
        if error is not None:
            router.forget(ids)
        elif router.gone or call in router.cancelled:  # while they were being queued
            self._engine.abort(ids)
        router.cancelled.discard(call)
        self._answer(router, CallDone(call, None if error is None else sent_error(error)))

    def _cancel(self, router: ConnectedRouter, message: Cancel) -> None:
        queued = router.calls.get(message.call)
        if queued is not None:
            router.cancelled.add(message.call)
            if queued.cancel() or message.call not in router.calls:
                router.cancelled.discard(message.call)
        self._abort(router, message.ids)

    def _abort(self, router: ConnectedRouter, ids: Iterable[int]) -> None:
        self._engine.abort([router.ours[id] for id in ids if id in router.ours])

    def _end(self, router: ConnectedRouter) -> None:
        for queued in list(router.calls.values()):
            queued.cancel()
        self._engine.abort(list(router.theirs))

    def _change_adapter(self, router: ConnectedRouter, message: ChangeAdapter) -> None:
        loaded: AdapterInfo | None = None
        error: BaseException | None = None
        try:
            if message.location is None:
                self._engine.unload_adapter(message.name)
            else:
                loaded = self._engine.load_adapter(message.name, message.location)
        except BaseException as raised:
            error = raised
        self._answer(router, CallDone(message.call, None if error is None else sent_error(error), loaded))
