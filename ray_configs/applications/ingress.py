"""Serve's direct ingress: HAProxy in front, the replica's own HTTP server behind it, no Python proxy between.

A streamed token through Serve's default proxy costs about half a millisecond of CPU; direct ingress, a tenth.
"""

FRONT = {"RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "apps.serving.ingress.front:middlewares"}
"""Environment of every Ray process: what a request passes before Serve sees it, with direct ingress or without."""
HARD_STOP = "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"
DIRECT_INGRESS = FRONT | {
    "RAY_SERVE_ENABLE_HA_PROXY": "1",
    # Requests run in the event loop that reads their sockets: no hop between threads for each token.
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    # How long a stopping replica still accepts connections (Serve: 30 s). HAProxy learns of it at once and retries
    # refused connections, so a Ctrl-C need not take half a minute.
    "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "2",
    # Whenever a replica comes or goes, a new HAProxy takes over. The old one keeps its streams until they end or this
    # many seconds have passed (Serve: 120).
    HARD_STOP: "600",
    # How long a client may send nothing of a body, or read nothing of an answer (Serve: an hour). While it waits for an
    # answer, or for the next token, no time limit applies.
    "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
    # After three failures, Serve replaces a proxy. A HAProxy that has died is noticed in 3 s instead of 30.
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
}
"""Environment of every Ray process, on the head and on all workers: Serve reads it when it is imported."""


def haproxy_files(folder: str) -> dict[str, str]:
    """Environment that makes Serve keep HAProxy's files in `folder`, instead of one that the machine's first user owns.

    Serve adds a folder of 56 characters for each node. A socket's path has at most 107, so `folder` has at most 37.
    """
    return {
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/a",
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": f"{folder}/m",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
    }
