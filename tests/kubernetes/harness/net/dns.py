"""The cluster's name server: of Services, and of the Pods of headless ones."""

import asyncio
import contextlib
import socket
import struct

from tests.kubernetes.harness.net.services import Services

DOMAIN = ["svc", "cluster", "local"]
A, ANY = 1, 255
AUTHORITATIVE_ANSWER, NO_SUCH_NAME = 0x8580, 3
TTL_S = 1


class NameServer(asyncio.DatagramProtocol):
    """Answers over UDP. Names outside the cluster do not resolve, since they could not be reached."""

    def __init__(self, services: Services):
        self._services = services

    @classmethod
    async def listen(cls, services: Services, address: str) -> None:
        loop = asyncio.get_running_loop()
        await loop.create_datagram_endpoint(lambda: cls(services), local_addr=(address, 53))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        with contextlib.suppress(IndexError, UnicodeDecodeError, struct.error):  # no query: no answer
            self._transport.sendto(self._answer(data), addr)

    def resolve(self, name: str) -> list[str] | None:
        """Its addresses; None if the name does not exist."""
        parts = name.rstrip(".").lower().split(".")
        if parts[-3:] != DOMAIN or len(parts) not in (5, 6):
            return None
        *host, service, namespace = parts[:-3]
        if (namespace, service) not in self._services.services:
            return None
        ip = self._services.cluster_ip(namespace, service)
        if ip:
            return None if host else [ip]
        ready = [one for one in self._services.endpoints(namespace, service) if one.ready]
        return [one.ip for one in ready if not host or one.hostname == host[0]] or None

    def _answer(self, query: bytes) -> bytes:
        position, labels = 12, []
        while length := query[position]:
            labels.append(query[position + 1 : position + 1 + length].decode())
            position += length + 1
        question = query[12 : position + 5]
        (kind,) = struct.unpack(">H", query[position + 1 : position + 3])
        found = self.resolve(".".join(labels))
        answers = found if found and kind in (A, ANY) else []
        flags = AUTHORITATIVE_ANSWER | (NO_SUCH_NAME if found is None else 0)
        head = query[:2] + struct.pack(">HHHHH", flags, 1, len(answers), 0, 0)
        name_of_question = 0xC00C
        records = (struct.pack(">HHHLH", name_of_question, A, 1, TTL_S, 4) + socket.inet_aton(ip) for ip in answers)
        return head + question + b"".join(records)
