"""What a router costs: the same two replicas behind one, and reached directly, side by side.

    python -m tools.router.cost --rounds 5 --json result.json

Two servers of the demo model run on this machine. Each round asks one and then the other, so that both see the same
noise: streams at once for tokens a second, then single requests in turns for the first token. A router's CPU is that of
its whole process: HTTP, text, JSON schemas and wire.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

START_S = 300
SCHEMA = {
    "type": "object",
    "properties": {"days": {"type": "array", "items": {"type": "string"}, "minItems": 40}},
    "required": ["days"],
}
KINDS: dict[str, dict[str, Any]] = {
    "text": {"ignore_eos": True},
    "JSON": {"response_format": {"type": "json_schema", "json_schema": {"name": "days", "schema": SCHEMA}}},
}


@dataclass(frozen=True)
class Server:
    """A running `podslice serve`."""

    url: str
    process: subprocess.Popen[bytes]

    def router_cpu_s(self) -> float:
        """Of all its routers' processes, since they began."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        times = [each.cpu_times() for each in family if "LLMRouter" in " ".join(each.cmdline())]
        return sum(each.user + each.system for each in times)


@contextmanager
def served(port: int, routers: int, streams: int) -> Iterator[Server]:
    """Two replicas, which end with the block."""
    fields = {
        "min_replicas": 2,
        "max_replicas": 2,
        "routers": routers,
        "max_batch_size": streams,
    }
    command = [sys.executable, "-m", "podslice", "serve", "--port", str(port)]
    command += [f"{name}={value}" for name, value in fields.items()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if b"curl" in line:
                break
        else:
            raise SystemExit(f"{' '.join(command)} ended with {process.wait()}")
        yield Server(f"http://127.0.0.1:{port}", process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(START_S)


async def answered(session: aiohttp.ClientSession, url: str, tokens: int, more: dict[str, Any]) -> tuple[float, int]:
    """Seconds to the first token, and how many there were."""
    words = " ".join(random.choices(["Monday", "red", "seven", "river", "blue", "count", "name", "week"], k=20))
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": words}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    began, first_s, usage = time.perf_counter(), 0.0, b""
    async with session.post(f"{url}/v1/chat/completions", json=body | more) as answer:
        answer.raise_for_status()
        async for line in answer.content:
            if not first_s and b'"content":"' in line.replace(b" ", b"") and b'"content":""' not in line:
                first_s = time.perf_counter() - began
            if b'"usage":{' in line.replace(b" ", b""):
                usage = line
    return first_s, int(json.loads(usage.removeprefix(b"data: "))["usage"]["completion_tokens"])


async def at_once(session: aiohttp.ClientSession, server: Server, kind: str, streams: int, tokens: int) -> list[float]:
    """Tokens a second of so many streams, and the routers' CPU in microseconds a token."""
    cpu_s, began = server.router_cpu_s(), time.perf_counter()
    found = await asyncio.gather(*(answered(session, server.url, tokens, KINDS[kind]) for _ in range(streams)))
    took_s, made = time.perf_counter() - began, sum(count for _, count in found)
    return [made / took_s, (server.router_cpu_s() - cpu_s) * 1e6 / made]


async def compared(servers: dict[str, Server], given: argparse.Namespace) -> dict[str, Any]:
    """Every round's figures; prints a line for each."""
    found: dict[str, Any] = {f"{name} {kind}": [] for kind in KINDS for name in servers}
    first: dict[str, list[float]] = {name: [] for name in servers}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(600)) as session:
        for server in servers.values():  # a grammar is compiled, connections are made
            for kind in KINDS:
                await at_once(session, server, kind, given.streams, 8)
        for round in range(given.rounds):
            order = list(servers)[:: 1 if round % 2 else -1]
            for kind in KINDS:
                for name in order:
                    found[f"{name} {kind}"].append(
                        await at_once(session, servers[name], kind, given.streams, given.tokens)
                    )
            for _ in range(given.singles):
                for name in order:
                    first[name].append((await answered(session, servers[name].url, 2, KINDS["text"]))[0] * 1e3)
            print(
                f"round {round + 1}: " + ", ".join(f"{key} {runs[-1][0]:.0f}" for key, runs in found.items()),
                flush=True,
            )
    return {"at_once": found, "first_token_ms": first}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="(default: %(default)s)")
    parser.add_argument("--streams", type=int, default=32, help="at once (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream (default: %(default)s)")
    parser.add_argument(
        "--singles", type=int, default=30, help="requests of a round, one by one (default: %(default)s)"
    )
    parser.add_argument("--port", type=int, default=8100, help="the first of two (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write every figure here")
    given = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    with served(given.port, 0, given.streams) as direct, served(given.port + 1, 1, given.streams) as routed:
        found = asyncio.run(compared({"direct": direct, "routed": routed}, given))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")
    for kind in KINDS:
        direct_runs, routed_runs = (found["at_once"][f"{name} {kind}"] for name in ("direct", "routed"))
        ratios = [theirs[0] / ours[0] for ours, theirs in zip(direct_runs, routed_runs, strict=True)]
        speeds = [statistics.median(run[0] for run in runs) for runs in (direct_runs, routed_runs)]
        print(
            f"{kind}: tokens/s {speeds[0]:.0f} direct, {speeds[1]:.0f} routed, ratio {statistics.median(ratios):.3f} "
            f"({min(ratios):.3f} to {max(ratios):.3f}); router {statistics.median(run[1] for run in routed_runs):.1f} "
            "us of CPU a token"
        )
    direct_ms, routed_ms = (statistics.median(found["first_token_ms"][name]) for name in ("direct", "routed"))
    print(f"first token, median: {direct_ms:.1f} ms direct, {routed_ms:.1f} ms routed, {routed_ms - direct_ms:+.1f} ms")


if __name__ == "__main__":
    main()
