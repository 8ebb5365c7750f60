#!/usr/bin/env python3
"""Measure an OpenAI-compatible server: latency and throughput of streamed completions with N requests in flight.

    python clients/bench.py                                               # random prompts; 1, 8 and 32 in flight
    python clients/bench.py --trace trace.json --concurrency 8 --repeat 3 --ignore-eos --json result.json

For arrival rates, chats, data sets and reports to share, see docs/benchmarks.md. Definitions:
  TTFT       ms from sending a request (connecting included) to its first chunk
  TPOT       ms per output token: (last chunk - first chunk) / (output tokens - 1), for answers of 2 tokens or more
  e2e        ms from sending a request to its last chunk
  tokens     what the server's usage says, else: input = token ids sent, output = chunks received
  .../s      over the wall time from the first send to the end of the last answer; failed requests count only as errors
Random prompts have the same lengths in every level and repeat but new contents, so that a server's prefix cache does
not flatter it; a --trace repeats its own.
Exit codes: 0; 1: unreachable, bad trace, or every request failed; 2: bad flags; 130: Ctrl-C.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
from http_command import Failure, at_least_one

# Only chunks with these are parsed, the others counted: the client shares the machine with the server under test.
DECODE = re.compile(rb'"error"|"usage"\s*:\s*\{')
CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')


Request = tuple[int | str, list[int] | str, int]  # id, prompt, max_tokens


def main() -> int:
    args = parse_args()
    try:
        levels = asyncio.run(bench(args))
        if args.json:
            options = {key: str(value) for key, value in vars(args).items() if key != "api_key"}
            args.json.write_text(json.dumps({"options": options, "levels": levels}, indent=1) + "\n")
        print_table(levels)
    except (Failure, OSError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    rows = [row for level in levels for repeat in level["repeats"] for row in repeat["rows"]]
    failed = [row["error"] for row in rows if "error" in row]
    if failed:
        print(f"{len(failed)} of {len(rows)} requests failed, the first so: {failed[0]}", file=sys.stderr)
    return int(len(failed) == len(rows))


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--url", default="http://localhost:8000", help="(default %(default)s)")
    add("--model", help="a model's name (default: the first that the server lists)")
    add("--api-key", default=os.environ.get("PODSLICE_API_KEY") or os.environ.get("OPENAI_API_KEY") or "")
    add("--timeout", type=float, default=600.0, metavar="S", help="a request fails after this (default %(default)g)")
    add("--trace", type=Path, metavar="FILE", help="a JSON list of {id, ids or text, max_tokens}")
    add("--requests", type=at_least_one, metavar="N", help="how many (default 32, or all of a trace)")
    add("--prompt-tokens", type=span, default=(32, 512), metavar="LOW:HIGH", help="or N; random (default 32:512)")
    add("--output-tokens", type=span, default=(128, 128), metavar="LOW:HIGH", help="or N; random (default 128)")
    add(
        "--vocab-size",
        type=at_least_one,
        default=1000,
        metavar="N",
        help="random ids are below this (default %(default)s)",
    )
    add("--ignore-eos", action="store_true", help="ask for exactly max_tokens tokens (vLLM, Podslice)")
    add("--seed", type=int, default=0, metavar="N", help="of random prompts (default %(default)s)")
    add("--concurrency", type=counts, default=[1, 8, 32], metavar="N,...", help="requests in flight (default 1,8,32)")
    add("--repeat", type=at_least_one, default=1, metavar="N", help="runs of each level; medians are shown")
    add("--warmup", type=int, default=1, metavar="N", help="requests sent at once before measuring (default 1)")
    add("--json", type=Path, metavar="FILE", help="write every figure and every request here")
    args = parser.parse_args()
    args.url = args.url.rstrip("/").removesuffix("/v1")
    if not args.url.startswith(("http://", "https://")):
        parser.error(f"argument --url: {args.url!r} is not a server's address; write it like http://localhost:8000")
    return args


def counts(text: str) -> list[int]:
    return [at_least_one(part) for part in text.split(",")]


def span(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    bounds = at_least_one(low), at_least_one(high or low)
    if bounds[0] > bounds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} runs backwards; write LOW:HIGH")
    return bounds


async def bench(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Warm up, then run every level as often as asked."""
    headers = {"Authorization": f"Bearer {args.api_key}"} if args.api_key else {}
    timeout = aiohttp.ClientTimeout(total=args.timeout, sock_connect=10)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # below any server's own, else races with its close
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:
        args.model = await find_model(session, args)
        trace = read_trace(args.trace)[: args.requests] if args.trace else None
        await run(session, args, (trace or random_requests(args, -1))[: args.warmup], max(1, args.warmup))
        levels = []
        for level, concurrency in enumerate(args.concurrency):
            runs = range(level * args.repeat, (level + 1) * args.repeat)
            repeats = [await run(session, args, trace or random_requests(args, number), concurrency) for number in runs]
            shared = [name for name in repeats[0] if name != "rows" and all(name in repeat for repeat in repeats)]
            medians = {name: statistics.median(repeat[name] for repeat in repeats) for name in shared}
            levels.append({"concurrency": concurrency, "medians": medians, "repeats": repeats})
        return levels


