"""HAProxy is killed under a running Serve. What clients retry by themselves is what they may see meanwhile: refused
connections, 503. Never 404, which the official clients do not retry."""

import time

import httpx
import psutil
import pytest
from ray import serve


@serve.deployment
class Here:
    def __call__(self) -> str:
        return "here"


def seen(url: str) -> int | None:
    """The status of a request; None: no connection."""
    try:
        return httpx.get(url, timeout=30).status_code
    except httpx.TransportError:
        return None


def haproxies(port: int) -> list[psutil.Process]:
    """Those that listen on the port, and not those of other servers of this machine."""
    ours = [process for process in psutil.Process().children(recursive=True) if process.name() == "haproxy"]
    return [one for one in ours if any(c.laddr.port == port for c in one.net_connections("inet"))]


@pytest.mark.slow
def test_it_comes_back_with_its_routes(serve_url: str) -> None:
    serve.run(Here.bind(), name="here", route_prefix="/here")
    deadline = time.monotonic() + 120
    while seen(f"{serve_url}/here") != 200:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    killed = haproxies(httpx.URL(serve_url).port)
    assert killed
    for process in killed:
        process.kill()
    statuses = []
    deadline = time.monotonic() + 240
    while not statuses or statuses[-1] != 200:
        statuses.append(seen(f"{serve_url}/here"))
        assert time.monotonic() < deadline, set(statuses)
        time.sleep(0.05)
    serve.delete("here")
    assert None in statuses and set(statuses) <= {None, 503, 200}
