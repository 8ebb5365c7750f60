"""The kubelet's HTTPS port: what the API server asks it for `kubectl logs`, `exec` and `port-forward`.

Callers are not authenticated: only the test is on the network that it listens on.
"""

import asyncio
import contextlib
import json
import os
import pty
import ssl
import subprocess
from collections import deque
from pathlib import Path

from aiohttp import WSMsgType, web

from tests.kubernetes.harness.kubelet.container import Container
from tests.kubernetes.harness.kubelet.kubelet import Kubelet
from tests.kubernetes.harness.kubelet.pod import Pod
from tests.kubernetes.harness.kubelet.spdy import Session, Stream

EXEC_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")
PORT_FORWARD_PROTOCOL = "SPDY/3.1+portforward.k8s.io"
"""The WebSocket subprotocol by which kubectl tunnels SPDY."""
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
CHUNK = 65536


class Server:
    def __init__(self, kubelet: Kubelet):
        self._kubelet = kubelet

    async def listen(self, address: str, port: int, certificate: Path, key: Path) -> None:
        app = web.Application()
        app.add_routes(
            [
                web.get("/containerLogs/{namespace}/{pod}/{container}", self._logs),
                web.get("/exec/{namespace}/{pod}/{container}", self._exec),
                web.get("/portForward/{namespace}/{pod}", self._port_forward),
            ]
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        await web.TCPSite(runner, address, port, ssl_context=context).start()

    def _find(self, request: web.Request) -> tuple[Pod, Container]:
        wanted = request.match_info
        pod = self._kubelet.find(wanted["namespace"], wanted["pod"])
        container = pod and pod.container(wanted.get("container"))
        if not container:
            raise web.HTTPNotFound(text=f"no container {wanted.get('container')} of Pod {wanted['pod']} here")
        return pod, container

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        _, container = self._find(request)
        query = request.query
        start = container.starts - 1 if query.get("previous") == "true" else container.starts
        path = container.log_of(start)
        if not path.exists():
            raise web.HTTPBadRequest(text=f"container {container.name} has no log of that run")
        answer = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await answer.prepare(request)
        with path.open("rb") as log:
            if "tailLines" in query:
                for line in deque(log, int(query["tailLines"])):
                    await answer.write(line)
            while True:
                while data := log.read(CHUNK):
                    await answer.write(data)
                if query.get("follow") != "true" or container.starts != start or container.code is not None:
                    return answer
                await asyncio.sleep(0.2)

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        _, container = self._find(request)
        socket = web.WebSocketResponse(protocols=EXEC_PROTOCOLS, max_msg_size=0)
        await socket.prepare(request)
        if container.process is None:
            await _say_how_it_ended(socket, None, f"container {container.name} is not running")
            return socket
        command = request.query.getall("command")
        terminal = None
        if request.query.get("tty") in ("1", "true"):
            terminal, inside = pty.openpty()
            streams = {"stdin": inside, "stdout": inside, "stderr": inside}
        else:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            process = await container.process.start(command, **streams)
        except OSError as error:
            await _say_how_it_ended(socket, None, str(error))
            return socket
        if terminal is not None:
            os.close(inside)
            outputs = [_terminal_output(socket, terminal)]
        else:
            outputs = [_output(socket, process.stdout, STDOUT), _output(socket, process.stderr, STDERR)]
        reading = asyncio.create_task(_input(socket, process, terminal))
        try:
            await asyncio.gather(*outputs)
            await _say_how_it_ended(socket, await process.wait(), "")
        finally:
            reading.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
            if terminal is not None:
                os.close(terminal)
        return socket

    async def _port_forward(self, request: web.Request) -> web.WebSocketResponse:
        pod, _ = self._find(request)
        socket = web.WebSocketResponse(protocols=(PORT_FORWARD_PROTOCOL,), max_msg_size=0)
        await socket.prepare(request)
        errors: dict[str, Stream] = {}
        async with asyncio.TaskGroup() as group:

            def opened(stream: Stream) -> None:
                connection = stream.headers.get("requestid", "")
                if stream.headers["streamtype"] == "error":
                    errors[connection] = stream
                else:
                    group.create_task(_forward(pod, stream, errors.pop(connection)))

            session = Session(socket.send_bytes, opened)
            async for message in socket:
                if message.type == WSMsgType.BINARY:
                    await session.receive(message.data)
            session.close()
        return socket


async def _forward(pod: Pod, stream: Stream, errors: Stream) -> None:
    """Forwards one connection to a port of the Pod."""
    port = int(stream.headers["port"])
    try:
        reader, writer = await asyncio.open_connection(pod.ip, port)
    except OSError as error:
        await errors.write(f"cannot connect to port {port} of Pod {pod.name}: {error}".encode(), end=True)
        await stream.reset()
        return

    async def there() -> None:
        async for data in stream.chunks():
            writer.write(data)
            await writer.drain()
        writer.write_eof()

    async def back() -> None:
        while data := await reader.read(CHUNK):
            await stream.write(data)
        await stream.write(b"", end=True)

    try:
        await asyncio.gather(there(), back())
        await errors.write(b"", end=True)
    except OSError:  # either end has left
        with contextlib.suppress(OSError):
            await stream.reset()
    finally:
        writer.close()


async def _output(socket: web.WebSocketResponse, stream: asyncio.StreamReader, channel: int) -> None:
    while data := await stream.read(CHUNK):
        await socket.send_bytes(bytes([channel]) + data)


async def _terminal_output(socket: web.WebSocketResponse, terminal: int) -> None:
    with contextlib.suppress(OSError):  # EIO: nobody has it open any more
        while data := await asyncio.to_thread(os.read, terminal, CHUNK):
            await socket.send_bytes(bytes([STDOUT]) + data)


async def _input(socket: web.WebSocketResponse, process: asyncio.subprocess.Process, terminal: int | None) -> None:
    """Passes on the client's input until it closes stdin or disconnects."""
    async for message in socket:
        if message.type != WSMsgType.BINARY or not message.data:
            continue
        channel, data = message.data[0], message.data[1:]
        if channel == STDIN and terminal is not None:
            os.write(terminal, data)
        elif channel == STDIN:
            process.stdin.write(data)
            await process.stdin.drain()
        elif channel == CLOSE and terminal is None:
            process.stdin.close()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


async def _say_how_it_ended(socket: web.WebSocketResponse, code: int | None, message: str) -> None:
    """Reports the exit code; None means that the command never ran."""
    status: dict[str, object] = {"metadata": {}, "status": "Success"}
    if code is None:
        status |= {"status": "Failure", "reason": "InternalError", "message": message, "code": 500}
    elif code:
        causes = [{"reason": "ExitCode", "message": str(code)}]
        status |= {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": causes}}
        status["message"] = f"command terminated with non-zero exit code: exit status {code}"
    await socket.send_bytes(bytes([ERROR]) + json.dumps(status).encode())
    await socket.close()
