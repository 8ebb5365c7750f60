"""Messages between the engine's process and the hosts of its slice: numbers over TCP, never code.

Every message is a header, five numbers and some bytes. A peer must first send the secret that the hosts were started
with.
"""

import hmac
import secrets
import socket
import time
from collections.abc import Iterator
from enum import IntEnum
from struct import Struct

HEADER = Struct("<II")  # kind, bytes that follow
NUMBERS = Struct("<5i")  # at the start of every message's content; MessageKind has their meaning
VANISHED_S = 15
"""A host whose machine is gone without closing the connection counts as dead after about this long."""


NO_DP_RANK = -1
"""In HELLO: the host's first connection, on which it waits for the layout."""


class MessageKind(IntEnum):
    """Messages and their five numbers."""

    HELLO = 0  # host's rank, DP rank of the connection or NO_DP_RANK; then the secret
    MAKE_CACHE = 1  # number of calibration tokens; then their ids
    WARM_UP = 2
    # StepShape's tokens and seqs, used columns of the page table, bytes of constraints, which parts of a readout; then
    # the step, the constraints, the readout.
    STEP = 3
    START_SLOT = 4  # slot, length of the prompt, length of the answer; then both
    DONE = 5  # a number to report: from every host after loading, MAKE_CACHE, WARM_UP and MAKE_HOST_CACHE
    # Programs compiled since ready, rows, columns, number of scores, width of pooled vectors; then the samples, the
    # scores and a pooled vector for each row.
    TOKENS = 6
    FAILED = 7  # then the reason
    LAYOUT = 8  # number of DP ranks, devices in each
    ADAPTER = 9  # index, layer; then the adapter's matrices of that layer, or nothing for zeros
    CLEAN = 10  # the pages' numbers follow
    MAKE_HOST_CACHE = 11
    KEEP = 12  # the pages' numbers follow, then as many rows of host memory
    BRING_BACK = 13  # as in KEEP
    KEEP_STATES = 14  # the slots follow, then as many rows of kept states
    BRING_BACK_STATES = 15  # as in KEEP_STATES
    ENCODE = 16  # tokens of the call; then its numbers and pixels


def message(kind: MessageKind, numbers: tuple[int, ...] = (), content: bytes = b"") -> bytes:
    numbers = (*numbers, 0, 0, 0, 0, 0)[:5]
    return HEADER.pack(kind, NUMBERS.size + len(content)) + NUMBERS.pack(*numbers) + content


class Connection:
    """Messages over a TCP socket."""

    def __init__(self, sock: socket.socket, timeout_s: float | None = None):
        sock.settimeout(timeout_s)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a step must not wait for the previous one's ACK
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in (("TCP_KEEPIDLE", VANISHED_S // 3), ("TCP_KEEPINTVL", VANISHED_S // 3)):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 2)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, VANISHED_S * 1000)
        self.socket = sock
        self._received = bytearray()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive_first(self, most: int) -> tuple[MessageKind, tuple[int, ...], bytes]:
        """Wait for one message and read no byte past it, so that later ones can be polled for on the socket.

        Raises:
            ConnectionError: the other end is closed.
            ValueError: this is not a message, or its content is longer than `most` bytes.
        """
        kind, size = HEADER.unpack(self._exactly(HEADER.size))
        if not NUMBERS.size <= size <= most:
            raise ValueError(f"the first message has {size} bytes, expected {NUMBERS.size} to {most}")
        content = self._exactly(size)
        return MessageKind(kind), NUMBERS.unpack_from(content), content[NUMBERS.size :]

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("closed")
            data += part
        return data

    def receive(self) -> Iterator[tuple[MessageKind, tuple[int, ...], bytes]]:
        """Wait for data, then yield the messages (perhaps none) that are complete.

        Raises:
            ConnectionError: the other end is closed.
        """
        data = self.socket.recv(1 << 20)
        if not data:
            raise ConnectionError("closed")
        self._received += data
        while len(self._received) >= HEADER.size:
            kind, size = HEADER.unpack_from(self._received)
            if len(self._received) < HEADER.size + size:
                return
            content = bytes(self._received[HEADER.size : HEADER.size + size])
            del self._received[: HEADER.size + size]
            yield MessageKind(kind), NUMBERS.unpack_from(content), content[NUMBERS.size :]


class Listener:
    """Accepts the hosts' connections in the engine's process."""

    def __init__(self, address: str):
        self._socket = socket.create_server((address, 0), backlog=1024)
        self.address: tuple[str, int] = self._socket.getsockname()[:2]
        self.secret = secrets.token_bytes(16)

    def accept(self, expected: list[tuple[int, int]], timeout_s: float, step_deadline_s: float) -> list[Connection]:
        """One connection for each (rank, DP rank), in that order. Connections without the secret are closed.

        Raises:
            TimeoutError: some hosts have not connected in time.
        """
        deadline, found = time.monotonic() + timeout_s, dict[tuple[int, int], Connection]()
        while not found.keys() >= set(expected):
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection = Connection(self._socket.accept()[0], timeout_s=5)
            except TimeoutError:
                missing = sorted({rank for rank, dp_rank in expected if (rank, dp_rank) not in found})
                for other in found.values():
                    other.socket.close()
                raise TimeoutError(f"hosts {missing} of the slice have not connected in {timeout_s:.0f} s") from None
            try:
                kind, (rank, dp_rank, *_), secret = connection.receive_first(NUMBERS.size + len(self.secret))
            except (OSError, ValueError):
                connection.socket.close()
                continue
            if kind is MessageKind.HELLO and hmac.compare_digest(secret, self.secret):
                connection.socket.settimeout(step_deadline_s)
                found[rank, dp_rank] = connection
            else:
                connection.socket.close()
        return [found[place] for place in expected]

    def close(self) -> None:
        self._socket.close()
