"""Serve's direct ingress: HAProxy in front, the replica's own HTTP server behind it, no Python proxy between.

A streamed token through Serve's default proxy costs about half a millisecond of CPU; direct ingress, a tenth.
"""

HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
DIRECT_INGRESS = {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Requests run in the event loop that reads their sockets: no hop between threads for each token.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # How long a stopping replica still accepts connections (Serve: 30 s). HAProxy learns of it at once and retries
    # refused connections, so a Ctrl-C need not take half a minute.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    # Whenever a replica comes or goes, a new HAProxy takes over. The old one keeps its streams until they end or this
    # many seconds have passed (Serve: 120).
    HARD_STOP: "600",
}
"""Environment of every Ray process, on the head and on all workers: Serve reads it when it is imported."""
