"""Edits the configuration that Ray Serve writes for HAProxy, each time before HAProxy starts with it.

    haproxy_config.py BINARY HAPROXY'S ARGUMENTS...

Serve's template has no settings for what is changed here. Each edit is a pattern and its replacement. A pattern that
another version of Ray no longer has is reported on standard error, which Serve keeps in a file beside HAProxy's admin
socket, and the other edits are still made. A result that HAProxy refuses is not used. So HAProxy always starts.

It runs with any Python, without packages: whichever the wrapper script `haproxy` finds.
"""

from __future__ import annotations

import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

HEAD_S = 10
"""Seconds a client has to send a request's head."""
MOST_CONNECTIONS = 16_384
"""Connections of all clients. One that has sent half a request costs a buffer of 16 KiB."""
SPARE_FILES = 200
"""Files that HAProxy opens besides two for each connection."""
MARK = "# Edited by Podslice"


class Edit(NamedTuple):
    """One change of the configuration."""

    what: str
    pattern: str
    """A regular expression; ^ and $ match at lines."""
    replacement: str


def error(message: str, kind: str, code: str) -> str:
    """An error's body, in the format of OpenAI's API; its `type` makes it Anthropic's too."""
    detail = {"message": message, "type": kind, "param": None, "code": code}
    return json.dumps({"type": "error", "error": detail}, separators=(",", ":"))


def quoted(text: str) -> str:
    """Text as one argument of HAProxy's configuration, in single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


ERRORS = {
    400: (
        "The request could not be read, or its connection was closed for sending before the answer was complete: leave "
        "it open until then.",
        "invalid_request_error",
        "bad_request",
    ),
    408: ("The request did not arrive in time.", "invalid_request_error", "request_timeout"),
    413: ("The request is too large.", "invalid_request_error", "request_too_large"),
    500: ("The proxy failed.", "api_error", "internal_error"),
    502: ("The replica failed before it answered; try again.", "api_error", "bad_gateway"),
    503: ("No replica can be reached at the moment; try again.", "api_error", "service_unavailable"),
    504: ("The replica did not answer in time; try again.", "api_error", "gateway_timeout"),
}
"""Status -> message, type and code of HAProxy's own errors."""
STARTING = error("The service is starting; try again.", "api_error", "service_unavailable")
NOWHERE = error("There is nothing at this path.", "invalid_request_error", "not_found")
RETRY = "hdr Retry-After 1"


def edits(config: str, environment: Mapping[str, str], most_files: int) -> list[Edit]:
    """What to change in `config`.

    Args:
        most_files: the most files that HAProxy may open.
    """
    host = environment.get("PODSLICE_PROXY_METRICS_HOST", "127.0.0.1")
    wanted = int(environment.get("RAY_SERVE_HAPROXY_MAXCONN", MOST_CONNECTIONS))
    connections = max(100, min(wanted, (most_files - SPARE_FILES) // 2))
    errors = "".join(
        f"    http-error status {status} content-type application/json string {quoted(error(*what))}"
        f"{' ' + RETRY if status == 503 else ''}\n"
        for status, what in ERRORS.items()
    )
    share = f"""\
    # One address may hold three quarters of the connections: a flood from it leaves the others some.
    stick-table type ipv6 size 100k expire 1m store conn_cur
    tcp-request connection track-sc0 src
    tcp-request connection reject if {{ sc0_conn_cur gt {connections * 3 // 4} }}
"""
    # Serve names every request that has no name yet. Whoever did not choose the name cannot send it again.
    named = "    http-request set-header podslice-named-by client if { req.hdr(x-request-id) -m found }\n"
    # Without routes, nothing has been deployed, or this proxy has just been restarted and does not know them yet.
    routed = re.search(r"^    use_backend ", config, re.MULTILINE)
    status, body, header = (404, NOWHERE, "") if routed else (503, STARTING, f" {RETRY}")
    answer = f"http-request return status {status} content-type application/json string {quoted(body)}{header}"
    return [
        Edit("the admin socket is the user's own", r"^(    stats socket \S+ mode) 666 ", r"\1 600 "),
        # Without `no strict-limits`, HAProxy does not start if it cannot have a file for every connection it may get.
        Edit("more connections", r"^    maxconn \d+$", f"    maxconn {connections}\n    no strict-limits"),
        Edit("no pipes, which are files too", r"^    option splice-request\n    option splice-response\n", ""),
        Edit(
            "a head's time; errors in JSON", r"^defaults\n", f"defaults\n    timeout http-request {HEAD_S}s\n{errors}"
        ),
        Edit("statuses 502 to 504 are not told as 500", r"(?:^    errorfile 50[234] .*\n)+", ""),
        Edit("metrics stay on this host", r"^(frontend prometheus\n    bind) \S*:(\d+)$", rf"\1 {host}:\2"),
        Edit("statistics stay on this host", r"^(listen stats\n  bind) \S*:(\d+)$", rf"\1 {host}:\2"),
        Edit(
            "connections by address; who named a request",
            r"^(frontend http_frontend\n    bind .*\n)",
            rf"\1{share}{named}",
        ),
        *_over_ipv6(config),
        Edit(
            "503 instead of 404 until there are routes",
            r"^(backend default_backend\n)    http-request return status 404 .*$",
            r"\1    " + answer.replace("\\", r"\\"),
        ),
    ]


def _over_ipv6(config: str) -> list[Edit]:
    """Listening on IPv6's loopback too, beside IPv4's or all of IPv4's addresses: `localhost` may mean either. Nothing
    where this machine has none, or where another program listens there: HAProxy would not start."""
    bind = r"^(frontend http_frontend\n    bind (?:127\.0\.0\.1|localhost|0\.0\.0\.0|\*):(\d+)\n)"
    found = re.search(bind, config, re.MULTILINE)
    if found is None or not _can_listen(int(found[2])):
        return []
    return [Edit("IPv6 on loopback", bind, r"\1    bind [::1]:\2\n")]


def _can_listen(port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as HAProxy does, which may listen already
            probe.bind(("::1", port))
    except OSError:
        return False
    return True


def edited(config: str, environment: Mapping[str, str], most_files: int) -> tuple[str, list[str]]:
    """The configuration with all edits that fit it, and what those change that do not."""
    missing = []
    for edit in edits(config, environment, most_files):
        config, found = re.subn(edit.pattern, edit.replacement, config, count=1, flags=re.MULTILINE)
        if not found:
            missing.append(edit.what)
    return f"{MARK}\n{config}", missing


def main(binary: str, arguments: list[str], environment: dict[str, str]) -> int:
    """Edits the file that follows -f in `arguments`. Returns 1 if it has to stay as it is."""
    if "-f" not in arguments:
        return 0
    path = arguments[arguments.index("-f") + 1]
    with open(path) as file:
        config = file.read()
    if config.startswith(MARK):
        return 0
    config, missing = edited(config, environment, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    for what in missing:
        print(f"podslice: this version of Ray Serve has no line for: {what}", file=sys.stderr)
    new = f"{path}.edited"
    with open(new, "w") as file:
        file.write(config)
    check = subprocess.run([binary, "-c", "-q", "-f", new], capture_output=True, text=True)
    if check.returncode:
        print(f"podslice: HAProxy refuses the edited configuration, {new}:\n{check.stderr}", file=sys.stderr)
        return 1
    os.replace(new, path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:], dict(os.environ)))
