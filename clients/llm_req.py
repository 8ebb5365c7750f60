#!/usr/bin/env python3
"""Ask a running language model one question and print the answer as it is written.

    python clients/llm_req.py "How many days are in a week?"
    python clients/llm_req.py --chat --system "Answer in one word." "Which day follows Monday?"
    python clients/llm_req.py --image picture.png "What is in this picture?"
    python clients/llm_req.py - < question.txt

Works with any OpenAI-compatible server. Exit codes: 0 the whole answer came, 1 it did not (one line on stderr says
why and what to do), 2 bad flags, 130 Ctrl-C, 141 stdout was closed (`| head`).
"""

import argparse
import base64
import json
import mimetypes
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from http_command import (
    CONNECT_TIMEOUT_S,
    Failure,
    at_least_one,
    auth_header,
    base_url,
    exit_code,
    explain,
    number,
    one_line,
    past_proxies,
    read_stdin,
    refusal,
    seconds,
    server_message,
    sse_events,
)


def main() -> int:
    args = parse_args()
    return exit_code(lambda: ask(args))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a running language model; the answer streams to stdout.")
    parser.add_argument("prompt", help="what to ask; - reads it from stdin")
    url = partial(base_url, endpoint="/v1")
    parser.add_argument("--url", type=url, default="http://localhost:8000", help="the server (default %(default)s)")
    parser.add_argument("--model", help="a model's name (default: the first that the server lists)")
    parser.add_argument("--chat", action="store_true", help="ask through /v1/chat/completions, with the chat template")
    parser.add_argument("--system", help="a system message for --chat")
    parser.add_argument("--image", type=Path, metavar="FILE", help="ask about this picture (implies --chat)")
    parser.add_argument("--max-tokens", type=at_least_one, default=128, help="longest answer (default %(default)s)")
    parser.add_argument("--temperature", type=temperature, default=0.0, help="0 is greedy (default %(default)s)")
    parser.add_argument("--api-key", help="default: $PODSLICE_API_KEY, else $OPENAI_API_KEY")
    parser.add_argument(
        "--timeout", type=seconds, default=300.0, help="give up after this many silent seconds (default %(default)g)"
    )
    args = parser.parse_args()
    args.chat |= args.image is not None
    if args.system is not None and not args.chat:
        parser.error("--system is a chat message: add --chat")
    return args


def temperature(text: str) -> float:
    return number(text, "a temperature of 0 or more", lambda value: value >= 0)


def ask(args: argparse.Namespace) -> int:
    """Print the answer to args.prompt; returns the exit code. Raises Failure."""
    prompt = read_prompt(args.prompt)
    timeout = httpx.Timeout(args.timeout, connect=CONNECT_TIMEOUT_S)
    try:
        with httpx.Client(
            base_url=args.url, headers=auth_header(args.api_key), timeout=timeout, mounts=past_proxies()
        ) as client:
            model = args.model or first_model(client, args.url)
            path, body = request(args, model, prompt)
            with client.stream("POST", path, json=body) as response:
                check_status(response, args.url)
                print_answer(answer_texts(sse_events(response.iter_bytes()), response))
    except httpx.HTTPError as error:
        raise Failure(explain(error, args.url, args.timeout)) from None
    return 0


def read_prompt(argument: str) -> str:
    prompt = read_stdin("question") if argument == "-" else argument
    if any("\ud800" <= char <= "\udfff" for char in prompt):  # an argument that was not UTF-8
        raise Failure("the prompt is not UTF-8 text. Convert it first, e.g. with iconv.")
    if not prompt.strip():
        raise Failure("the prompt is empty. Give a question, or - to read one from stdin.")
    return prompt


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
    content = prompt if args.image is None else [shown(args.image), {"type": "text", "text": prompt}]
    return "/v1/chat/completions", body | {"messages": [*system, {"role": "user", "content": content}]}


def shown(image: Path) -> dict[str, Any]:
    """A picture's file as a part of a message."""
    try:
        data = base64.b64encode(image.read_bytes()).decode()
    except OSError as error:
        raise Failure(f"cannot read the picture {image}: {error.strerror}.") from None
    kind = mimetypes.guess_type(image.name)[0] or "image/png"
    return {"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}}


def check_status(response: httpx.Response, url: str) -> None:
    if response.status_code != httpx.codes.OK:
        raise refusal(response, url, f"Check --url and --model: `curl {url}/v1/models` lists the models.")


def answer_texts(events: Iterable[tuple[str, str]], response: httpx.Response) -> Iterator[str]:
    """The pieces of the answer. Raises Failure if the stream is not one, reports an error or ends too early."""
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
    """Write each piece at once. Always ends the last line, so that an error starts on its own line."""
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


if __name__ == "__main__":
    sys.exit(main())
