"""A cell's HTTP API for saxutil.py: calls, streams, errors in one sentence; and printing of its replies."""

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import httpx
from http_command import (
    CONNECT_TIMEOUT_S,
    Failure,
    Words,
    explain,
    named,
    one_line,
    past_proxies,
    server_message,
    sse_events,
)
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

PAUSE_S = 0.5
PATIENCE_S = 10.0
WHERE = "-sax_root or PODSLICE_URL says where the cell is."
WORDS = Words(
    local=f"Is a cell served there? {WHERE}",
    remote=f"Is it the right address, port-forwarded if in a cluster? {WHERE}",
    address="-sax_root",
    timeout="-sax_timeout",
)


class Later(Failure):
    """A temporary failure: the cell says when to try again, or a stream timed out or broke."""

    def __init__(self, message: str, after_s: float) -> None:
        super().__init__(message)
        self.after_s = after_s


class Cell:
    """A cell at `url`, such as http://localhost:8000, with the service's route prefix if it has one.

    `timeout_s` is how long the cell may be silent. Every method raises Failure, or Later.
    """

    def __init__(self, url: str, headers: Mapping[str, str], timeout_s: float) -> None:
        self.url, self.timeout_s = url, timeout_s
        timeout = httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)
        self.client = httpx.Client(base_url=url, headers=headers, timeout=timeout, mounts=past_proxies())

    def call(self, method: str, path: str, arguments: dict[str, Any] | None = None) -> Any:
        """Make a call; returns the JSON reply. Arguments go into the query of a GET, else into the body."""
        with self.reply(method, path, arguments or {}) as response:
            body = response.read()
        try:
            return json.loads(body)
        except ValueError:
            raise Failure(f"{self.url}{path} did not answer with JSON. Is a cell there? Check -sax_root.") from None

    def events(self, method: str, path: str, arguments: dict[str, Any]) -> Iterator[Any]:
        """The JSON of each server-sent event, until [DONE]; a stream without it raises Later when it ends."""
        with self.reply(method, path, arguments) as response:
            if "text/event-stream" not in response.headers.get("content-type", ""):
                raise Failure(f"{self.url}{path} did not answer with a stream. Is a cell there? Check -sax_root.")
            try:
                for _, data in sse_events(response.iter_bytes()):
                    if data == "[DONE]":
                        return
                    event = json.loads(data)
                    if isinstance(event, dict) and (event.keys() & {"Error", "error"}):
                        raise Failure(f"the cell failed while answering: {server_message(data.encode())}")
                    yield event
                raise Later(f"the stream of {self.url}{path} ended too early. See the cell's log.", PAUSE_S)
            except ValueError:
                raise Failure(f"cannot read this event of the stream: {one_line(data, 200)}") from None
            except httpx.HTTPError as error:
                raise Later(explain(error, self.url, self.timeout_s, WORDS), PAUSE_S) from None

    def changes(self, model: str, patience_s: float = 0.0) -> Iterator[dict[str, Any]]:
        """A model's entry now and at each change; the last one has state GONE.

        A watch that breaks or times out is opened again, which also detects a cell that is gone.
        `patience_s`: how long the cell may refuse at first, because a new model may take a moment to appear.
        """
        last: dict[str, Any] = {}
        patient_until = time.monotonic() + patience_s
        while True:
            pause_s = PAUSE_S
            try:
                for entry in self.events("GET", "/watch", {"model": model}):
                    if entry != last:
                        yield entry
                    last = entry
                    if entry["state"] == "GONE":
                        return
            except Failure as failure:
                if isinstance(failure, Later) if last else time.monotonic() < patient_until:
                    pause_s = getattr(failure, "after_s", PAUSE_S)
                else:
                    raise
            time.sleep(pause_s)

    @contextmanager
    def reply(self, method: str, path: str, arguments: dict[str, Any]) -> Iterator[httpx.Response]:
        content: dict[str, Any] = {"params": arguments} if method == "GET" else {"json": arguments}
        try:
            with self.client.stream(method, path, **content) as response:
                if response.status_code != HTTPStatus.OK:
                    response.read()
                    raise refusal(response, self.url)
                yield response
        except httpx.HTTPError as error:
            raise Failure(explain(error, self.url, self.timeout_s, WORDS)) from None


