"""HAProxy with the edited configuration, tried with real sockets. The right values: HAProxy's own replies and sockets,
Ray Serve's own template, and another client that is answered meanwhile."""

import errno
import json
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from apps.serving.ingress import haproxy_config
from apps.serving.ingress.direct_ingress import WRAPPER
from tests.serving.ingress.proxy import Upstream, running, written


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ps-", dir="/tmp") as name:  # a socket's path must be short
        yield Path(name)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    server = Upstream()
    yield server
    server.close()


def reply(port: int, sent: bytes, half_closed: bool = False) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of what these bytes are answered with."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(sent)
        if half_closed:
            client.shutdown(socket.SHUT_WR)
        whole = b"".join(iter(lambda: client.recv(65536), b""))
    head, _, body = whole.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(status.split()[1]), headers, body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode()


def told(body: bytes) -> dict[str, object]:
    """An error as both OpenAI's and Anthropic's clients read it."""
    content = json.loads(body)
    assert content["type"] == "error" and content["error"]["message"] and content["error"]["type"]
    return content["error"]


@pytest.mark.parametrize("routes", [True, False])
def test_every_edit_fits_the_installed_ray(folder: Path, routes: bool) -> None:
    written(folder, 1 if routes else None)
    _, missing = haproxy_config.edited((folder / "haproxy.cfg").read_text(), {}, 20_000)
    assert missing == []


