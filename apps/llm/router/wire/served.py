"""The replica's side of the wire: one engine, for any number of routers."""

import logging
import math
import threading
import time
from functools import partial

import zmq

from apps.llm.api import AdapterInfo, CacheNews, EngineStopped, TokenOutput
from apps.llm.engine.interface import TokenEngine
from apps.llm.router.wire import messages
from apps.llm.router.wire.intake import ConnectedRouter, Intake
from apps.llm.router.wire.mailbox import Mailbox, guarded
from apps.llm.router.wire.messages import (
    BEAT_S,
    MOST_UNSENT,
    RETRY_S,
    VERSION,
    AdapterList,
    CallDone,
    ChangeAdapter,
    Endpoint,
    Goodbye,
    Hello,
    Leaving,
    OtherVersion,
    Welcome,
    encode,
)
from apps.llm.router.wire.patience import Patience
from apps.llm.router.wire.sockets import answer_zap, listening

log = logging.getLogger("podslice")

MOST_READ = 100  # messages at a time


class ServedEngine:
    """Serves an engine to routers, in a thread of its own, until `close`. The engine stays its owner's.

    A router that has gone, hangs or cannot be reached any more loses its requests: they are aborted.

    Args:
        host: address of this machine that routers can reach.
        replica: its name, for messages and logs.
        config: see `Endpoint`.

    Raises:
        ValueError: the host is not one of this machine.
    """

    endpoint: Endpoint

    def __init__(self, engine: TokenEngine, host: str, replica: str, config: str = ""):
        self._engine = engine
        keys, routers_keys = zmq.curve_keypair(), zmq.curve_keypair()
        self._allowed = routers_keys[0]
        self._context = zmq.Context()
        try:
            self._socket, self._zap, address = listening(self._context, host, keys)
        except ValueError:
            self._context.term()
            raise
        self.endpoint = Endpoint(address, replica, keys[0], routers_keys, engine.capabilities.page_root, config)
        self._mailbox = Mailbox()
        self._intake = Intake(engine, lambda router, done: self._mailbox.put(partial(self._answer, router, done)))
        self._routers: dict[bytes, ConnectedRouter] = {}
        self._refused: dict[bytes, bytes] = {}  # last words to those that are no router any more
        self._patience = Patience()
        self._adapters: list[AdapterInfo] = list(engine.adapters())
        self._drained = self._closing = False
        self._next_beat = 0.0
        self._poller = zmq.Poller()
        for source in (self._socket, self._zap, self._mailbox.fd):
            self._poller.register(source, zmq.POLLIN)
        self._thread = threading.Thread(target=self._run, name="podslice-wire", daemon=True)
        self._thread.start()

    def drain(self) -> None:
        """Tell every router, once, that its requests are to go elsewhere. What is open goes on until they abort it."""
        self._mailbox.put(self._drain)

    def close(self) -> None:
        """Abort what routers have, and leave them."""
        self._mailbox.put(self._close)
        self._thread.join()

    # -- the thread ---------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing:
            if not guarded(self._poll):
                time.sleep(RETRY_S)
        for router in list(self._routers.values()):
            guarded(partial(self._drop, router, "the replica is shut down"))
        guarded(self._retry)
        self._intake.close()
        self._mailbox.close()
        self._context.destroy(linger=200)  # for the last words

    def _poll(self) -> None:
        wait_s = max(0.0, self._next_beat - time.monotonic())
        blocked = bool(self._refused) or any(router.unsent for router in self._routers.values())
        ready = dict(self._poller.poll(math.ceil(1000 * (min(wait_s, RETRY_S) if blocked else wait_s))))
        for thing in self._mailbox.take():
            guarded(thing)
        if self._zap in ready:
            guarded(partial(answer_zap, self._zap, self._allowed))
        if self._socket in ready:
            self._receive()
        if blocked:
            self._retry()
        now = time.monotonic()
        if now >= self._next_beat:
            self._next_beat = now + BEAT_S
            guarded(self._beat)

    def _receive(self) -> None:
        for _ in range(MOST_READ):
            try:
                identity, *parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            guarded(partial(self._heard, identity, b"".join(parts)))

    def _heard(self, identity: bytes, content: bytes) -> None:
        router = self._routers.get(identity)
        try:
            message = messages.decode_for_replica(content)
        except messages.UNREADABLE as error:
            log.warning("a router sent what cannot be read, and is left: %s", error)
            self._drop(router or ConnectedRouter(identity), f"a message could not be read: {error}")
            return
        if isinstance(message, Hello):
            self._greet(identity, message.version)
        elif router is None:
            self._refused[identity] = encode(Goodbye("this connection has ended"))
        else:
            if isinstance(message, ChangeAdapter):
                self._patience.changing.add((identity, message.call))
            self._intake.take(router, message)

    def _greet(self, identity: bytes, version: int) -> None:
        if identity in self._routers:
            return
        if version != VERSION:
            self._refused[identity] = encode(OtherVersion(VERSION))
            return
        router = self._routers[identity] = ConnectedRouter(identity)
        router.sink = lambda outputs: self._mailbox.put(partial(self._outputs, router, outputs))
        news = self._engine.cache_news()
        router.news_numbers = [0] * len(news)
        self._send(router, encode(Welcome(self._engine.capabilities, self._adapters, len(news), self._engine.stats())))
        if self._drained:
            self._send(router, encode(Leaving()))
        self._next_beat = 0.0

    def _outputs(self, router: ConnectedRouter, outputs: list[TokenOutput]) -> None:
        self._patience.outputs += len(outputs)
        ids, known = router.ended(outputs)
        if known and not router.gone:
            for message in messages.output_messages(ids, known):
                self._send(router, message)

    def _answer(self, router: ConnectedRouter, done: CallDone) -> None:
        self._patience.changing.discard((router.identity, done.call))
        self._tell_adapters()  # first: whoever has loaded one finds it in the list
        self._send(router, encode(done))

    def _tell_adapters(self) -> None:
        adapters = list(self._engine.adapters())
        if adapters != self._adapters:
            self._adapters = adapters
            for router in list(self._routers.values()):
                self._send(router, encode(AdapterList(adapters)))

    def _beat(self) -> None:
        stats = self._engine.stats()
        patience_s = self._patience.look(stats.step_running_s)
        ended = None
        try:
            self._engine.check(math.inf)
        except EngineStopped as stopped:
            ended = str(stopped)
        self._tell_adapters()
        for router in list(self._routers.values()):
            if router.unsent:
                continue
            news = self._news(router)
            for message in messages.heartbeats(stats, patience_s, ended, news):
                self._send(router, message)

    def _news(self, router: ConnectedRouter) -> list[tuple[int, CacheNews]]:
        known, news = router.news_numbers, self._engine.cache_news(router.news_numbers)
        router.news_numbers = [each.number for each in news]
        return [(rank, each) for rank, each in enumerate(news) if each.number != known[rank]]

    # -- sending ------------------------------------------------------------------------------------------------

    def _send(self, router: ConnectedRouter, message: bytes) -> None:
        if router.gone:
            return
        if not router.unsent and self._sent(router, message):
            return
        router.unsent.append(message)
        router.unsent_bytes += len(message)
        if router.unsent_bytes > MOST_UNSENT:
            log.warning("a router does not read, and is left")
            self._drop(router, f"{MOST_UNSENT // 2**20} MiB were not read")

    def _sent(self, router: ConnectedRouter, message: bytes) -> bool:
        """Whether nothing is left to do for a message: it is sent, or the router has gone."""
        try:
            self._socket.send_multipart([router.identity, message], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            if not router.gone:
                log.info("a router has left with %d requests open", len(router.theirs))
            self._forget(router)
        return True

    def _retry(self) -> None:
        for router in list(self._routers.values()):
            while router.unsent and self._sent(router, router.unsent[0]) and router.unsent:
                router.unsent_bytes -= len(router.unsent.popleft())
        for identity, message in list(self._refused.items()):
            if self._sent(ConnectedRouter(identity), message):
                self._refused.pop(identity)

    def _drop(self, router: ConnectedRouter, reason: str) -> None:
        """Listen to a router no more. (A ROUTER cannot close one connection: the router does, when it reads this.)"""
        self._forget(router)
        self._refused[router.identity] = encode(Goodbye(reason))

    def _forget(self, router: ConnectedRouter) -> None:
        router.unsent.clear()
        if self._routers.pop(router.identity, None) is not None:
            self._intake.end(router)

    def _drain(self) -> None:
        if not self._drained:
            self._drained = True
            for router in list(self._routers.values()):
                self._send(router, encode(Leaving()))

    def _close(self) -> None:
        self._closing = True
