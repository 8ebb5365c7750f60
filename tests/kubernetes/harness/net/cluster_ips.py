"""ClusterIPs: each connection goes to a random Ready endpoint, as with kube-proxy."""

import asyncio
import contextlib
import random
import socket
import struct
import sys

from tests.kubernetes.harness.net.services import Services

CONNECT_S = 10
Address = tuple[str, int]
Target = tuple[str, str, str]
"""Namespace, Service, name of its port."""


class ClusterIPs:
    """Adds each Service's address to the loopback interface and listens on it.

    If no endpoint is Ready, or nothing listens at the chosen one, the client's connection is reset. kube-proxy would
    refuse it; either way the client fails at once.
    """

    def __init__(self, services: Services):
        self._services = services
        self._listening: dict[Address, tuple[Target, asyncio.Server]] = {}
        self._addresses: set[str] = set()
        self._changed = asyncio.Event()
        self._connections: set[asyncio.Task[None] | None] = set()
        """Held here, for the event loop alone would let go of one that waits."""

    def changed(self) -> None:
        self._changed.set()

    async def follow(self) -> None:
        """Keeps the listeners in step with the Services. Never returns."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._update()

    async def _update(self) -> None:
        wanted = self._wanted()
        for address in list(self._listening):
            if wanted.get(address) != self._listening[address][0]:
                self._listening.pop(address)[1].close()
        for (ip, port), target in wanted.items():
            if (ip, port) in self._listening:
                continue
            if ip not in self._addresses:
                add = await asyncio.create_subprocess_exec("ip", "addr", "replace", f"{ip}/32", "dev", "lo")
                await add.wait()
                self._addresses.add(ip)
            try:
                server = await asyncio.start_server(self._answer(target), ip, port, backlog=1000)
            except OSError as error:
                print(f"Service {target[1]}: cannot listen on {ip}:{port}: {error}", file=sys.stderr, flush=True)
                continue
            self._listening[ip, port] = target, server

    def _wanted(self) -> dict[Address, Target]:
        wanted = {}
        for namespace, name in self._services.services:
            ip = self._services.cluster_ip(namespace, name)
            for port in self._services.services[namespace, name]["spec"].get("ports", ()) if ip else ():
                if port.get("protocol", "TCP") == "TCP":
                    wanted[ip, port["port"]] = (namespace, name, port.get("name") or "")
        return wanted

    def _answer(self, target: Target):
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self._connections.add(task := asyncio.current_task())
            task.add_done_callback(self._connections.discard)
            try:
                there = await asyncio.wait_for(asyncio.open_connection(*self._pick(target)), CONNECT_S)
            except (OSError, TimeoutError):
                reset(writer)
                return
            await join(reader, writer, *there)

        return answer

    def _pick(self, target: Target) -> Address:
        namespace, name, port = target
        all_of_them = [one for one in self._services.endpoints(namespace, name) if port in one.ports]
        # As kube-proxy: those that are ending serve on while there is nobody else.
        choices = [one for one in all_of_them if one.ready] or [one for one in all_of_them if one.serving]
        if not choices:
            raise ConnectionRefusedError(f"no endpoint of {name}")
        one = random.choice(choices)
        return one.ip, one.ports[port]


def reset(writer: asyncio.StreamWriter) -> None:
    """Closes the connection with a TCP reset."""
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def join(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    there_reader: asyncio.StreamReader,
    there_writer: asyncio.StreamWriter,
) -> None:
    """Copies bytes in both directions until both sides have closed; if one is reset, so is the other."""

    async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        while data := await source.read(65536):
            sink.write(data)
            await sink.drain()
        if sink.can_write_eof():
            sink.write_eof()

    try:
        async with asyncio.TaskGroup() as both:
            both.create_task(carry(reader, there_writer))
            both.create_task(carry(there_reader, writer))
    except* OSError:
        reset(writer)
        reset(there_writer)
    finally:
        for end in (writer, there_writer):
            with contextlib.suppress(OSError):
                end.close()