def test_only_this_user_and_this_host_see_its_inner_side(folder: Path, upstream: Upstream) -> None:
    written(folder, upstream.port)
    with running(folder) as process:
        assert stat.S_IMODE((folder / "a").stat().st_mode) == 0o600
        assert {c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"} <= {"127.0.0.1", "::1"}


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_no_other_user_can_open_its_admin_socket(folder: Path, upstream: Upstream) -> None:
    """Even in a folder that is open to all."""
    written(folder, upstream.port)
    folder.chmod(0o755)

    def opened_by(user: int) -> int:
        """The error's number, or 0."""
        if (child := os.fork()) == 0:
            status = -1
            try:
                os.setuid(user)
                status = socket.socket(socket.AF_UNIX).connect_ex(str(folder / "a"))
            finally:
                os._exit(status)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with running(folder):
        assert [opened_by(user) for user in (os.geteuid(), 64_321)] == [0, errno.EACCES]


@pytest.mark.skipif(not haproxy_config._can_listen(0), reason="this machine has no IPv6")
def test_localhost_answers_over_ipv6_too(folder: Path, upstream: Upstream) -> None:
    """The oracle is the answer over IPv4. Where another program listens on IPv6, HAProxy starts without it."""
    config = written(folder, upstream.port)
    with running(folder):
        over = [httpx.get(f"http://{host}:{config.frontend_port}/app/x").text for host in ("127.0.0.1", "[::1]")]
    assert over == ["ok", "ok"]
    (folder / "a").unlink()
    config = written(folder, upstream.port)
    with socket.create_server(("::1", config.frontend_port), family=socket.AF_INET6), running(folder):
        assert httpx.get(f"http://127.0.0.1:{config.frontend_port}/app/x").text == "ok"


def test_metrics_are_seen_from_outside_where_that_is_asked_for(folder: Path, upstream: Upstream) -> None:
    config = written(folder, upstream.port)
    with running(folder, PODSLICE_PROXY_METRICS_HOST="0.0.0.0") as process:
        listening = {c.laddr.port: c.laddr.ip for c in process.net_connections("inet") if c.status == "LISTEN"}
        assert listening[config.metrics_port] == listening[config.stats_port] == "0.0.0.0"
        assert "haproxy_" in httpx.get(f"http://127.0.0.1:{config.metrics_port}/metrics").text


def test_until_there_are_routes_clients_are_told_to_try_again(folder: Path) -> None:
    config = written(folder, None)
    with running(folder):
        status, headers, body = reply(config.frontend_port, get("/app/v1/models"))
    assert (status, headers["retry-after"]) == (503, "1") and told(body)["code"] == "service_unavailable"


def test_with_routes_there_is_nothing_elsewhere(folder: Path, upstream: Upstream) -> None:
    config = written(folder, upstream.port)
    with running(folder):
        assert reply(config.frontend_port, get("/app/x"))[::2] == (200, b"ok")
        status, _, body = reply(config.frontend_port, get("/nonsense"))
    assert status == 404 and told(body)["code"] == "not_found"


def test_the_replica_hears_who_named_a_request(folder: Path, upstream: Upstream) -> None:
    config = written(folder, upstream.port)
    with running(folder):
        for headers in ({"X-Request-ID": "mine"}, {}):
            httpx.get(f"http://127.0.0.1:{config.frontend_port}/app/x", headers=headers)
    named, unnamed = upstream.heads
    assert "x-request-id: mine" in named and "podslice-named-by: client" in named
    assert "podslice-named-by" not in unnamed


@pytest.mark.slow
def test_a_dead_replica_is_told_as_503_with_retry_after(folder: Path, upstream: Upstream) -> None:
    config = written(folder, upstream.port)
    upstream.close()
    with running(folder):
        status, headers, body = reply(config.frontend_port, get("/app/x"))
    assert (status, headers["retry-after"]) == (503, "1") and told(body)["code"] == "service_unavailable"


def test_a_client_that_half_closes_gets_its_answer_or_an_error_in_json(folder: Path) -> None:
    slow = Upstream(silent_s=2)
    config = written(folder, slow.port)
    with running(folder):
        status, headers, body = reply(config.frontend_port, get("/app/x"), half_closed=True)
    slow.close()
    assert (status, headers["content-type"]) == (400, "application/json") and told(body)


@pytest.mark.slow
def test_a_replica_may_be_silent_for_longer_than_a_client_may(folder: Path) -> None:
    slow = Upstream(silent_s=5)
    config = written(folder, slow.port, timeout_client_s=1)
    with running(folder):
        assert reply(config.frontend_port, get("/app/x"))[::2] == (200, b"ok")
        post = b"POST /app/x HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
        assert reply(config.frontend_port, post + b"{" * 9)[::2] == (200, b"ok")
    slow.close()


HALF_A_HEAD = b"POST /app/x HTTP/1.1\r\nHost: x\r\nContent-"
HALF_A_BODY = b"POST /app/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"


@pytest.mark.slow
def test_half_a_head_is_closed_in_time_and_others_are_answered_meanwhile(folder: Path, upstream: Upstream) -> None:
    config = written(folder, upstream.port)
    with running(folder, RAY_SERVE_HAPROXY_MAXCONN="400"):
        halves = [socket.create_connection(("127.0.0.1", config.frontend_port), timeout=60) for _ in range(280)]
        try:
            for half in halves:
                half.sendall(HALF_A_HEAD)
            assert reply(config.frontend_port, get("/app/x"))[::2] == (200, b"ok")
            for half in halves:  # 10 s
                assert b" 408 " in half.recv(100)
        finally:
            for half in halves:
                half.close()


@pytest.mark.slow
def test_one_address_cannot_have_all_connections(folder: Path, upstream: Upstream) -> None:
    """127.0.0.2 fills its share; 127.0.0.1 is answered."""
    config = written(folder, upstream.port)
    with running(folder, RAY_SERVE_HAPROXY_MAXCONN="400"):
        halves = []
        try:
            refused = 0
            for _ in range(420):
                try:
                    address = ("127.0.0.1", config.frontend_port)
                    halves.append(half := socket.create_connection(address, 60, source_address=("127.0.0.2", 0)))
                    half.settimeout(0.01)
                    refused += half.recv(1) == b""
                except TimeoutError:
                    pass
                except ConnectionResetError:
                    refused += 1
            assert refused >= 100
            assert reply(config.frontend_port, get("/app/x"))[::2] == (200, b"ok")
        finally:
            for half in halves:
                half.close()


@pytest.mark.slow
def test_half_a_body_is_closed_once_nothing_more_comes(folder: Path) -> None:
    reads_all = Upstream(silent_s=60)
    config = written(folder, reads_all.port, timeout_client_s=2)
    with running(folder):
        status, _, body = reply(config.frontend_port, HALF_A_BODY)
    reads_all.close()
    assert status in (400, 408) and told(body)


def test_connections_fit_the_files_that_a_process_may_open() -> None:
    """HAProxy would not start otherwise: two files each, and some of its own."""
    config = "global\n    maxconn 4096\n"
    assert "    maxconn 400\n" in haproxy_config.edited(config, {}, 1000)[0]
    assert "    maxconn 16384\n" in haproxy_config.edited(config, {}, 1_000_000)[0]
    assert "    maxconn 5000\n" in haproxy_config.edited(config, {"RAY_SERVE_HAPROXY_MAXCONN": "5000"}, 1_000_000)[0]


def test_another_version_of_ray_still_starts(folder: Path, upstream: Upstream) -> None:
    """Lines that are not there are told of; the rest is edited."""
    config = written(folder, upstream.port)
    file = folder / "haproxy.cfg"
    file.write_text(file.read_text().replace("listen stats", "listen statistics"))
    with running(folder):
        assert reply(config.frontend_port, get("/app/x"))[0] == 200
        assert reply(config.frontend_port, get("/nonsense"))[1]["content-type"] == "application/json"
    assert "no line for: statistics stay on this host" in (folder / "stderr").read_text()


@pytest.mark.parametrize("trouble", ["refused", "no python"])
def test_what_cannot_be_edited_is_used_as_it_is(folder: Path, upstream: Upstream, trouble: str) -> None:
    """HAProxy refuses the edit, or there is no Python: Serve's own configuration answers."""
    config = written(folder, upstream.port)
    environment = {"PODSLICE_PYTHON": "/nowhere/python"}
    if trouble == "refused":
        wrong = folder / "apps"
        wrong.mkdir()
        shutil.copy(WRAPPER, wrong)
        editor = Path(haproxy_config.__file__).read_text().replace("timeout http-request", "timeout nonsense")
        (wrong / "haproxy_config.py").write_text(editor)
        environment = {"WRAPPER": str(wrong / "haproxy")}
    with running(folder, **environment):
        assert reply(config.frontend_port, get("/app/x"))[::2] == (200, b"ok")
        assert reply(config.frontend_port, get("/nonsense"))[1]["content-type"] == "text/plain"
    assert "Ray Serve's configuration as it is" in (folder / "stderr").read_text()


def test_a_second_edit_changes_nothing(folder: Path, upstream: Upstream) -> None:
    """Serve writes the file anew for each start; a file that was edited before stays."""
    written(folder, upstream.port)
    path = folder / "haproxy.cfg"
    once = haproxy_config.edited(path.read_text(), {}, 20_000)[0]
    path.write_text(once)
    assert haproxy_config.main("/nowhere/haproxy", ["-f", str(path)], {}) == 0 and path.read_text() == once


def test_many_clients_at_once_are_answered(folder: Path, upstream: Upstream) -> None:
    config = written(folder, upstream.port)
    statuses: list[int] = []
    with running(folder):
        clients = [
            threading.Thread(target=lambda: statuses.append(reply(config.frontend_port, get("/app/x"))[0]))
            for _ in range(50)
        ]
        for client in clients:
            client.start()
        for client in clients:
            client.join(60)
    assert statuses == [200] * 50
