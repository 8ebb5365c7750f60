"""Runs a server in its own process, shows the progress of its start, and leaves no process behind, however it ends.

Ctrl-C during the start ends it at once. Later, new requests are refused while replicas finish their open ones, then
Serve shuts down; a second Ctrl-C does not wait. SIGTERM does the same, and so does a terminal that closes, unless the
command runs under nohup. A pipe or terminal that nobody reads any more ends nothing.
"""

import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from apps.serving.ingress.direct_ingress import temporary
from kuberay import Refusal
from kuberay.local.ports import another, hold, refuse_unusable
from kuberay.output import outlive_readers
from podslice import own_folder
from podslice.display import display
from podslice.machine import refuse_impossible
from podslice.served import Serving, joins_a_cluster
from podslice.server_process import Server
from ray_configs.applications.ingress import haproxy_files

POLL_S = 0.05
ANSWER_S = 60
"""Time that applications have to answer once all replicas are ready."""
ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray's own setting for computers that no other joins: all its ports, metrics included, listen on loopback alone."""
TAIL = 15
"""Lines of the log to show if the server ends without reporting a failure."""


class ServerFailed(Exception):
    """The server did not start, or ended; the message says why."""


class Supervisor:
    """Supervises one run of a server, from start to end."""

    def __init__(self, serving: Serving):
        self._serving = serving
        self._stops = 0
        self._logs = ""
        self._joined = False  # whether Ray joined an existing cluster, from which the deployments must be removed

    def run(self, command: Sequence[str]) -> int:
        """Returns an exit status: 0 if the server was stopped, 130 if that was during its start.

        Raises:
            ServerFailed: the server did not start, or ended by itself.
            Refusal: the port is taken, or a model's folder does not exist.
        """
        began = time.monotonic()
        outlive_readers()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                signal.signal(number, self._stop)
        if joins_a_cluster():
            return self._run(command, began, {})
        with _held(self._serving.port, self._serving.http["host"]):
            refuse_impossible(self._serving)
            return self._run(command, began, ON_LOOPBACK)

    def _run(self, command: Sequence[str], began: float, environment: Mapping[str, str]) -> int:
        with (
            tempfile.TemporaryDirectory(prefix="podslice-") as folder,
            tempfile.TemporaryDirectory(prefix="podslice-", dir=temporary()) as proxy,
        ):
            server = Server(command, Path(folder), self._serving.port, {**environment, **haproxy_files(proxy)})
            try:
                port = self._start(server)
                if port is None:
                    if self._joined:
                        self._shut_down(server)
                    return 130
                self._say_ready(port, time.monotonic() - began)
                self._watch(server)
                self._shut_down(server)
                return 0
            finally:
                server.kill()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self._stops += 1

    def _start(self, server: Server) -> int | None:
        """Waits until the server answers; returns its port, or None if it was stopped before."""
        shown = display()
        try:
            while not self._stops:
                for event in server.events():
                    if why := event.get("failure") or event.get("over"):
                        raise ServerFailed(why + self._see_logs())
                    if "logs" in event:
                        self._logs, self._joined = event["logs"], event["joined"]
                        server.keep_log(self._logs)
                    if "port" in event:
                        return self._answering(event["port"])
                    shown.show(event)
                if server.ended:
                    raise ServerFailed(_last_words(server) + self._see_logs())
                time.sleep(POLL_S)
            return None
        except ServerFailed:
            if self._joined:
                self._shut_down(server)
            raise
        finally:
            shown.close()

    def _answering(self, port: int) -> int | None:
        """Waits until every application answers: the proxy learns of replicas after Serve does. Returns as `_start`."""
        deadline = time.monotonic() + ANSWER_S
        for app in self._serving.applications:
            while not _answers(f"{app.url(port)}/v1/models"):
                if self._stops:
                    return None
                if time.monotonic() > deadline:
                    raise ServerFailed(
                        f"all replicas are ready, but nothing answers at {app.url(port)}{self._see_logs()}"
                    )
                time.sleep(POLL_S)
        return port

    def _say_ready(self, port: int, seconds: float) -> None:
        for app in self._serving.applications:
            print(f"{app.title} answers at {app.url(port)} after {seconds:.1f} s. To try it:")
            print(f"\n    {app.first_command(port)}\n")
            if folder := own_folder.named(app):
                print(folder)
        print(f"Ctrl-C stops it. Logs: {self._logs}", flush=True)

    def _watch(self, server: Server) -> None:
        while not self._stops:
            for event in server.events():
                if "over" in event:
                    raise ServerFailed(event["over"] + self._see_logs())
                if what := event.get("failure") or event.get("stage"):
                    print(f"{event.get('app') or 'podslice'}: {what}{self._see_logs()}", file=sys.stderr, flush=True)
            if server.ended:
                raise ServerFailed(_last_words(server) + self._see_logs())
            time.sleep(4 * POLL_S)

    def _shut_down(self, server: Server) -> None:
        before = self._stops
        print("stopping; Ctrl-C again does not wait for open requests", file=sys.stderr, flush=True)
        server.interrupt()
        while not server.ended and self._stops == before:
            if any("over" in event for event in server.events()):
                return  # nothing is left that could finish its requests
            time.sleep(POLL_S)

    def _see_logs(self) -> str:
        return f" (logs: {self._logs})" if self._logs else ""


@contextmanager
def _held(port: int, host: str) -> Iterator[None]:
    """Claims the port. Raises Refusal if something listens on it, or will when its start is done."""
    claim = hold(port)
    if claim is None:
        raise Refusal(f"port {port} is another podslice server's: {another(port)}")
    with claim:
        refuse_unusable(port, host)
        yield


def _answers(url: str) -> bool:
    """Whether an application answers; 401 counts too, because it needs a key."""
    try:
        # Without the proxy of the environment's http_proxy, which has another localhost.
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=1):
            return True
    except urllib.error.HTTPError as error:
        return error.code == 401
    except OSError:
        return False


def _last_words(server: Server) -> str:
    return "the server has ended. The end of its log:\n" + "\n".join(
        server.log.read_text(errors="replace").splitlines()[-TAIL:]
    )
