"""Addresses and TCP ports on this machine that nothing else uses."""

import errno
import os
import socket
from collections.abc import Iterator

from kuberay import Refusal

LOWEST, HIGHEST = 20000, 29900
"""Above the default range of Ray's workers, below those of Serve's replicas and of the kernel's ephemeral ports."""


def address_of(port: int) -> str:
    """A loopback address for the hosts of the run that serves on `port`: 127.31.64.1 for 8000.

    Not 127.0.0.1: Ray would replace it by the machine's network address, which changes on a laptop.
    """
    return f"127.{port >> 8}.{port & 255}.1"


def hold(port: int) -> socket.socket | None:
    """Claim a service's port for as long as the socket is open, long before anything listens on it. None if another
    command of this machine, whoever's it is, has claimed it."""
    claim = socket.socket(socket.AF_UNIX)
    try:
        # An abstract socket: freed when the process ends, however that happens.
        claim.bind(f"\0podslice/{port}")
    except OSError:
        claim.close()
        return None
    return claim


def is_free(port: int, address: str = "127.0.0.1") -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
    return True


def refuse_unusable(port: int, host: str) -> None:
    """Raises Refusal if nothing can listen there: something does already, or `host` is not this machine's."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host if ":" in host or host not in ("0.0.0.0", "localhost") else "127.0.0.1", port))
        except OSError as error:
            if error.errno in (errno.EADDRNOTAVAIL, errno.ENOENT) or isinstance(error, socket.gaierror):
                raise Refusal(f"--host {host} is no address of this machine ({error.strerror})") from error
            raise Refusal(f"port {port} cannot be used ({error.strerror}): {another(port)}") from error


def another(port: int) -> str:
    """How to choose another port: `make serve` has no options."""
    if "MAKELEVEL" in os.environ:
        return f"choose another one, make ... PORT={port + 1}"
    return f"choose another one, --port {port + 1}"


def free_ports(port: int) -> Iterator[int]:
    """Free ports. The search starts at a place that depends on `port`, so that runs do not collide."""
    span = HIGHEST - LOWEST
    for i in range(span):
        candidate = LOWEST + (port * 211 + i) % span
        if is_free(candidate, "0.0.0.0"):
            yield candidate
