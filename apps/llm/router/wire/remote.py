"""The router's side of the wire: a replica's engine, as a token engine of this process."""

import itertools
import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial

import msgspec

from apps.llm.api import (
    AdapterInfo,
    CacheNews,
    Capabilities,
    EngineStats,
    EngineStopped,
    QueueFull,
    Sink,
    TokenOutput,
    TokenRequest,
)
from apps.llm.placement.cache_log import CacheLog
from apps.llm.router.wire import messages
from apps.llm.router.wire.errors import received_error
from apps.llm.router.wire.hub import Wire, WireLine
from apps.llm.router.wire.mailbox import guarded
from apps.llm.router.wire.messages import Endpoint

log = logging.getLogger("podslice")

Call = Future[AdapterInfo | None]


class RemoteEngine:
    """A `TokenEngine` in another process. Make one with `RemoteEngine.connect`.

    Sinks, `lost` and `draining` are called by the wire's thread, which all of a process share: they neither wait nor
    raise. Submitted requests are queued once the replica says so.

    Args:
        lost: called once, when the replica is gone, and why. No sink is called afterwards: whoever has submitted
            requests knows best what becomes of them. Not after `shutdown`.
        draining: called once, when its requests are to go elsewhere.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        lost: "Callable[[RemoteEngine, str], None]",
        draining: "Callable[[RemoteEngine], None]",
    ):
        self.endpoint, self._lost, self._draining = endpoint, lost, draining
        self._wire = Wire.shared()
        self._line: WireLine | None = None
        self._welcome: Future[messages.Welcome] = Future()
        self._end: str | None = None  # why it has ended
        self._stats: EngineStats
        self._adapters: list[AdapterInfo] = []
        self._caches: list[CacheLog] = []
        self._numbers = itertools.count()
        self._calls: dict[int, tuple[Future[None] | Call, tuple[int, ...]]] = {}  # with the ids of requests
        self._sinks: dict[int, Sink] = {}  # of open requests
        self._wire.call(self._open)

    @classmethod
    def connect(
        cls,
        endpoint: Endpoint,
        lost: "Callable[[RemoteEngine, str], None]",
        draining: "Callable[[RemoteEngine], None]",
        timeout_s: float = 10.0,
    ) -> "RemoteEngine":
        """Connect to a replica, and wait until it answers.

        Raises:
            ConnectionError: it cannot be reached, refuses the keys, or speaks another version.
        """
        remote = cls(endpoint, lost, draining)
        try:
            remote._welcome.result(timeout_s)
        except TimeoutError as error:
            remote.shutdown()
            raise ConnectionError(f"{remote._name} has not answered for {timeout_s:.0f} s") from error
        return remote

    @property
    def _name(self) -> str:
        return f"replica {self.endpoint.replica} at {self.endpoint.address}"

    @property
    def capabilities(self) -> Capabilities:
        """Of the replica's engine. Raises ConnectionError if it is not connected yet."""
        if not self._welcome.done():
            raise ConnectionError(f"{self._name} has not answered yet")
        return self._welcome.result().capabilities

    # -- requests -----------------------------------------------------------------------------------------------

    def submit(self, requests: Sequence[TokenRequest], sink: Sink) -> "Future[None]":
        """See `TokenEngine.submit`. The future also fails with QueueFull if the replica takes no more messages now."""
        queued: Future[None] = Future()
        call, ids = next(self._numbers), tuple(request.id for request in requests)
        try:
            message = messages.submit_message(call, requests)
        except Exception as error:
            queued.set_exception(error)
            return queued
        self._calls[call] = queued, ids
        self._sinks.update(dict.fromkeys(ids, sink))
        queued.add_done_callback(lambda queued: self._cancel(call, ids) if queued.cancelled() else None)
        self._wire.call(partial(self._offer, call, message))
        return queued

    def _cancel(self, call: int, ids: tuple[int, ...]) -> None:
        self._forget(call, ids)
        self._wire.call(partial(self._send, messages.Cancel(call, ids)))

    def abort(self, ids: Sequence[int]) -> None:
        """See `TokenEngine.abort`."""
        self._wire.call(partial(self._send, messages.Abort(tuple(ids))))

    # -- adapters -----------------------------------------------------------------------------------------------

    def adapters(self) -> Sequence[AdapterInfo]:
        """See `TokenEngine.adapters`: as the replica told last."""
        return list(self._adapters)

    def load_adapter(self, name: str, location: str) -> AdapterInfo:
        """See `TokenEngine.load_adapter`."""
        loaded = self._change_adapter(name, location)
        assert loaded is not None  # the replica says so or what went wrong
        return loaded

    def unload_adapter(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        self._change_adapter(name, None)

    def _change_adapter(self, name: str, location: str | None) -> AdapterInfo | None:
        if threading.current_thread() is self._wire.thread:
            raise RuntimeError("the wire's thread cannot wait for the wire")
        done: Call = Future()
        call = next(self._numbers)
        self._calls[call] = done, ()
        self._wire.call(partial(self._offer, call, messages.encode(messages.ChangeAdapter(call, name, location))))
        return done.result()

    # -- health -------------------------------------------------------------------------------------------------

    def stats(self) -> EngineStats:
        """See `TokenEngine.stats`: as the replica told last, at most some tenths of a second ago."""
        return self._stats

    def cache_news(self, since: Sequence[int] = ()) -> Sequence[CacheNews]:
        """See `TokenEngine.cache_news`. The numbers are this object's own."""
        numbers = since or [0] * len(self._caches)
        return [cache.since(number) for cache, number in zip(self._caches, numbers, strict=True)]

    @property
    def busy(self) -> bool:
        """Whether requests of this router are open."""
        return bool(self._sinks)

    def check(self, step_deadline_s: float = 60.0) -> None:
        """See `TokenEngine.check`."""
        if self._end is not None:
            raise EngineStopped(f"{self._name} {self._end}")
        if (stuck := self._stats.step_running_s) > step_deadline_s:
            raise EngineStopped(f"{self._name} is in one step for {stuck:.0f} s (deadline {step_deadline_s:.0f} s)")

    def awaits(self) -> None:
        """Nothing: see `TokenEngine.awaits`."""

    def lose_stuck(self, step_deadline_s: float) -> None:
        """See `TokenEngine.lose_stuck`."""
        try:
            self.check(step_deadline_s)
        except EngineStopped as stopped:
            self._wire.call(partial(self._lose, str(stopped)))

    def shutdown(self) -> None:
        """Leave the replica. Open requests fail with an error that says so, from the wire's thread."""
        self._wire.call(self._shut)

    # -- the wire's thread --------------------------------------------------------------------------------------

    def _open(self) -> None:
        try:
            self._line = self._wire.open(self.endpoint, self)
        except Exception as error:
            self.ended(f"cannot be reached: {error}")

    def heard(self, message: bytes) -> None:
        """See `LineListener`."""
        if self._end is not None:
            return
        try:
            said = messages.decode_for_router(message)
        except messages.UNREADABLE as unreadable:
            self._leave(f"sent what cannot be read: {unreadable}")
            return
        match said:
            case messages.StepOutputs():
                self._deliver(said)
            case messages.Heartbeat():
                self._beat(said)
            case messages.CallDone():
                self._settle(said.call, received_error(said.error) if said.error else None, said.adapter)
            case messages.AdapterList():
                self._adapters = said.adapters
            case messages.Welcome():
                self._stats, self._adapters = said.stats, said.adapters
                self._caches = [CacheLog() for _ in range(said.ranks)]
                if not self._welcome.done():
                    self._welcome.set_result(said)
            case messages.Leaving():
                self._draining(self)
            case messages.Goodbye():
                self._leave(f"has ended the connection: {said.reason}")
            case messages.OtherVersion():
                self._leave(f"speaks version {said.version} of the wire, this router version {messages.VERSION}")

    def _deliver(self, said: messages.StepOutputs) -> None:
        by_sink: dict[Sink, list[TokenOutput]] = {}
        for id, output in zip(said.ids, said.outputs):
            sink = self._sinks.get(id)
            if sink is None:  # cancelled, or lost
                continue
            msgspec.structs.force_setattr(output, "request", id)  # it is nobody else's yet
            if output.finish_reason is not None:
                self._sinks.pop(id, None)
            by_sink.setdefault(sink, []).append(output)
        for sink, outputs in by_sink.items():
            guarded(partial(sink, outputs))

    def _beat(self, said: messages.Heartbeat) -> None:
        self._stats = said.stats
        for rank, news in said.news:
            self._caches[rank].follow(news)
        if said.ended is not None:
            self._leave(f"has lost its engine: {said.ended}")
        elif said.stats.step_running_s > said.patience_s:
            self._leave(f"is stuck: one step has taken {said.stats.step_running_s:.1f} s")

    def _offer(self, call: int, message: bytes) -> None:
        if self._end is not None or self._line is None:
            self._settle(call, EngineStopped(f"{self._name} {self._end}"))
        elif call in self._calls and not self._line.offer(message):
            self._settle(call, QueueFull("the replica takes no more requests at the moment"))

    def _send(self, message: messages.Abort | messages.Cancel) -> None:
        if self._line is not None:
            self._line.send(messages.encode(message))

    def _forget(self, call: int, ids: tuple[int, ...]) -> None:
        self._calls.pop(call, None)
        for id in ids:
            self._sinks.pop(id, None)

    def _settle(self, call: int, error: Exception | None, adapter: AdapterInfo | None = None) -> None:
        future, ids = self._calls.pop(call, (None, ()))
        if error is not None:
            self._forget(call, ids)
        if future is None or not future.set_running_or_notify_cancel():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(adapter)  # type: ignore[arg-type]

    def _lose(self, reason: str) -> None:
        ids = list(self._sinks)
        self._send(messages.Abort(tuple(ids)))
        outputs = [TokenOutput(request=id, finish_reason="error", error=reason) for id in ids]
        self._deliver(messages.StepOutputs(ids, outputs))

    def _leave(self, reason: str) -> None:
        if self._line is not None:
            self._wire.close(self._line)
        self.ended(reason)

    def _shut(self) -> None:
        if self._end is None:
            self._lose("the engine was shut down")
            self._lost = lambda remote, reason: None
            self._leave("was shut down")

    def ended(self, reason: str) -> None:
        """See `LineListener`."""
        if self._end is not None:
            return
        self._end = reason
        self._sinks.clear()
        if self._welcome.done():
            log.warning("%s %s", self._name, reason)
            guarded(partial(self._lost, self, reason))
        else:
            self._welcome.set_exception(ConnectionError(f"{self._name} {reason}"))
        for call in list(self._calls):
            self._settle(call, EngineStopped(f"{self._name} {reason}"))
