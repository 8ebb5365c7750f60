#!/usr/bin/env python3
"""Measure an OpenAI-compatible server: latency and throughput of streamed answers under load.

    python clients/bench.py                                               # random prompts at concurrency 1, 8 and 32
    python clients/bench.py --trace trace.json --concurrency 8 --repeat 3 --ignore-eos --json result.json
    python clients/bench.py --jsonl requests.jsonl --rate 0.5,2           # Poisson arrivals, 0.5 then 2 each second

A *level* is a number of requests kept in flight (closed loop) or an arrival rate (open loop). All of the work runs
once per level and repeat. Definitions:
  TTFT       ms from sending a request (connecting included) to its first chunk with a choice; a chat's role alone
             is no such chunk
  TPOT       ms per output token: (last chunk - first chunk) / (output tokens - 1), for answers of 2 tokens or more
  e2e        ms from sending a request to its last chunk
  tokens     what the server's usage says, else: input = token ids sent, output = chunks received
  .../s      over the wall time from the first send to the end of the last answer; failed requests count only as errors
  cpu        1.0 = one core busy all the time; server = --pid and its descendants; other = neither server nor client
Synthetic prompts have the same lengths in every level and repeat but new contents, so that a server's prefix cache
does not flatter it; --trace and --jsonl repeat theirs, and a note says how much of them came from such a cache.
Exit codes: 0, 1 (unreachable, bad input, or every request failed), 2 (bad flags), 130 (Ctrl-C; prints what it has).
"""

import argparse
import asyncio
import json
import math
import os
import random
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
from bench_report import Level, Run, print_report, write_json
from bench_stream import connect_reason, send, server_message
from bench_work import Request, WorkError, read_work
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

try:
    import psutil
except ImportError:  # only --pid needs it
    psutil = None

CONNECT_TIMEOUT_S = 10.0
MODELS_TIMEOUT_S = 30.0
LOG_EVERY_S = 5.0


class Failure(Exception):
    """What went wrong and what to do about it, in one line."""


def main() -> int:
    args = parse_args()
    runs: list[Run] = []
    interrupted = False
    try:
        try:
            asyncio.run(bench(args, runs))
        except KeyboardInterrupt:
            interrupted = True
        saved = save(args, runs, interrupted) if runs else True
        if runs:
            print_report(runs)
    except (Failure, WorkError) as failure:
        print(f"error: {failure}", file=sys.stderr)
        return 1
    except OSError as error:  # requests have their own: only stdout is left
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else the interpreter's last flush complains
        print(f"error: cannot write the table: {error.strerror}. Check where stdout goes.", file=sys.stderr)
        return 1
    if interrupted:
        return 130
    if not saved:
        return 1
    if not any(run.good for run in runs):
        print("error: every request failed. The first of each kind is shown above.", file=sys.stderr)
        return 1
    return 0


def save(args: argparse.Namespace, runs: list[Run], interrupted: bool) -> bool:
    """Write --json, if asked for, before the table is printed; whether that went well."""
    options = {key: str(value) if isinstance(value, Path) else value for key, value in vars(args).items()}
    options = {key: value for key, value in options.items() if key not in ("api_key", "levels")}
    try:
        if args.json:
            write_json(args.json, options, runs, interrupted)
        return True
    except OSError as error:
        print(f"error: cannot write {args.json}: {error.strerror}. The table has the figures.", file=sys.stderr)
        return False


# ---- flags


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage="%(prog)s [flags]"
    )
    group = parser.add_argument_group("the server")
    add = group.add_argument
    add("--url", type=base_url, default="http://localhost:8000", help="(default %(default)s)")
    add("--model", help="a model's name (default: the first that the server lists)")
    add("--api-key", help="default: $PODSLICE_API_KEY, else $OPENAI_API_KEY")
    add("--timeout", type=positive, default=600.0, metavar="S", help="a request fails after it (default %(default)g)")

    group = parser.add_argument_group("the work")
    files = group.add_mutually_exclusive_group()
    files.add_argument("--trace", type=Path, metavar="FILE", help="a JSON list of {id, ids, text, max_tokens}")
    files.add_argument(
        "--jsonl", type=Path, metavar="FILE", help="a body on each line: {prompt|messages, max_tokens, ...}"
    )
    add = group.add_argument
    add("--requests", type=count, metavar="N", help="how many (default 32; of a file: its first N, default all)")
    add("--prompt", choices=("ids", "text"), default="ids", help="send token ids or text (default %(default)s)")
    add("--prompt-tokens", type=span, default=(32, 512), metavar="LOW:HIGH", help="or N; synthetic (default 32:512)")
    add("--output-tokens", type=span, default=(128, 128), metavar="LOW:HIGH", help="or N; synthetic (default 128)")
    add("--vocab-size", type=count, default=1000, metavar="N", help="synthetic ids are below it (default %(default)s)")
    add("--ignore-eos", action="store_true", help="ask for exactly max_tokens tokens (vLLM, Podslice)")
    add("--seed", type=int, default=0, metavar="N", help="of synthetic work and arrivals (default %(default)s)")

    group = parser.add_argument_group("the load")
    levels = group.add_mutually_exclusive_group()
    levels.add_argument("--concurrency", dest="levels", type=concurrencies, metavar="N,...", help="default 1,8,32")
    levels.add_argument("--rate", dest="levels", type=rates, metavar="R,...", help="requests/s, Poisson arrivals")
    add = group.add_argument
    add("--repeat", type=count, default=1, metavar="N", help="runs of each level; medians are shown")
    add("--warmup", type=whole, default=1, metavar="N", help="requests sent at once before measuring (default 1)")

    group = parser.add_argument_group("the results")
    add = group.add_argument
    add("--json", type=Path, metavar="FILE", help="write every figure and every request here")
    add("--pid", type=int, help="the server's process: adds CPU shares and the sum of peak RSS (needs psutil)")
    args = parser.parse_args()
    args.levels = args.levels or concurrencies("1,8,32")
    if args.json and (args.json.is_dir() or not os.access(args.json.absolute().parent, os.W_OK)):
        parser.error(f"argument --json: cannot write {args.json}; name a file in a folder that exists")
    if args.pid is not None and psutil is None:
        parser.error("argument --pid: needs psutil; pip install psutil")
    if args.pid is not None and not psutil.pid_exists(args.pid):
        parser.error(f"argument --pid: no process {args.pid} on this machine")
    return args


