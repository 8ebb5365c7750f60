"""How other threads have a polling thread do something."""

import logging
import socket
from collections import deque
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger("podslice")

Work = Callable[[], object]


class Mailbox:
    """What other threads want a polling thread to do; its `fd` is readable while there is something."""

    def __init__(self) -> None:
        self._things: deque[Work] = deque()
        self._reading, self._writing = socket.socketpair()
        self._reading.setblocking(False)
        self._writing.setblocking(False)
        self._awake = False
        self.fd = self._reading.fileno()

    def put(self, thing: Work) -> None:
        """Thread-safe; neither waits nor raises."""
        self._things.append(thing)
        if not self._awake:
            self._awake = True
            with suppress(OSError):  # full, or closed
                self._writing.send(b"x")

    def take(self) -> list[Work]:
        with suppress(OSError):
            self._reading.recv(4096)
        self._awake = False  # before looking: what is added from here on wakes again
        return [self._things.popleft() for _ in range(len(self._things))]

    def close(self) -> None:
        self._awake = True
        self._reading.close()
        self._writing.close()


def guarded(work: Work) -> bool:
    """Do something that must not end the thread, whatever one peer or reader brings. Returns whether it went well."""
    try:
        work()
    except BaseException:  # a library's panic is no Exception
        log.exception("the wire failed at a message")
        return False
    return True