def refusal(response: httpx.Response, url: str) -> Failure:
    """The cell's own message if there is one, with advice where the status allows it."""
    status, message = response.status_code, one_line(server_message(response.content))
    try:  # a model's own refusals are relayed in OpenAI's format; a 404 in that format is another server's
        own = bool(response.json().keys() & ({"Error"} if status == HTTPStatus.NOT_FOUND else {"Error", "error"}))
    except (ValueError, AttributeError):
        own = False
    if not own:
        if response.is_redirect:
            return Failure(f"{url} has moved: pass {response.headers.get('location')} as -sax_root.")
        message = f"{url} answered {named(response)}: {message.rstrip('.')}. Is a cell there? Check -sax_root."
    if status == HTTPStatus.UNAUTHORIZED:
        return Failure(f"{message.rstrip('.')}. Set PODSLICE_API_KEY to a valid key.")
    wait = response.headers.get("retry-after", "")
    if wait.isdecimal():
        return Later(f"{message.rstrip('.')}. Try again in {wait} s.", float(wait))
    return Failure(message)


def addresses(entry: Mapping[str, Any]) -> list[str]:
    running = [replica for replica in entry.get("replicas") or () if replica["state"] == "RUNNING"]
    return [str(replica["address"]) for replica in running if replica.get("address")]


def row(entry: Mapping[str, Any]) -> list[str]:
    """A model's row in `ls`. Like saxutil, it shows one address of possibly many."""
    name, address = entry["model"].rpartition("/")[2], next(iter(addresses(entry)), "")
    active, methods = str(entry["active_replicas"]), ", ".join(entry["methods"])
    return [name, entry["model_path"], entry["checkpoint"], active, address, methods]


def details(entry: Mapping[str, Any]) -> list[str]:
    """A model's row in `ls -details`."""
    name, replicas = entry["model"].rpartition("/")[2], f"{entry['active_replicas']}/{entry['max_replicas']}"
    overrides = ", ".join(f"{key}={json.dumps(value)}" for key, value in entry["overrides"].items())
    return [name, entry["state"], replicas, overrides, entry["reason"] or ""]


def summary(entry: Mapping[str, Any]) -> str:
    if entry["state"] == "GONE":
        return "GONE"
    reason = f" ({one_line(entry['reason'])})" if entry["reason"] else ""
    return f"{entry['state']}, {entry['active_replicas']} of {entry['max_replicas']} replicas active{reason}"


def wait_until_active(cell: Cell, model: str) -> None:
    """Show progress on stderr until all replicas are active: a status line in a terminal, else a line per change."""
    console, began = Console(stderr=True, highlight=False), time.monotonic()
    with console.status(Text(f"{model}: published")) as line:
        for entry in cell.changes(model, PATIENCE_S):
            line.update(Text(f"{model}: {summary(entry)}"))
            if not console.is_terminal:
                print(f"{model}: {summary(entry)}", file=sys.stderr, flush=True)
            if entry["state"] == "GONE":
                raise Failure(f"{model} was unpublished before all of its replicas were active.")
            if entry["state"] == "FAILED":
                raise Failure(f"{model} failed to load: {entry['reason'] or 'see the log of the cell'}")
            if entry["state"] == "LOADED":
                break
    print(f"{model}: {summary(entry)}, after {time.monotonic() - began:.0f} s")


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], as_csv: bool = False) -> None:
    """Print an ASCII table, folded only in a terminal that is too narrow; or CSV under a `# ` line."""
    if as_csv:
        csv.writer(sys.stdout, lineterminator="\n").writerows([["# " + header[0], *header[1:]], *rows])
        return
    table = Table(box=box.ASCII2)
    for name in header:
        table.add_column(name, overflow="fold")
    for texts in rows:
        table.add_row(*map(Text, texts))
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1_000_000
    with console.capture() as captured:  # printed below: rich would handle a closed pipe itself
        console.print(table)
    print(captured.get(), end="")


def print_stream(events: Iterable[list[list[Any]]]) -> None:
    """Print the first text as it comes, then any others. Always ends the last line."""
    texts = [""]
    try:
        for event in events:
            texts += [""] * (len(event) - len(texts))
            for i, (delta, _) in enumerate(event):
                texts[i] += delta
                print(delta if i == 0 else "", end="", flush=True)
    finally:
        if texts[0] and not texts[0].endswith("\n"):
            print(flush=True)
    for text in texts[1:]:
        print("\n" + text)