def base_url(text: str) -> str:
    """`localhost:8000`, `http://localhost:8000/` and `http://localhost:8000/v1` are the same server."""
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    url = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(url)
        valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        valid = False
    if not valid:
        raise argparse.ArgumentTypeError(f"{text!r} is not a server's address; write it like http://localhost:8000")
    return url


def whole(text: str, least: int = 0) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
    return int(text)


def count(text: str) -> int:
    return whole(text, least=1)


def positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def span(text: str) -> tuple[int, int]:
    low, _, high = text.partition(":")
    bounds = count(low), count(high or low)
    if bounds[0] > bounds[1]:
        raise argparse.ArgumentTypeError(f"{text!r} runs backwards; write LOW:HIGH")
    return bounds


def concurrencies(text: str) -> list[Level]:
    return [Level(concurrency=count(part)) for part in text.split(",")]


def rates(text: str) -> list[Level]:
    return [Level(rate=positive(part)) for part in text.split(",")]


# ---- running


async def bench(args: argparse.Namespace, runs: list[Run]) -> None:
    """Warm up, then run every level; `runs` grows as they begin, so that an interrupt leaves what there is."""
    headers = request_headers(args.api_key)
    args.model = await find_model(args, headers)
    work = read_work(args)
    await warm_up(args, headers, work(-1)[: args.warmup])
    for level in args.levels:
        for repeat in range(args.repeat):
            requests = work(len(runs))
            run = Run(level, repeat, len(requests))
            runs.append(run)
            async with progress(run, args.repeat), measured(run, args.pid):
                await carry_out(args, headers, run, requests)


def request_headers(flag: str | None) -> dict[str, str]:
    key = (flag or os.environ.get("PODSLICE_API_KEY") or os.environ.get("OPENAI_API_KEY") or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise Failure("the API key holds characters that no HTTP header can carry. Check --api-key, PODSLICE_API_KEY.")
    return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})


async def find_model(args: argparse.Namespace, headers: dict[str, str]) -> str:
    """--model, else the first that the server lists; the server must be there in either case."""
    timeout = aiohttp.ClientTimeout(total=MODELS_TIMEOUT_S, sock_connect=CONNECT_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(headers=headers, timeout=timeout) as session,
            session.get(f"{args.url}/v1/models") as response,
        ):
            status, body = response.status, await response.read()
    except aiohttp.ClientConnectorError as error:
        raise Failure(unreachable(args.url, connect_reason(error))) from None
    except aiohttp.ConnectionTimeoutError:
        raise Failure(unreachable(args.url, f"no connection within {CONNECT_TIMEOUT_S:g} s")) from None
    except TimeoutError:
        raise Failure(unreachable(args.url, f"no answer to /v1/models within {MODELS_TIMEOUT_S:g} s")) from None
    except (aiohttp.ClientError, OSError) as error:
        raise Failure(unreachable(args.url, str(error) or type(error).__name__)) from None
    if args.model:
        return args.model
    if status != 200:
        advice = "Pass --api-key." if status in (401, 403) else "Check --url, or name the model with --model."
        raise Failure(f"{args.url}/v1/models answered {status}: {server_message(body).rstrip('.')}. {advice}")
    try:
        models = json.loads(body)["data"]
        if models:
            return str(models[0]["id"])
    except (ValueError, LookupError, TypeError):
        raise Failure(f"{args.url}/v1/models is not a list of models. Is --url OpenAI-compatible?") from None
    raise Failure(f"{args.url} serves no model yet. Publish one, wait until it is loaded, or name one with --model.")


