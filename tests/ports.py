"""Ports that nobody listens on."""

import socket

from podslice.server_process import INNER_PORTS

SERVE_PORTS = tuple(INNER_PORTS)
"""Variables of those of Serve's that are others in tests: someone may run a server on the usual ones."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
