"""Ports that nobody listens on."""

import secrets

from kuberay.local.ports import free_ports
from podslice.server_process import INNER_PORTS


def free_port() -> int:
    """Outside the kernel's ephemeral ports, so that no other process gets it before it is used."""
    return next(free_ports(secrets.randbits(16)))


def serve_ports() -> dict[str, str]:
    """Environment variables that move Serve's own ports to free ones: a server may run on the usual ones."""
    return {name: str(port) for name, port in zip(INNER_PORTS, free_ports(secrets.randbits(16)))}
