"""Serve's inner ports of servers that start at the same time, and listen only at their start's end."""

import json
import socket
import subprocess
import sys

import pytest

from podslice.server_process import INNER_PORTS, inner_ports
from tests.llm.engine import tiny_models

ANOTHER = """
import json, sys
import pytest

from podslice.server_process import inner_ports
ports, claims = inner_ports(8000)
print(json.dumps(ports), flush=True)
sys.stdin.read()
"""


def test_servers_that_start_together_have_ports_of_their_own() -> None:
    """Other processes choose theirs while none listens yet; each port can be listened on then."""
    command = [sys.executable, "-c", ANOTHER]
    started = [
        subprocess.Popen(command, env=tiny_models.environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    try:
        chosen = [json.loads(process.stdout.readline()) for process in started if process.stdout]
        own, claims = inner_ports(8000)
        every = [int(port) for ports in [*chosen, own] for port in ports.values()]
        assert len(set(every)) == len(every) == 4 * len(INNER_PORTS)
        listening = [socket.create_server(("127.0.0.1", port)) for port in every]
        for opened in (*listening, *claims):
            opened.close()
    finally:
        for process in started:
            process.communicate()
    again, claims = inner_ports(8000)
    for claim in claims:
        claim.close()
    assert again == inner_ports(8000)[0], "those of servers that have ended are free again"


def test_a_port_that_is_listened_on_is_replaced() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        taken = str(other.getsockname()[1])
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_SERVE_HAPROXY_STATS_PORT", taken)
            ports, claims = inner_ports(8000)
        assert taken not in ports.values()
        for claim in claims:
            claim.close()
