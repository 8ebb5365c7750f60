"""Recorded requests against running replicas: hit rates, load shares and first tokens, by who chooses the replica.

    python -m tools.route_live conversation_trace.jsonl --requests 1500 --seconds 240

Toy models behind Ray Serve, each with 4,000 pages of 16 tokens. Mooncake's trace (see `tools.route_trace`) is replayed
with all its lengths divided by 32: a block of 512 tokens becomes a page. `podslice` is the routers' choice, over their
wire; the others are Ray Serve's own request routers, over its handles: round robin, the shorter queue of two, and
`PrefixCacheAffinityRouter`, by default and with a bound on queues. Beside them stands what `tools.route_trace` makes of
the same requests: no replica is slower than another there, and an answer takes no time.

Hit rate and load share are by the replicas' own count: prompt tokens found in the cache, of all; the busiest one's
tokens computed, over the mean.
"""

import asyncio
import json
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

SCALE, PAGE, PAGES = 32, 16, 4000
LONGEST = 8192
SIZES = {"tiny": True, "max_model_len": LONGEST, "page_size": PAGE, "pages": PAGES + 1, "max_batch_size": 16}
APP, OURS = "live", "podslice"
AFFINITY = "ray.llm._internal.serve.routing_policies.prefix_aware.prefix_aware_router:PrefixCacheAffinityRouter"
ROUTERS: dict[str, tuple[str, dict[str, Any]]] = {
    "round robin": ("ray.serve.experimental.round_robin_router:RoundRobinRouter", {}),
    "shorter of two queues": ("ray.serve._private.request_router:PowerOfTwoChoicesRequestRouter", {}),
    "Ray's prefix affinity": (AFFINITY, {}),
    "that with bounded queues": (AFFINITY, {"imbalanced_threshold": 8}),
}


@dataclass(frozen=True)
class Asked:
    """A request of the trace. Ray's class reads `prompt`."""

    at_s: float
    ids: tuple[int, ...]
    prompt: str
    answer: int  # tokens


@dataclass(frozen=True)
class Replayed:
    """What became of a trace."""

    hit_rate: float
    load_share: float
    first_s: tuple[float, ...]  # until each request's first token, ascending
    tokens_per_s: float


