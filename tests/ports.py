"""Ports that nobody listens on."""

import socket

from podslice.server_process import INNER_PORTS


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def serve_ports() -> dict[str, str]:
    """Environment variables that move Serve's own ports to free ones: a server may run on the usual ones."""
    return {name: str(free_port()) for name in INNER_PORTS}
