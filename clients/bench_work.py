"""What bench.py sends: synthetic prompts, a trace, or a file of request bodies, encoded before the clock starts."""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "for",
    "it",
    "as",
    "was",
    "with",
    "be",
    "by",
    "on",
    "not",
    "he",
    "his",
    "but",
    "at",
    "are",
    "this",
    "have",
    "from",
]


class WorkError(Exception):
    """Which file and line is wrong and how to mend it, in one line."""


@dataclass(frozen=True)
class Request:
    id: int | str
    path: str
    payload: bytes
    prompt_tokens: int | None  # None: only the server can count them
    max_tokens: int | None


def read_work(args: argparse.Namespace) -> Callable[[int], list[Request]]:
    """A function from the number of a run to its requests. Raises WorkError for a bad file."""
    if args.trace or args.jsonl:
        requests = list(trace_requests(args) if args.trace else jsonl_requests(args))[: args.requests]
        if not requests:
            raise WorkError(f"{args.trace or args.jsonl} holds no request. Write at least one into it.")
        return lambda run: requests
    return lambda run: synthetic_requests(args, run)


def synthetic_requests(args: argparse.Namespace, run: int) -> list[Request]:
    """Lengths depend on the seed alone, contents on the run too."""
    lengths, contents = random.Random(args.seed), random.Random(f"{args.seed} {run}")
    first_id = min(100, args.vocab_size // 10)  # the lowest ids are often special tokens
    requests = []
    for number in range(args.requests or 32):
        size, max_tokens = lengths.randint(*args.prompt_tokens), lengths.randint(*args.output_tokens)
        if args.prompt == "ids":
            prompt: Any = [contents.randrange(first_id, args.vocab_size) for _ in range(size)]
        else:
            prompt = " ".join(contents.choices(WORDS, k=size))
        requests.append(encode(args, number, {"prompt": prompt, "max_tokens": max_tokens}))
    return requests


def trace_requests(args: argparse.Namespace) -> Iterator[Request]:
    """A JSON list of {id, ids: [token id], text, max_tokens}; --prompt says which of ids and text is sent."""
    try:
        items = json.loads(read_text(args.trace))
    except json.JSONDecodeError as error:
        raise WorkError(f"{args.trace} line {error.lineno}: not JSON ({error.msg}). Write the trace again.") from None
    if not isinstance(items, list):
        raise WorkError(f"{args.trace} line 1: not a list. Write [{{id, ids, text, max_tokens}}, ...].")
    key = args.prompt
    for number, item in enumerate(items):
        where = f"{args.trace} request {number + 1}"
        if not isinstance(item, dict) or not is_prompt(item.get("ids" if key == "ids" else "text"), key):
            other = "text" if key == "ids" else "ids"
            wanted = '"ids": [token id, ...]' if key == "ids" else '"text": "..."'
            raise WorkError(f"{where}: it needs {wanted}. Add it, or send the other form with --prompt {other}.")
        if not is_count(item.get("max_tokens")):
            raise WorkError(f'{where}: it needs "max_tokens": a whole number of 1 or more. Add it.')
        body = {"prompt": item["ids" if key == "ids" else "text"], "max_tokens": item["max_tokens"]}
        yield encode(args, item.get("id", number), body)


def jsonl_requests(args: argparse.Namespace) -> Iterator[Request]:
    """One body for each line: {prompt} goes to /v1/completions, {messages} to /v1/chat/completions."""
    for number, line in enumerate(read_text(args.jsonl).split("\n"), 1):
        if not line.strip():
            continue
        where = f"{args.jsonl} line {number}"
        try:
            body = json.loads(line)
        except json.JSONDecodeError as error:
            raise WorkError(f"{where}: not JSON ({error.msg}). Put one whole request on each line.") from None
        if not isinstance(body, dict) or ("prompt" in body) == ("messages" in body):
            raise WorkError(f'{where}: it needs either "prompt" or "messages". Add one of them.')
        if not is_count(body.get("max_tokens", 1)):
            raise WorkError(f'{where}: "max_tokens" is not a whole number of 1 or more. Correct it.')
        yield encode(args, number, body)


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise WorkError(f"cannot read {path}: {error.strerror}. Check the path.") from None
    except UnicodeDecodeError:
        raise WorkError(f"{path} is not UTF-8 text. Convert it first, e.g. with iconv.") from None


def is_count(value: Any) -> bool:
    return type(value) is int and value >= 1


def is_prompt(value: Any, form: str) -> bool:
    if form == "text":
        return isinstance(value, str) and value != ""
    return isinstance(value, list) and value != [] and all(type(token) is int and token >= 0 for token in value)


def encode(args: argparse.Namespace, id: int | str, body: dict[str, Any]) -> Request:
    """The request as it goes over the wire: streamed, with usage, and greedy unless its body says otherwise."""
    body = {"model": args.model, "temperature": 0} | body | {"stream": True, "stream_options": {"include_usage": True}}
    if args.ignore_eos:
        body["ignore_eos"] = True
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    prompt = body.get("prompt")
    sent = len(prompt) if isinstance(prompt, list) and is_prompt(prompt, "ids") else None
    return Request(
        id, path, json.dumps(body).encode(), sent, body.get("max_tokens") or body.get("max_completion_tokens")
    )
