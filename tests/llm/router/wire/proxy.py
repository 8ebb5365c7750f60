"""A network between a router and a replica that can be cut: nothing passes, and nothing is closed."""

import socket
import threading
from contextlib import suppress


class CutNetwork:
    def __init__(self, port: int):
        self._port = port
        self._passes = threading.Event()
        self._passes.set()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._passes.clear()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self._forward, args=pair, daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                target.sendall(data)
            self._passes.wait()
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._listening.close()
        self._passes.set()
