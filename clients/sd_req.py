#!/usr/bin/env python3
"""Ask a running Stable Diffusion server for pictures, several at a time, and report how long it took.

    python clients/sd_req.py --save_pictures
    python clients/sd_req.py --prompt "a red fox in the snow" --num_requests 4 --seed 7 --save_pictures
    python clients/sd_req.py --url https://pictures.example.com --num_requests 64 --batch_size 16

With --save_pictures all of them go into one file, diffusion_results.png, in the order of their requests. Exit codes:
0 all pictures came, 1 some did not (stderr says which and why), 2 bad flags, 130 Ctrl-C.
"""

import argparse
import asyncio
import io
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any
from urllib.parse import urlsplit

import httpx
from http_command import (
    CONNECT_TIMEOUT_S,
    Failure,
    Words,
    at_least_one,
    auth_header,
    base_url,
    exit_code,
    explain,
    past_proxies,
    refusal,
    seconds,
)
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

try:
    from PIL import Image
except ModuleNotFoundError:
    sys.exit("error: this client needs Pillow: .venv/bin/pip install pillow, or `make serve-sd`, which installs it")

PORT = 8000
EMPTY_CELL = (128, 128, 128)
PROMPTS = (  # within the reach of the small demo model; any other model knows them too
    "a red circle on a blue background",
    "a small yellow star above a green square on a white background",
    "a large orange triangle on a black background",
    "a purple heart on a white background",
    "a green ring to the left of a red cross on a yellow background",
    "a white square in the top left corner on a red background",
    "a small blue circle below a large orange star on a black background",
    "a black cross on a green background",
)


WORDS = Words(awaited="picture", local="Is the server running? Start it with `make serve-sd`.")


@dataclass(frozen=True)
class Result:
    """How one request ended."""

    seconds: float
    picture: Image.Image | None = None
    error: str = ""


def main() -> int:
    args = parse_args()
    return exit_code(lambda: draw(args))