def unreachable(url: str, reason: str) -> str:
    local = urlsplit(url).hostname in ("localhost", "127.0.0.1", "::1")
    start = "Start it with `make serve`." if local else "Check --url, and port-forward if it is in a cluster."
    return f"cannot reach {url}: {reason}. Is the server running? {start}"


async def warm_up(args: argparse.Namespace, headers: dict[str, str], requests: list[Request]) -> None:
    run = Run(Level(concurrency=max(1, len(requests))), 0, len(requests))
    await carry_out(args, headers, run, requests)
    failed = [row for row in run.rows if row.error]
    if failed:
        print(f"warm-up: {len(failed)} of {run.planned} failed, first: {failed[0].message}", file=sys.stderr)


async def carry_out(args: argparse.Namespace, headers: dict[str, str], run: Run, requests: list[Request]) -> None:
    """Send all requests as run.level says and wait for their ends; the rows come in the order of those."""
    timeout = aiohttp.ClientTimeout(total=args.timeout, sock_connect=CONNECT_TIMEOUT_S)
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2)  # below any server's own, else races with its close
    async with aiohttp.ClientSession(headers=headers, timeout=timeout, connector=connector) as session:

        async def one(request: Request, due: float | None = None) -> None:
            run.sent += 1
            run.rows.append(await send(session, args.url, request, run.begun, due))

        run.begun = time.perf_counter()
        try:
            async with asyncio.TaskGroup() as group:
                if run.level.concurrency:
                    queue = iter(requests)
                    for _ in range(min(run.level.concurrency, len(requests))):
                        group.create_task(each(one, queue))
                else:
                    for due, request in arrivals(run, requests, args.seed):
                        await asyncio.sleep(due - time.perf_counter())
                        group.create_task(one(request, due))
        finally:
            run.wall_s = time.perf_counter() - run.begun


async def each(one: Callable[[Request], Awaitable[None]], queue: Iterator[Request]) -> None:
    for request in queue:
        await one(request)


def arrivals(run: Run, requests: list[Request], seed: int) -> Iterator[tuple[float, Request]]:
    """(planned time, request): a Poisson process, the same for a seed at every rate but for its scale."""
    gaps, due = random.Random(seed), run.begun
    for request in requests:
        yield due, request
        due += gaps.expovariate(run.level.rate)


@asynccontextmanager
async def measured(run: Run, pid: int | None) -> AsyncIterator[None]:
    """Fill in run.usage, also when the run is cut short."""
    client, server, machine = time.process_time(), tree_cpu_s(pid), machine_cpu_s()
    begun = time.perf_counter()
    try:
        yield
    finally:
        wall_s = time.perf_counter() - begun
        run.usage["client_cpu"] = (time.process_time() - client) / wall_s
        if pid is not None:
            run.usage["server_cpu"] = max(0.0, tree_cpu_s(pid) - server) / wall_s
            busy = (machine_cpu_s() - machine) / wall_s
            run.usage["other_cpu"] = max(0.0, busy - run.usage["client_cpu"] - run.usage["server_cpu"])
            run.usage["server_peak_rss_mib"] = tree_peak_rss_mib(pid)


def tree(pid: int | None) -> list["psutil.Process"]:
    try:
        return [] if pid is None else [(root := psutil.Process(pid)), *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def tree_cpu_s(pid: int | None) -> float:
    total = 0.0
    for process in tree(pid):
        try:
            times = process.cpu_times()
            total += times.user + times.system
        except psutil.Error:
            continue
    return total


def tree_peak_rss_mib(pid: int) -> float | None:
    """The sum of each process's own peak (Linux); pages that processes share count once for each."""
    total_kib = 0
    for process in tree(pid):
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
            total_kib += sum(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
        except OSError:
            continue
    return total_kib / 1024 or None


def machine_cpu_s() -> float:
    if psutil is None:
        return 0.0
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0) + getattr(times, "softirq", 0)


@asynccontextmanager
async def progress(run: Run, repeats: int) -> AsyncIterator[None]:
    """A bar on a terminal, else a log line every few seconds and one at the end; both on stderr."""
    title = f"level {run.level}" + (f", repeat {run.repeat + 1}/{repeats}" if repeats > 1 else "")
    console = Console(stderr=True, highlight=False)
    task = asyncio.create_task(show_bar(run, title, console) if console.is_terminal else log_lines(run, title, console))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not console.is_terminal:
            log(run, title, console)


async def show_bar(run: Run, title: str, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(title, total=run.planned)
        while True:
            errors = len(run.rows) - len(run.good)
            bar.update(task, completed=len(run.rows), description=title + (f", {errors} errors" if errors else ""))
            bar.refresh()
            await asyncio.sleep(0.3)


async def log_lines(run: Run, title: str, console: Console) -> None:
    while True:
        await asyncio.sleep(LOG_EVERY_S)
        log(run, title, console)


def log(run: Run, title: str, console: Console) -> None:
    elapsed = time.perf_counter() - run.begun
    errors = len(run.rows) - len(run.good)
    console.print(f"{title}: {len(run.rows)}/{run.planned} requests, {errors} errors, {elapsed:.1f} s", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
