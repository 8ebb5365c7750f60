"""HTTP servers in threads of this process: ASGI applications, and stand-ins for other programs."""

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import uvicorn


@contextmanager
def served(app: Any, lifespan: Literal["on", "off"] = "off") -> Iterator[str]:
    """The URL of an ASGI application."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan=lifespan))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the application could not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


class StandInHandler(BaseHTTPRequestHandler):
    """Answers requests in place of another program: a subclass has `do_GET` and others, which call `answer`."""

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def answer(self, content: Any = b"", status: int = 200, headers: dict[str, str] | None = None) -> None:
        """Send bytes, a text, or anything else as JSON."""
        kind = "text/plain" if isinstance(content, bytes | str) else "application/json"
        text = content if isinstance(content, bytes | str) else json.dumps(content)
        data = text.encode() if isinstance(text, str) else text
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class StandInServer(ThreadingHTTPServer):
    """Its handlers find it as `self.server`."""

    daemon_threads = True
    request_queue_size = 128  # not socketserver's 5: many clients at once are reset

    def __init__(self, handler: type[StandInHandler], address: tuple[str, int] = ("127.0.0.1", 0)):
        super().__init__(address, handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *connection: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # that is a client that has left
            super().handle_error(*connection)

    def __enter__(self) -> "StandInServer":
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