def draw(args: argparse.Namespace) -> int:
    """Request, report and save the pictures; returns the exit code. Raises Failure."""
    if args.save_pictures:
        check_writable(args.output)
    began = time.perf_counter()
    results = asyncio.run(ask_all(args))
    return report(args, results, time.perf_counter() - began)


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a Stable Diffusion server for pictures.", allow_abbrev=False)

    def flag(name: str, **options: Any) -> None:
        """Under both spellings: --num_requests and --num-requests."""
        parser.add_argument(*dict.fromkeys((name, name[:2] + name[2:].replace("_", "-"))), **options)

    flag("--num_requests", type=at_least_one, default=8, help="pictures in all (default %(default)s)")
    flag("--batch_size", type=at_least_one, default=8, help="requests at the same time (default %(default)s)")
    flag("--save_pictures", action="store_true", help="save them all as one picture")
    flag("--output", type=Path, default=Path("diffusion_results.png"), help="where (default %(default)s)")
    flag("--prompt", action="append", help="what to draw; several take turns (default: a list of shapes and colors)")
    flag("--size", type=size, help="WIDTHxHEIGHT in pixels (default: the server's)")
    flag("--steps", type=at_least_one, help="denoising steps (default: the server's)")
    flag("--seed", type=seed, help="of the first picture; each further one adds 1 (default: random)")
    url = partial(base_url, endpoint="/imagine")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--url", type=url, help=f"the server (default http://localhost:{PORT})")
    where.add_argument("--ip", type=address, dest="url", help=f"the server's address, on port {PORT} unless it has one")
    flag("--api_key", help="default: $PODSLICE_API_KEY, else $OPENAI_API_KEY")
    flag("--timeout", type=seconds, default=300.0, help="longest wait for a picture, s (default %(default)g)")
    args = parser.parse_args()
    args.url = args.url or f"http://localhost:{PORT}"
    args.prompt = args.prompt or list(PROMPTS)
    if any(not prompt.strip() for prompt in args.prompt):
        parser.error("argument --prompt: is empty; say what the picture should show")
    return args


def address(text: str) -> str:
    """The URL of an IP address or host name, with or without a port."""
    url = base_url(f"[{text}]" if text.count(":") > 1 and not text.startswith("[") else text)  # IPv6
    return url if urlsplit(url).port else f"{url}:{PORT}"


def seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {2**32 - 1}")
    return int(text)


def size(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d{0,4}x[1-9]\d{0,4}", text.lower()):
        raise argparse.ArgumentTypeError(f"{text!r} is not WIDTHxHEIGHT, such as 512x512")
    return text.lower()


async def ask_all(args: argparse.Namespace) -> list[Result]:
    """One result for each request, in order; shows a progress bar on a terminal."""
    columns = (TextColumn("pictures"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True)
    timeout = httpx.Timeout(args.timeout, connect=CONNECT_TIMEOUT_S, pool=None)
    limits = httpx.Limits(max_connections=args.batch_size, max_keepalive_connections=args.batch_size)
    numbers = iter(range(args.num_requests))
    results: dict[int, Result] = {}
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as progress:
        bar = progress.add_task("pictures", total=args.num_requests)
        async with httpx.AsyncClient(
            base_url=args.url,
            headers=auth_header(args.api_key, "--api_key"),
            timeout=timeout,
            limits=limits,
            mounts=past_proxies(),
        ) as client:

            async def worker() -> None:
                for number in numbers:
                    results[number] = await ask(client, args, number)
                    progress.advance(bar)

            async with asyncio.TaskGroup() as workers:
                for _ in range(min(args.batch_size, args.num_requests)):
                    workers.create_task(worker())
    return [results[number] for number in range(args.num_requests)]


async def ask(client: httpx.AsyncClient, args: argparse.Namespace, number: int) -> Result:
    """Request one picture; the result has it, or why there is none."""
    query = {"prompt": args.prompt[number % len(args.prompt)], "size": args.size, "num_inference_steps": args.steps}
    query["seed"] = None if args.seed is None else (args.seed + number) % 2**32
    began = time.perf_counter()
    try:
        async with asyncio.timeout(args.timeout):
            params = {name: value for name, value in query.items() if value is not None}
            response = await client.get("/imagine", params=params)
        took = time.perf_counter() - began
        return Result(took, picture_of(response, args.url))
    except (httpx.HTTPError, TimeoutError, Failure) as error:
        why = str(error) if isinstance(error, Failure) else explain(error, args.url, args.timeout, WORDS)
        return Result(time.perf_counter() - began, error=why)


def picture_of(response: httpx.Response, url: str) -> Image.Image:
    if response.status_code != httpx.codes.OK:
        not_found = "Check --url: a Stable Diffusion server answers at /imagine."
        raise refusal(response, url, not_found, "--api_key", ", or with a smaller --batch_size")
    try:
        picture = Image.open(io.BytesIO(response.content))
        picture.load()
        return picture.convert("RGB")
    except Exception:  # Pillow's decoders raise errors of all kinds for bad pictures
        raise Failure(f"{url}/imagine did not answer with a picture. Is a Stable Diffusion server there?") from None


def report(args: argparse.Namespace, results: Sequence[Result], took: float) -> int:
    """Print the figures and save the pictures; returns the exit code."""
    times = sorted(result.seconds for result in results if result.picture is not None)
    print(f"{len(times)} of {len(results)} pictures in {took:.2f} s: {len(times) / took:.2f} pictures/s")
    if times:
        p95 = times[math.ceil(0.95 * len(times)) - 1]
        print(
            f"latency: mean {mean(times):.2f} s, median {median(times):.2f} s, 95% within {p95:.2f} s, "
            f"fastest {times[0]:.2f} s, slowest {times[-1]:.2f} s"
        )
    for error, count in Counter(result.error for result in results if result.error).most_common():
        requests = "1 request" if count == 1 else f"{count} requests"
        print(f"error: {requests} of {len(results)} failed: {error}", file=sys.stderr)
    if args.save_pictures and times:
        picture, columns, rows = grid([result.picture for result in results])
        save(picture, args.output)
        print(f"saved {len(times)} pictures, {columns} x {rows}, as {args.output}")
    return 0 if len(times) == len(results) else 1


def grid(pictures: Sequence[Image.Image | None]) -> tuple[Image.Image, int, int]:
    """All pictures in rows, with an empty cell for each that failed; returns (picture, columns, rows)."""
    rows = math.isqrt(len(pictures))
    columns = math.ceil(len(pictures) / rows)
    width = max(picture.width for picture in pictures if picture is not None)
    height = max(picture.height for picture in pictures if picture is not None)
    whole = Image.new("RGB", (columns * width, rows * height), EMPTY_CELL)
    for i, picture in enumerate(pictures):
        if picture is not None:
            whole.paste(picture, (i % columns * width, i // columns * height))
    return whole, columns, rows


def check_writable(path: Path) -> None:
    """Raise Failure, before any picture is requested, if they could not be saved. Leaves no file behind."""
    existed = path.exists()
    try:
        with open(path, "ab"):
            pass
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror}. Choose another place with --output.") from None
    if not existed:
        with suppress(OSError):
            path.unlink()
    if path.suffix.lower() not in Image.registered_extensions():
        raise Failure(f"cannot write {path}: {path.suffix or 'no ending'} is not a picture format. Name it .png.")


def save(picture: Image.Image, path: Path) -> None:
    try:
        picture.save(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise Failure(f"cannot write {path}: {reason}. Choose another place with --output.") from None


if __name__ == "__main__":
    sys.exit(main())
