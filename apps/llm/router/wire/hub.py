"""The one thread in which a router's process talks to all its replicas."""

import math
import threading
import time
from collections import deque
from functools import partial
from typing import Protocol

import zmq
from zmq.utils.monitor import recv_monitor_message

from apps.llm.router.wire.mailbox import Mailbox, Work, guarded
from apps.llm.router.wire.messages import MOST_UNSENT, RETRY_S, VERSION, Endpoint, Hello, encode
from apps.llm.router.wire.sockets import FAILED, Socket, connected

ROUND_S = 0.1
LATE_S = 0.2
"""A longer round was late: this process did not run, and what it has not heard says nothing of others."""
SILENT_ROUNDS = 10
MOST_READ = 100  # messages of a connection at a time


class LineListener(Protocol):
    """Hears what happens on a connection, in the wire's thread."""

    def heard(self, message: bytes) -> None: ...

    def ended(self, reason: str) -> None:
        """Once, and nothing follows."""


class WireLine:
    """A connection to a replica. All methods are for the wire's thread."""

    def __init__(self, socket: Socket, monitor: Socket, listener: LineListener):
        self.socket, self.monitor, self.listener = socket, monitor, listener
        self.silent_rounds: int | None = None  # not heard of yet
        self.closed = False
        self.unsent: deque[bytes] = deque()
        self._unsent_bytes = 0

    def offer(self, message: bytes) -> bool:
        """As `send`, unless too much waits before it. Returns whether it is taken."""
        taken = not self.unsent or self._unsent_bytes + len(message) <= MOST_UNSENT
        if taken:
            self.send(message)
        return taken

    def send(self, message: bytes) -> None:
        """Send a message, later if it cannot be sent now."""
        if self.unsent or not self._sent(message):
            self.unsent.append(message)
            self._unsent_bytes += len(message)

    def retry(self) -> None:
        while self.unsent and self._sent(self.unsent[0]):
            self._unsent_bytes -= len(self.unsent.popleft())

    def _sent(self, message: bytes) -> bool:
        if self.closed:
            return True
        try:
            self.socket.send(message, zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def read(self) -> None:
        for _ in range(MOST_READ):
            if self.closed:
                return
            try:
                message = self.socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.silent_rounds = 0
            guarded(partial(self.listener.heard, message))

    def fate(self) -> str | None:
        """What the monitor says: why the connection has ended."""
        if not self.monitor.poll(0):
            return None
        event = recv_monitor_message(self.monitor)["event"]
        return "refused the connection" if event & FAILED else "ended the connection"


class Wire:
    """A thread with the connections of a process; `Wire.shared()` is the one to use."""

    _shared: "Wire | None" = None
    _making = threading.Lock()

    def __init__(self) -> None:
        self._context = zmq.Context()
        self._mailbox = Mailbox()
        self._lines: dict[Socket, WireLine] = {}
        self._poller = zmq.Poller()
        self._poller.register(self._mailbox.fd, zmq.POLLIN)
        self._round_began = time.monotonic()
        self.thread = threading.Thread(target=self._run, name="podslice-wire", daemon=True)
        self.thread.start()

    @classmethod
    def shared(cls) -> "Wire":
        with cls._making:
            if cls._shared is None:
                cls._shared = cls()
            return cls._shared

    def call(self, work: Work) -> None:
        """Have the thread do this. Neither waits nor raises."""
        self._mailbox.put(work)

    # -- the thread ---------------------------------------------------------------------------------------------

    def open(self, endpoint: Endpoint, listener: LineListener) -> WireLine:
        """Connect, and say hello. Raises zmq.ZMQError or ValueError: the address or the keys are none."""
        socket, monitor = connected(self._context, endpoint)
        line = self._lines[socket] = WireLine(socket, monitor, listener)
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(monitor, zmq.POLLIN)
        line.send(encode(Hello(VERSION)))
        return line

    def close(self, line: WireLine) -> None:
        if not line.closed:
            line.closed = True
            del self._lines[line.socket]
            self._poller.unregister(line.socket)
            self._poller.unregister(line.monitor)
            line.socket.disable_monitor()
            line.monitor.close()
            line.socket.close()

    def _end(self, line: WireLine, reason: str) -> None:
        if not line.closed:
            self.close(line)
            guarded(partial(line.listener.ended, reason))

    def _run(self) -> None:
        while True:
            if not guarded(self._poll):
                time.sleep(ROUND_S)

    def _poll(self) -> None:
        left_s = max(0.0, self._round_began + ROUND_S - time.monotonic())
        blocked = [line for line in self._lines.values() if line.unsent]
        wait_s = min(left_s, RETRY_S) if blocked else left_s
        ready = dict(self._poller.poll(math.ceil(1000 * wait_s) if self._lines else None))
        for line in blocked:
            line.retry()
        for work in self._mailbox.take():
            guarded(work)
        for line in list(self._lines.values()):
            if line.socket in ready:
                line.read()
        for line in list(self._lines.values()):
            if line.monitor in ready and not line.closed and (fate := line.fate()) is not None:
                line.read()  # what it has said before
                self._end(line, fate)
        now = time.monotonic()
        if now - self._round_began >= ROUND_S:
            self._count(late=now - self._round_began > LATE_S)
            self._round_began = now

    def _count(self, late: bool) -> None:
        """Count a round in which nothing was heard of a replica, or end what was silent too long."""
        for line in list(self._lines.values()):
            if line.silent_rounds is None or late:
                continue
            if line.silent_rounds >= SILENT_ROUNDS:
                self._end(line, f"has been silent for {SILENT_ROUNDS * ROUND_S:.0f} s")
            line.silent_rounds += 1