async def find_model(session: aiohttp.ClientSession, args: argparse.Namespace) -> str:
    """--model, else the first that the server lists; the server must be reachable in either case."""
    try:
        async with session.get(f"{args.url}/v1/models") as response:
            if args.model:
                return args.model
            if response.status != 200:
                raise Failure(f"{args.url}/v1/models answered {response.status}. Check --url and --api-key.")
            return str((await response.json())["data"][0]["id"])
    except (ValueError, LookupError, TypeError):
        raise Failure(f"{args.url} lists no model. Publish one, or name one with --model.") from None
    except (aiohttp.ClientError, TimeoutError) as error:
        raise Failure(f"cannot reach {args.url}: {error}. Is the server running? Start it with `make serve`.") from None


def random_requests(args: argparse.Namespace, number: int) -> list[Request]:
    """Draw random prompts: lengths depend on the seed only, contents also on the number of the run."""
    lengths, contents = random.Random(args.seed), random.Random(f"{args.seed} {number}")
    first_id = min(100, args.vocab_size // 10)  # the lowest ids are often special tokens
    found: list[Request] = []
    for id in range(args.requests or 32):
        size, max_tokens = lengths.randint(*args.prompt_tokens), lengths.randint(*args.output_tokens)
        found.append((id, contents.choices(range(first_id, args.vocab_size), k=size), max_tokens))
    return found


def read_trace(path: Path) -> list[Request]:
    try:
        return [
            (item.get("id", number), item.get("ids") or item["text"], item["max_tokens"])
            for number, item in enumerate(json.loads(path.read_text()) or [{}])
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        wanted = '[{"id": 0, "ids": [1, 2] or "text": "...", "max_tokens": 128}, ...]'
        raise Failure(f"cannot read the trace {path} ({type(error).__name__}: {error}); it must be {wanted}") from None


async def run(
    session: aiohttp.ClientSession, args: argparse.Namespace, requests: list[Request], concurrency: int
) -> dict[str, Any]:
    """Send all requests, `concurrency` in flight; returns the figures, and the rows in order of completion."""
    rows: list[dict[str, Any]] = []
    queue = iter(requests)

    async def work() -> None:
        for request in queue:
            rows.append(await send(session, args, request))

    begun = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    wall_s = time.perf_counter() - begun
    good = [row for row in rows if "error" not in row]
    figures = {"requests": len(rows), "errors": len(rows) - len(good), "wall_s": wall_s}
    figures["requests_per_s"] = len(good) / wall_s
    figures["input_tokens_per_s"] = sum(row["prompt_tokens"] for row in good) / wall_s
    figures["output_tokens_per_s"] = sum(row["output_tokens"] for row in good) / wall_s
    figures["cached_tokens"] = sum(row["cached_tokens"] for row in good)
    for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
        values = sorted(row[name] for row in good if name in row)
        for part in (50, 95, 99) if values else ():
            figures[f"{name}_p{part}"] = values[min(len(values) - 1, len(values) * part // 100)]
    return figures | {"rows": rows}


async def send(session: aiohttp.ClientSession, args: argparse.Namespace, request: Request) -> dict[str, Any]:
    """Send one request and measure it; figures that do not exist (after an error, TPOT of one token) are left out."""
    id, prompt, max_tokens = request
    body = {"model": args.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    body |= {"ignore_eos": True} if args.ignore_eos else {}
    begun, done = time.perf_counter(), False
    arrivals: list[float] = []
    usage: dict[str, Any] = {}
    try:
        async with session.post(f"{args.url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise Failure(f"HTTP {response.status}: {(await response.text())[:300]}")
            async for now, data in events(response):
                if DECODE.search(data):
                    event = json.loads(data)
                    if event.get("error"):
                        raise Failure(f"error in the stream: {event['error']}")
                    usage = event.get("usage") or usage
                if CHOICE.search(data):
                    arrivals.append(now)
                done = data == b"[DONE]"
        if not (done and arrivals):
            raise Failure(f"the stream ended after {len(arrivals)} chunks, before the answer did")
    except (Failure, aiohttp.ClientError, OSError, ValueError) as error:  # a timeout is an OSError with no text
        return {"id": id, "error": str(error) or f"no whole answer within {args.timeout:g} s"}
    tokens, first, last = usage.get("completion_tokens", len(arrivals)), arrivals[0], arrivals[-1]
    return {
        "id": id,
        "prompt_tokens": usage.get("prompt_tokens", len(prompt)),
        "cached_tokens": (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0,
        "output_tokens": tokens,
        "ttft_ms": 1e3 * (first - begun),
        "e2e_ms": 1e3 * (last - begun),
        **({"tpot_ms": 1e3 * (last - first) / (tokens - 1)} if tokens > 1 else {}),
    }


async def events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[float, bytes]]:
    """(time of arrival, data) of each event."""
    rest = b""
    async for chunk in response.content.iter_any():
        now = time.perf_counter()
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield now, line[5:].strip()


def print_table(levels: list[dict[str, Any]]) -> None:
    """Print a column for each level."""
    found = [{"requests in flight": level["concurrency"], **level["medians"]} for level in levels]
    for name in found[0]:
        values = (figures.get(name) for figures in found)
        cells = ("-" if v is None else f"{v:,.0f}" if v >= 100 or v == int(v) else f"{v:.2f}" for v in values)
        print(f"{name:24}" + "".join(f"{cell:>12}" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
