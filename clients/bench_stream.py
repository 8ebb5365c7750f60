"""One request of bench.py: send it, time its stream, count its tokens, name its error.

The client shares the machine with the server under test, so a chunk costs two byte searches, not a JSON parse.
"""

import json
import os
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import aiohttp
from bench_work import Request


@dataclass
class Row:
    """One request as it went. Times in ms; figures that do not exist (an error, a single token) are None."""

    id: int | str
    sent_s: float  # after the run's beginning
    late_ms: float  # behind its planned arrival: the client's own delay, open loop only
    max_tokens: int | None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt, from the server's prefix cache
    output_tokens: int | None = None
    chunks: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    max_gap_ms: float | None = None  # longest silence between two chunks
    finish_reason: str | None = None
    error: str | None = None  # its kind
    message: str | None = None


class RequestError(Exception):
    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


# Chunks are counted without decoding; only those in which these bytes show hold more than one more piece of text.
CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')
DECODE = re.compile(rb'"error"|"role"|"usage"\s*:\s*\{|"finish_reason"\s*:\s*"')


class Answer:
    """Reads one stream's events and keeps the times and counts."""

    def __init__(self) -> None:
        self.first: float | None = None
        self.last = self.gap = 0.0
        self.chunks = 0
        self.prompt_tokens: int | None = None
        self.cached_tokens: int | None = None
        self.output_tokens: int | None = None
        self.finish_reason: str | None = None
        self.failing = False  # the next data is that of an error event
        self.ended = False

    def feed(self, data: bytes, now: float) -> None:
        """Take the data of one event, received at `now` (s). Raises RequestError for an error event."""
        if data == b"[DONE]":
            self.ended = True
            return
        if self.failing:
            raise RequestError("error in the stream", server_message(data))
        has_choice = CHOICE.search(data) is not None
        is_text = has_choice
        if not has_choice or DECODE.search(data):
            is_text = self.decode(data)
        if has_choice and (is_text or self.finish_reason):
            if self.first is None:
                self.first = now
            else:
                self.gap = max(self.gap, now - self.last)
            self.last = now
            self.chunks += is_text

    def decode(self, data: bytes) -> bool:
        """Note what a special event says; whether it is a piece of the answer too, not a role or an ending alone."""
        try:
            event = json.loads(data)
            choices = event.get("choices")
            if event.get("error") or (choices is None and "message" in event):
                raise RequestError("error in the stream", server_message(data))
            self.count(event.get("usage") or {})
            if not choices:
                return False
            delta = choices[0].get("delta") or {}
            self.finish_reason = choices[0].get("finish_reason") or self.finish_reason
            pieces = [choices[0].get("text"), *(value for key, value in delta.items() if key != "role")]
            return any(pieces) or ("role" not in delta and choices[0].get("finish_reason") is None)
        except (ValueError, AttributeError, LookupError, TypeError):
            raise RequestError("unreadable event", one_line(data.decode(errors="replace"))) from None

    def count(self, usage: dict[str, Any]) -> None:
        """Take over the server's own counts; the last ones are the whole answer's."""
        if usage:
            self.prompt_tokens, self.output_tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")

    def record(self, row: Row, begun: float) -> None:
        """Write what was measured into `row`. Raises RequestError when the answer is not a whole one."""
        if not (self.ended or self.finish_reason):
            raise RequestError("broken stream", f"the stream ended after {self.chunks} chunks, before the answer did")
        if self.first is None:
            raise RequestError("empty answer", "the stream held no choice")
        row.chunks, row.finish_reason = self.chunks, self.finish_reason
        row.output_tokens = self.chunks if self.output_tokens is None else self.output_tokens
        row.prompt_tokens = row.prompt_tokens if self.prompt_tokens is None else self.prompt_tokens
        row.cached_tokens = self.cached_tokens
        row.ttft_ms, row.e2e_ms = 1e3 * (self.first - begun), 1e3 * (self.last - begun)
        row.max_gap_ms = 1e3 * self.gap
        if row.output_tokens > 1:
            row.tpot_ms = 1e3 * (self.last - self.first) / (row.output_tokens - 1)


async def send(
    session: aiohttp.ClientSession, url: str, request: Request, run_begun: float, due: float | None = None
) -> Row:
    """Send one request and read its whole answer. `run_begun`, and `due`, its planned arrival: perf_counter s."""
    begun = time.perf_counter()
    late_ms = 0.0 if due is None else 1e3 * (begun - due)
    row = Row(request.id, begun - run_begun, late_ms, request.max_tokens, request.prompt_tokens)
    try:
        async with session.post(url + request.path, data=request.payload) as response:
            await check_stream(response)
            answer = Answer()
            async for now, line in lines(response):  # to its end, past [DONE], else the connection is not used again
                if line.startswith(b"event:"):
                    answer.failing = line[6:].strip() == b"error"
                elif line.startswith(b"data:"):
                    answer.feed(line[5:].strip(), now)
            answer.record(row, begun)
    except (RequestError, aiohttp.ClientError, OSError) as error:
        row.error, row.message = name_error(error, session)
    return row


async def check_stream(response: aiohttp.ClientResponse) -> None:
    if response.status != 200:
        raise RequestError(f"HTTP {response.status}", server_message(await response.read()))
    if response.content_type != "text/event-stream":
        raise RequestError("no stream", f"the answer is {response.content_type}, not text/event-stream")


async def lines(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, bytes]]:
    """(time of arrival, line) of each whole line."""
    rest = b""
    async for data in response.content.iter_any():
        now = time.perf_counter()
        *whole, rest = (rest + data).split(b"\n")
        for line in whole:
            yield now, line


def name_error(error: Exception, session: aiohttp.ClientSession) -> tuple[str, str]:
    """(kind, message) of what ended a request early."""
    if isinstance(error, RequestError):
        return error.kind, str(error)
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return "no connection", f"none within {session.timeout.sock_connect:g} s"
    if isinstance(error, TimeoutError):
        return "timeout", f"no whole answer within {session.timeout.total:g} s"
    if isinstance(error, aiohttp.ClientConnectorError):
        return "no connection", connect_reason(error)
    return "broken stream", one_line(str(error)) or type(error).__name__


def connect_reason(error: aiohttp.ClientOSError) -> str:
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "no such host"
    if isinstance(error, aiohttp.ClientSSLError):
        return "no TLS that can be trusted (check the certificate, or whether --url should begin with http://)"
    return os.strerror(error.errno).lower() if error.errno else one_line(str(error))


def server_message(body: bytes) -> str:
    """The sentence inside an error body: OpenAI's {"error": {"message"}}, {"message"}, {"detail"}, or plain text."""
    try:
        error: Any = json.loads(body)
    except ValueError:
        return one_line(body.decode(errors="replace")) or "(no message)"
    if isinstance(error, dict):
        error = error.get("error") or error
    if isinstance(error, dict):
        error = error.get("message") or error.get("detail") or error
    return one_line(error if isinstance(error, str) else json.dumps(error))


def one_line(text: str, longest: int = 300) -> str:
    """`text` without line breaks and control characters, cut to `longest` characters."""
    text = " ".join("".join(char if char.isprintable() else " " for char in text).split())
    return text if len(text) <= longest else text[: longest - 3] + "..."
