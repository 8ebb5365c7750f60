"""The command `podslice playground`, and a service for it to show."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from tests.http_servers import StandInHandler
from tests.ports import free_port

Start = Callable[[str], str]
"""Starts the command with a service's address; returns the page's own."""


class LanguageModel(StandInHandler):
    """A language model's service, as far as the playground asks; it thinks before it answers."""

    def do_GET(self) -> None:
        body = {"paths": {"/v1/chat/completions": {}}} if self.path == "/openapi.json" else {"data": [{"id": "m"}]}
        self.answer(body, 404 if self.path == "/-/routes" else 200)

    def do_POST(self) -> None:
        self.say({"reasoning_content": "Let me see."}, {"content": "It is **seven**."})

    def say(self, *deltas: dict[str, str]) -> None:
        self.body()
        self.answer("".join(f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas))


@contextmanager
def running(url: str) -> Iterator[str]:
    """The address of the page for the service at `url`."""
    address = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, "-m", "podslice", "playground", "--url", url, "--port", str(port)]
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            line = process.stdout.readline().decode()
            assert f"is at {address}" in line, os.pread(log.fileno(), 2**20, 0).decode()
            transport = httpx.HTTPTransport(retries=10)  # waits twice as long after each try
            with httpx.Client(transport=transport) as http:
                assert http.get(address).is_success
            yield address
        finally:
            process.terminate()
            process.communicate(timeout=240)
