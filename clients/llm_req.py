#!/usr/bin/env python3
"""Ask a running language model one question and print the answer as it is written.

    python clients/llm_req.py "How many days are in a week?"
    python clients/llm_req.py --chat --system "Answer in one word." "Which day follows Monday?"
    python clients/llm_req.py - < question.txt

Works with any OpenAI-compatible server. Exit codes: 0 the whole answer came, 1 it did not (one line on stderr says
why and what to do), 2 bad flags, 130 Ctrl-C, 141 whoever read stdout went away (`| head`).
"""

import argparse
import io
import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import httpx

CONNECT_TIMEOUT_S = 10.0


class Failure(Exception):
    """What went wrong and what to do about it, in one line."""


def main() -> int:
    args = parse_args()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that lacks a character must not end the answer
    try:
        ask(args)
        return 0
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


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a running language model; the answer streams to stdout.")
    parser.add_argument("prompt", help="what to ask; - reads it from stdin")
    parser.add_argument(
        "--url", type=base_url, default="http://localhost:8000", help="the server (default %(default)s)"
    )
    parser.add_argument("--model", help="a model's name (default: the first that the server lists)")
    parser.add_argument("--chat", action="store_true", help="ask through /v1/chat/completions, with the chat template")
    parser.add_argument("--system", help="a system message for --chat")
    parser.add_argument("--max-tokens", type=at_least_one, default=128, help="longest answer (default %(default)s)")
    parser.add_argument("--temperature", type=temperature, default=0.0, help="0 is greedy (default %(default)s)")
    parser.add_argument("--api-key", help="default: $PODSLICE_API_KEY, else $OPENAI_API_KEY")
    parser.add_argument(
        "--timeout", type=seconds, default=300.0, help="give up after this many silent seconds (default %(default)g)"
    )
    args = parser.parse_args()
    if args.system is not None and not args.chat:
        parser.error("--system is a chat message: add --chat")
    return args


def base_url(text: str) -> str:
    """`localhost:8000`, `http://localhost:8000/` and `http://localhost:8000/v1` are the same server."""
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    url = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        httpx.URL(url)
    except (ValueError, httpx.InvalidURL):
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"{text!r} is not a server's address; write it like http://localhost:8000")
    return url


def at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return int(text)


def temperature(text: str) -> float:
    return number(text, "a temperature of 0 or more", lambda value: value >= 0)


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


def ask(args: argparse.Namespace) -> None:
    """Print the answer to args.prompt. Raises Failure."""
    prompt = read_prompt(args.prompt)
    timeout = httpx.Timeout(args.timeout, connect=CONNECT_TIMEOUT_S)
    try:
        with httpx.Client(base_url=args.url, headers=auth_header(args.api_key), timeout=timeout) as client:
            model = args.model or first_model(client, args.url)
            path, body = request(args, model, prompt)
            with client.stream("POST", path, json=body) as response:
                check_status(response, args.url)
                print_answer(answer_texts(sse_events(response.iter_bytes()), response))
    except httpx.HTTPError as error:
        raise Failure(explain(error, args)) from None


def read_prompt(argument: str) -> str:
    try:
        prompt = read_stdin() if argument == "-" else argument
        prompt.encode()  # an argument that was not UTF-8 holds surrogates
    except UnicodeError:
        raise Failure("the prompt is not UTF-8 text. Convert it first, e.g. with iconv.") from None
    except OSError as error:
        raise Failure(f"cannot read stdin: {error.strerror}. Give the question as an argument.") from None
    if not prompt.strip():
        raise Failure("the prompt is empty. Give a question, or - to read one from stdin.")
    return prompt


def read_stdin() -> str:
    with open(0, "rb", closefd=False) as stdin:  # sys.stdin is None when it was closed
        return stdin.read().decode()


