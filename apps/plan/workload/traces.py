"""Recorded requests, as their publishers write them.

- Mooncake's JSON lines (kvcache-ai/Mooncake, FAST25-release/traces), and AIPerf's `mooncake_trace`: `timestamp` in
  milliseconds, `input_length`, `output_length`, and `hash_ids` of blocks of 512 tokens. In AIPerf's
  sessions (`session_id`), each request's prompt is all that was said before and `input_length` more, and it may have
  a `delay` in milliseconds, after the answer before it, in the place of its `timestamp`.
- Bailian's (alibaba-edu/qwen-bailian-usagetraces-anon): `timestamp` in seconds, `chat_id`, blocks of 16 tokens.
- Azure's CSV (Azure/AzurePublicDataset, AzureLLMInferenceTrace): `TIMESTAMP`, `ContextTokens`, `GeneratedTokens`.
"""

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from apps.plan.simulation.requests import Trace, TraceRequest

MOONCAKE_BLOCK, BAILIAN_BLOCK = 512, 16
AZURE = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


def read(path: Path) -> Trace:
    """The requests of a file, from the first one on.

    Raises:
        ValueError: with the line that is none of a trace.
        OSError: it cannot be read.
    """
    try:
        with path.open(newline="") as file:
            first = file.readline()
            while first and not first.strip():
                first = file.readline()
            file.seek(0)
            reader = _json_lines if first.lstrip().startswith("{") else _azure
            arrivals = list(reader(file)) if first else []
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no text: {error}") from error
    except _NoRequest as error:
        raise ValueError(f"{path}, {error}") from error.__cause__
    if not arrivals:
        raise ValueError(f"{path} has no requests")
    arrivals.sort(key=lambda arrival: arrival.at_s)
    began = arrivals[0].at_s
    return Trace([replace(arrival, at_s=arrival.at_s - began) for arrival in arrivals], source=path.name)


def digest(path: Path) -> str:
    """SHA-256 of a trace's file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


class _NoRequest(ValueError):
    """A line that is none."""


def _lines(file: Iterable[str], parse: Callable[[str], Any]) -> Iterator[tuple[int, Any]]:
    for number, line in enumerate(file, 1):
        if line.strip():
            try:
                yield number, parse(line)
            except (ValueError, TypeError, KeyError, OverflowError) as error:
                raise _NoRequest(f"line {number}: no request of a trace ({type(error).__name__}: {error})") from error


def _json_lines(file: Iterable[str]) -> Iterator[TraceRequest]:
    sessions: dict[str, TraceRequest] = {}  # the latest of each
    entries = [(number, entry) for number, entry in _lines(file, _object)]
    bailian = any("chat_id" in entry for _, entry in entries)
    answers = _answers_of_parents([entry for _, entry in entries]) if bailian else {}
    for number, entry in entries:
        try:
            arrival = _bailian(entry, answers) if bailian else _mooncake(entry, sessions)
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise _NoRequest(f"line {number}: no request of a trace ({type(error).__name__}: {error})") from error
        if arrival.session:
            sessions[arrival.session] = arrival
        yield arrival


def _object(line: str) -> dict[str, Any]:
    entry = json.loads(line)
    if not isinstance(entry, dict):
        raise ValueError("not an object")
    return entry


def _mooncake(entry: dict[str, Any], sessions: dict[str, TraceRequest]) -> TraceRequest:
    if "input_length" not in entry and ("text_input" in entry or "messages" in entry):
        raise ValueError("it has a text and no `input_length`: count its tokens with the model's tokenizer first")
    session = str(entry.get("session_id", ""))
    before = sessions.get(session) if session else None
    blocks = tuple(map(int, entry.get("hash_ids") or ()))
    if before is None:
        at = float(entry["timestamp"]) / 1000
        return _arrival(at, entry["input_length"], entry["output_length"], blocks, MOONCAKE_BLOCK, session)
    waits = "timestamp" not in entry
    delay = float(entry.get("delay") or 0) / 1000
    at = before.at_s if waits else float(entry["timestamp"]) / 1000
    said = before.prompt + before.answer
    made = _arrival(at, said + int(entry["input_length"]), entry["output_length"], (), 0, session)
    return replace(made, after_s=delay if waits else None, goes_on=True)


def _bailian(entry: dict[str, Any], answers: dict[Any, tuple[int, ...]]) -> TraceRequest:
    blocks = answers.get(entry["chat_id"]) or tuple(map(int, entry.get("hash_ids") or ()))
    return _arrival(float(entry["timestamp"]), entry["input_length"], entry["output_length"], blocks, BAILIAN_BLOCK, "")


def _answers_of_parents(entries: list[dict[str, Any]]) -> dict[Any, tuple[int, ...]]:
    """The blocks of each request whose answer another one's prompt goes on from: the answer's are in that prompt."""
    blocks = {entry.get("chat_id"): tuple(map(int, entry.get("hash_ids") or ())) for entry in entries}
    longer = {}
    for entry in entries:
        own, parent = blocks[entry.get("chat_id")], entry.get("parent_chat_id", -1)
        before = blocks.get(parent, ())
        if before and own[: len(before) - 1] == before[:-1]:  # the parent's last block is filled up by its answer
            longer[parent] = own
    return longer


def _azure(file: Iterable[str]) -> Iterator[TraceRequest]:
    rows = csv.DictReader(file)
    if missing := [name for name in AZURE if name not in (rows.fieldnames or ())]:
        raise _NoRequest(f"line 1: neither JSON nor a CSV with {', '.join(AZURE)}: {', '.join(missing)} missing")
    for row in rows:
        try:
            at = datetime.fromisoformat(row["TIMESTAMP"].strip().replace("Z", "+00:00")[:26]).timestamp()
            yield _arrival(at, row["ContextTokens"], row["GeneratedTokens"], (), 0, "")
        except (ValueError, TypeError, KeyError) as error:
            raise _NoRequest(
                f"line {rows.line_num}: no request of a trace ({type(error).__name__}: {error})"
            ) from error


def _arrival(at: float, prompt: Any, answer: Any, blocks: tuple[int, ...], size: int, session: str) -> TraceRequest:
    tokens, follow = int(prompt), int(answer)
    if tokens < 1:
        raise ValueError(f"{tokens} tokens of prompt")
    # A request that gave nothing has still computed one token.
    return TraceRequest(at, tokens, max(1, follow), blocks, size if blocks else 0, session)
