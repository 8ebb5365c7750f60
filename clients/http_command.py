"""Shared by the clients: types of flags, a server's address and key, errors in one line, exit codes."""

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx

CONNECT_TIMEOUT_S = 10.0


class Failure(Exception):
    """What went wrong and what to do about it, in one line."""


def exit_code(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code; 1 after a Failure (on stderr), 130 after Ctrl-C, 141 if stdout is closed."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character must not end the answer
    try:
        code = work()
        print(end="", flush=True)
        return code
    except Failure as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter's last flush complains
        return 141
    except OSError as error:  # httpx has its own errors: only our own stdin and stdout are left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        print(f"error: cannot write the answer: {error.strerror}. Check where stdout goes.", file=sys.stderr)
        return 1


# Flags.


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def seconds(text: str) -> float:
    return number(text, "a number of seconds above 0", lambda value: value > 0)


def number(text: str, wanted: str, fits: Callable[[float], bool]) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not fits(value):
        raise argparse.ArgumentTypeError(f"{text!r} is not {wanted}")
    return value


def base_url(text: str, endpoint: str = "") -> str:
    """`localhost:8000`, `http://localhost:8000/` and an endpoint's own address are the same server."""
    url = server_url(text, endpoint)
    if url is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a server's address; write it like http://localhost:8000")
    return url


def server_url(text: str, endpoint: str = "") -> str | None:
    """An address without the endpoint that it may end in; None: it is not an address."""
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    url = url.rstrip("/").removesuffix(endpoint).rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        valid = False
    return url if valid else None


def auth_header(flag: str | None, name: str = "--api-key") -> dict[str, str]:
    """The header with the key of a flag or of the environment; empty: there is none. Raises Failure."""
    key = (flag or os.environ.get("PODSLICE_API_KEY") or os.environ.get("OPENAI_API_KEY") or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise Failure(f"the API key holds characters that no HTTP header can carry. Check {name}, PODSLICE_API_KEY.")
    return {"Authorization": f"Bearer {key}"} if key else {}


def read_stdin(what: str) -> str:
    """Read all of stdin. Raises Failure if it cannot be read or is not text."""
    try:
        with open(0, "rb", closefd=False) as stdin:  # sys.stdin is None when it was closed
            return stdin.read().decode()
    except UnicodeError:
        raise Failure(f"the {what} is not UTF-8 text. Convert it first, e.g. with iconv.") from None
    except OSError as error:
        raise Failure(f"cannot read stdin: {error.strerror}. Give the {what} as an argument.") from None


# What a server answers.


def past_proxies() -> dict[str, None]:
    """httpx's `mounts` for which this machine is asked without the environment's proxy, which has another localhost."""
    return dict.fromkeys(("all://localhost", "all://127.0.0.1", "all://[::1]"))


def refusal(response: httpx.Response, url: str, not_found: str, key: str = "--api-key", or_else: str = "") -> Failure:
    """The server's message, with advice for its status.

    Args:
        not_found: what to do about a 404.
        key: the flag of the API key.
        or_else: what else helps against a full server.
    """
    status, message = response.status_code, one_line(server_message(response.read())).rstrip(".")
    wait = response.headers.get("retry-after", "")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        advice = f"Pass a valid key with {key} or PODSLICE_API_KEY."
    elif status == HTTPStatus.NOT_FOUND:
        advice = not_found
    elif status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        when = f"in {wait} s" if wait.isdecimal() else "in a while"
        advice = f"The server is full or still starting: try again {when}{or_else}."
    elif response.is_redirect:
        advice = f"Pass the address that it moved to as --url: {response.headers.get('location')}"
    elif status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        advice = "The server's log says more."
    else:
        advice = "Change the request to what the message asks for."
    return Failure(f"{url} answered {named(response)}: {message}. {advice}")


def named(response: httpx.Response) -> str:
    """`404 Not Found`."""
    return f"{response.status_code} {response.reason_phrase}".strip()


def server_message(body: bytes) -> str:
    """The sentence inside an error body: {"Error"}, {"error": {"message"}}, {"detail"}, or plain text."""
    try:
        error: Any = json.loads(body)
    except ValueError:
        return body.decode(errors="replace") or "(no message)"
    for name in ("Error", "error", "message", "detail"):
        if isinstance(error, dict) and error.get(name):
            error = error[name]
    return error if isinstance(error, str) else json.dumps(error)


def one_line(text: str, longest: int = 1000) -> str:
    """`text` without line breaks and control characters, cut to `longest` characters."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= longest else text[: longest - 3] + "..."


def sse_events(chunks: Iterable[bytes]) -> Iterator[tuple[str, str]]:
    """(event name, data) of each server-sent event.

    Lines end at \\n alone: httpx's iter_lines also breaks at U+2028 and its like, which JSON may hold as they are.
    """
    name, data, rest = "", [], b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            field, _, value = line.rstrip(b"\r").decode(errors="replace").partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif field == "event":
                name = value.strip()
            elif not field and not value and data:  # an empty line ends the event; ': comment' keeps it open
                yield name, "\n".join(data)
                name, data = "", []


# A connection that fails.


@dataclass(frozen=True)
class Words:
    """A client's own wording for `explain`."""

    awaited: str = "word"
    local: str = "Is the server running? Start it with `make serve`."
    remote: str = "Is the server running? Check --url, and port-forward if it is in a cluster."
    address: str = "--url"
    timeout: str = "--timeout"


USUAL = Words()


def explain(error: Exception, url: str, timeout_s: float, words: Words = USUAL) -> str:
    """One line about a connection that failed, timed out or broke."""
    reason = re.sub(r"^\[Errno -?\d+\] ", "", one_line(str(error), 200)) or type(error).__name__
    reason = reason[:1].lower() + reason[1:] if reason[1:2].islower() else reason
    if isinstance(error, httpx.ConnectTimeout):
        reason = f"no connection within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        advice = words.local if local else words.remote
        if "[SSL" in reason:
            advice = f"Check the certificate, or whether {words.address} should begin with http://."
        return f"cannot reach {url}: {reason}. {advice}"
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return (
            f"no {words.awaited} from {url} for {timeout_s:g} s. "
            f"It may be compiling or overloaded: see its log, or wait longer with {words.timeout}."
        )
    return f"the connection to {url} broke: {reason}. See whether the server still runs, then try again."
