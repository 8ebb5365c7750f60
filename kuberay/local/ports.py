"""TCP ports and a loopback address for each run, so that several can run on one machine."""

import socket
from collections.abc import Iterator

LOWEST, HIGHEST = 20000, 29900
"""Above the range of Ray's workers by default, below those of Serve's replicas and of the kernel's own choice."""


def address_of(port: int) -> str:
    """A loopback address for the hosts of the run that serves on `port`: 127.31.64.1 for 8000.

    Not 127.0.0.1, which Ray would replace by the machine's address on the network, which a laptop changes.
    """
    return f"127.{port >> 8}.{port & 255}.1"


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def free_ports(port: int) -> Iterator[int]:
    """Ports that nobody listens on; each run begins to look elsewhere."""
    span = HIGHEST - LOWEST
    for i in range(span):
        candidate = LOWEST + (port * 211 + i) % span
        if is_free(candidate, "0.0.0.0"):
            yield candidate