def auth_header(flag: str | None) -> dict[str, str]:
    key = (flag or os.environ.get("PODSLICE_API_KEY") or os.environ.get("OPENAI_API_KEY") or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise Failure("the API key holds characters that no HTTP header can carry. Check --api-key, PODSLICE_API_KEY.")
    return {"Authorization": f"Bearer {key}"} if key else {}


def first_model(client: httpx.Client, url: str) -> str:
    response = client.get("/v1/models")
    check_status(response, url)
    try:
        models = response.json()["data"]
        if models:
            return str(models[0]["id"])
    except (ValueError, LookupError, TypeError):
        raise Failure(f"{url}/v1/models is not a list of models. Is --url an OpenAI-compatible server?") from None
    raise Failure(f"{url} serves no model yet. Publish one, wait until it is loaded, or name one with --model.")


def request(args: argparse.Namespace, model: str, prompt: str) -> tuple[str, dict[str, Any]]:
    """The path and JSON body to POST."""
    body = {"model": model, "max_tokens": args.max_tokens, "temperature": args.temperature, "stream": True}
    if not args.chat:
        return "/v1/completions", body | {"prompt": prompt}
    system = [] if args.system is None else [{"role": "system", "content": args.system}]
    return "/v1/chat/completions", body | {"messages": [*system, {"role": "user", "content": prompt}]}


def check_status(response: httpx.Response, url: str) -> None:
    if response.status_code == HTTPStatus.OK:
        return
    message = one_line(server_message(response.read()))
    status = f"{response.status_code} {response.reason_phrase}".strip()
    raise Failure(f"{url} answered {status}: {message.rstrip('.')}. {advice(response, url)}")


def advice(response: httpx.Response, url: str) -> str:
    """What a user can do about this HTTP status."""
    status = response.status_code
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return "Pass a valid key with --api-key or PODSLICE_API_KEY."
    if status == HTTPStatus.NOT_FOUND:
        return f"Check --url and --model: `curl {url}/v1/models` lists the models."
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        wait = response.headers.get("retry-after", "")
        return f"The server is full or still starting: try again in {wait + ' s' if wait.isdecimal() else 'a while'}."
    if response.is_redirect:
        return f"Pass the address that it moved to as --url: {response.headers.get('location')}"
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        return "The server's log says more."
    return "Change the request to what the message asks for."


def server_message(body: bytes) -> str:
    """The sentence inside an error body: OpenAI's {"error": {"message"}}, {"message"}, {"detail"}, or plain text."""
    try:
        error: Any = json.loads(body)
    except ValueError:
        return body.decode(errors="replace") or "(no message)"
    if isinstance(error, dict):
        error = error.get("error") or error
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return error if isinstance(error, str) else json.dumps(error)


def one_line(text: str, longest: int = 500) -> str:
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


def answer_texts(events: Iterable[tuple[str, str]], response: httpx.Response) -> Iterator[str]:
    """The pieces of the answer. Raises Failure when the stream is no answer, reports an error or ends too early."""
    if "text/event-stream" not in response.headers.get("content-type", ""):
        raise Failure(f"{response.url} did not answer with a stream. Is --url an OpenAI-compatible server?")
    finished = False
    for name, data in events:
        if data == "[DONE]":
            return
        try:
            event = json.loads(data)
            if name == "error" or event.get("error"):
                raise Failure(stream_error(data))
            for choice in event.get("choices") or ():
                finished |= choice.get("finish_reason") is not None
                yield choice.get("text") or (choice.get("delta") or {}).get("content") or ""
        except (ValueError, AttributeError, TypeError):
            if name == "error":
                raise Failure(stream_error(data)) from None
            raise Failure(f"cannot read this event of the stream: {one_line(data, 200)}") from None
    if not finished:
        raise Failure("the stream ended before the answer did. See the server's log, then ask again.")


def stream_error(data: str) -> str:
    message = one_line(server_message(data.encode()))
    return f"the server failed while answering: {message.rstrip('.')}. See the server's log, then ask again."


def print_answer(texts: Iterable[str]) -> None:
    """Write each piece at once; whatever happens, the last line is ended so that an error begins its own."""
    last = ""
    try:
        for text in texts:
            print(text, end="", flush=True)
            last = text or last
    except (Failure, httpx.HTTPError, KeyboardInterrupt):
        if last and not last.endswith("\n"):
            print(flush=True)
        raise
    if not last.endswith("\n"):
        print(flush=True)


def explain(error: httpx.HTTPError, args: argparse.Namespace) -> str:
    """One line for a connection that failed, went silent or broke."""
    url = args.url
    reason = re.sub(r"^\[Errno -?\d+\] ", "", one_line(str(error), 200))
    reason = reason[:1].lower() + reason[1:] if reason[1:2].islower() else reason
    if isinstance(error, httpx.ConnectTimeout):
        reason = f"no connection within {CONNECT_TIMEOUT_S:g} s"
    if isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout)):
        if "[SSL" in reason:
            return f"cannot reach {url}: {reason}. Check the certificate, or whether --url should begin with http://."
        local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
        start = "Start it with `make serve`." if local else "Check --url, and port-forward if it is in a cluster."
        return f"cannot reach {url}: {reason}. Is the server running? {start}"
    if isinstance(error, httpx.TimeoutException):
        return (
            f"no word from {url} for {args.timeout:g} s. "
            "It may be compiling or overloaded: see its log, or wait longer with --timeout."
        )
    reason = reason or type(error).__name__
    return f"the connection to {url} broke: {reason}. See whether the server still runs, then ask again."


if __name__ == "__main__":
    sys.exit(main())