def read(path: Path, count: int, seconds: float) -> list[Asked]:
    """The first requests of a trace, to be sent within so many seconds."""
    lines = [json.loads(line) for line in path.read_text().splitlines()[:count]]
    last = max(line["timestamp"] for line in lines)
    return [
        Asked(
            line["timestamp"] / max(last, 1) * seconds,
            tuple(token for block in line["hash_ids"] for token in block_ids(block))[: line["input_length"] // SCALE],
            "".join(f"{block:0{PAGE}x}" for block in line["hash_ids"]),
            max(1, line["output_length"] // SCALE),
        )
        for line in lines
        if line["input_length"] >= SCALE and line["input_length"] + line["output_length"] < SCALE * (LONGEST - PAGE)
    ]


def block_ids(block: int) -> list[int]:
    """The tokens that stand for a block."""
    return random.Random(block).choices(range(300, 30_000), k=PAGE)


class Replica:
    """An engine that routers reach over the wire, and handles by calls."""

    def __init__(self) -> None:
        from ray import serve

        from apps.llm.router.wire.served import ServedEngine
        from apps.llm.text import Engine

        self._engine = Engine.load("toy", **SIZES)
        name = serve.get_replica_context().replica_id.unique_id
        self._served = ServedEngine(self._engine.tokens, "127.0.0.1", name)

    def endpoint(self) -> Any:
        return self._served.endpoint

    def counts(self) -> tuple[int, int]:
        """Tokens of prompts that were computed, and those that were cached."""
        stats = self._engine.stats()
        return stats.prompt_tokens, stats.prefix_hit_tokens

    async def answer(self, asked: Asked) -> AsyncIterator[int]:
        """Says how many tokens there are so far."""
        async for tokens in answered(self._engine, asked):
            yield tokens


async def answered(model: Any, asked: Asked) -> AsyncIterator[int]:
    """How many tokens of the answer there are, at each new one."""
    from apps.llm.text import SamplingParams

    params = SamplingParams(max_tokens=asked.answer, ignore_eos=True, temperature=0)
    generation = model.submit(asked.ids, params, asyncio.get_running_loop(), wait=False)
    await asyncio.wrap_future(generation.queued)
    tokens = 0
    async for output in generation:
        tokens += len(output.token_ids)
        yield tokens


Ask = Callable[[Asked], AsyncIterator[int]]


@asynccontextmanager
async def by_handle(handle: Any) -> AsyncIterator[Ask]:
    streaming = handle.options(stream=True, method_name="answer")

    async def ask(asked: Asked) -> AsyncIterator[int]:
        async for tokens in streaming.remote(asked):
            yield tokens

    yield ask


@asynccontextmanager
async def by_fleet(handle: Any) -> AsyncIterator[Ask]:
    from apps.llm.running_engines import RunningEngines
    from apps.llm.text import Engine
    from ray_configs.llm import EngineConfig

    engines = RunningEngines(handle)
    fleet = await asyncio.to_thread(engines.start, 1.05)
    while len(fleet.members) < len(await handle.broadcast("endpoint").results_async()):
        await asyncio.sleep(0.1)
    model = await asyncio.to_thread(Engine.over, EngineConfig(model="toy", **SIZES), fleet)
    yield partial(answered, model)
    engines.close()
    fleet.shutdown()


async def replayed(trace: list[Asked], ask: Ask, counts: Callable[[], Awaitable[list[tuple[int, int]]]]) -> Replayed:
    """Send each request at its time, whatever became of those before."""
    first_s, tokens, began = list[float](), 0, time.monotonic()

    async def one(asked: Asked) -> None:
        nonlocal tokens
        await asyncio.sleep(began + asked.at_s - time.monotonic())
        sent, so_far = time.monotonic(), 0
        async for made in ask(asked):
            if not so_far:
                first_s.append(time.monotonic() - sent)
            so_far = made
        tokens += so_far

    await asyncio.gather(*map(one, trace))
    took_s, found = time.monotonic() - began, await counts()
    computed, cached = zip(*found, strict=True)
    share = max(computed) * len(computed) / max(sum(computed), 1)
    return Replayed(sum(cached) / (sum(computed) + sum(cached)), share, tuple(sorted(first_s)), tokens / took_s)


async def measured(policy: str, trace: list[Asked], replicas: int) -> Replayed:
    from ray import serve
    from ray.serve.config import RequestRouterConfig

    name, settings = ROUTERS.get(policy, ROUTERS["round robin"])
    deployed: Any = serve.deployment(Replica).options(
        num_replicas=replicas,
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=10_000,
        health_check_timeout_s=300,
        request_router_config=RequestRouterConfig(request_router_class=name, request_router_kwargs=settings),
    )
    handle = await asyncio.to_thread(serve.run, deployed.bind(), name=APP, route_prefix=None)

    async def counts() -> list[tuple[int, int]]:
        return await handle.broadcast("counts").results_async()

    async with by_handle(handle) if policy in ROUTERS else by_fleet(handle) as ask:
        found = await replayed(trace, ask, counts)
    await asyncio.to_thread(serve.delete, APP)
    return found


def simulated(trace: list[Asked], policy: str, replicas: int) -> str:
    from tools.route_trace import Arrival, least_loaded, podslice, round_robin, run

    policies = {
        OURS: podslice(replicas, 1.05, PAGE),
        "round robin": round_robin(),
        "shorter of two queues": least_loaded(),
    }
    if policy not in policies:
        return ""
    blocks = [[asked.ids[at : at + PAGE] for at in range(0, len(asked.ids), PAGE)] for asked in trace]
    arrivals = [
        Arrival(asked.at_s, tuple(repr(block).encode() for block in each))
        for asked, each in zip(trace, blocks, strict=True)
    ]
    return f"{run(arrivals, policies[policy], replicas, PAGES).hit_rate:.3f}"


def main(
    trace: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    replicas: Annotated[int, typer.Option(min=2)] = 4,
    requests: Annotated[int, typer.Option(min=1, help="Of the trace, from its beginning.")] = 1500,
    seconds: Annotated[float, typer.Option(min=1, help="In which they are sent.")] = 240,
    policies: Annotated[str, typer.Option(help="Comma-separated.")] = ",".join([OURS, *ROUTERS]),
) -> None:
    """Print a line for each policy as it is measured."""
    import ray

    wanted = policies.split(",")
    if unknown := set(wanted) - {OURS, *ROUTERS}:
        raise typer.BadParameter(f"{', '.join(sorted(unknown))}: no such policy", param_hint="--policies")
    asked = read(trace, requests, seconds)
    ray.init(log_to_driver=False, logging_level="ERROR")
    prompts, answers = sum(len(each.ids) for each in asked), sum(each.answer for each in asked)
    print(
        f"{len(asked)} requests, {prompts} tokens of prompts and {answers} of answers, {replicas} replicas", flush=True
    )
    print("policy                    hit rate  simulated  load share  first token p50     p95  tokens/s", flush=True)
    for policy in wanted:
        found = asyncio.run(measured(policy, asked, replicas))
        p50, p95 = (found.first_s[int(quantile * len(found.first_s))] for quantile in (0.5, 0.95))
        print(
            f"{policy:25} {found.hit_rate:8.3f} {simulated(asked, policy, replicas):>10} {found.load_share:11.3f} "
            f"{p50:14.2f} s {p95:5.2f} s {found.tokens_per_s:9.1f}",
            flush=True,
        )
    ray.shutdown()


if __name__ == "__main__":
    typer.run(main)
