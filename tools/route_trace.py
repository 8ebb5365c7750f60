"""Where recorded requests would go: hit rates of prefix caches and shares of the work, by policy.

    python -m tools.route_trace conversation_trace.jsonl --replicas 8 --blocks 4000

Reads Mooncake's traces (kvcache-ai/Mooncake, FAST25-release/traces): a line a request with `timestamp` in milliseconds
and `hash_ids` of the prompt's blocks. Each replica has an engine's page pool of so many blocks, with `--host-blocks`
more in host memory, and computes what it lacks at the rate that keeps all of them busy for the whole trace
(`--utilization` 1).

`podslice` is the choice that an engine makes between its DP ranks (`apps.llm.placement`), fed by what the caches
announce; the others are for comparison. A load share is the busiest replica's work over the mean, in blocks computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from apps.llm.api import CacheNews
from apps.llm.engine.prefix.page_pool import PagePool
from apps.llm.page_names import PageName
from apps.llm.placement.choice import CacheChoice, EngineLoad
from apps.plan.workload import traces

BLOCK_TOKENS = 512  # of Mooncake's traces


@dataclass(frozen=True)
class Arrival:
    """A request of the trace."""

    at_s: float
    blocks: tuple[PageName, ...]  # of its prompt; a block's name stands for all before it, too


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a trace."""

    hit_rate: float  # blocks found in a cache, of all
    host_hit_rate: float  # those of them that host memory had
    load_share: float
    waits_s: tuple[float, ...]  # until a prompt is computed, ascending

    def wait_s(self, quantile: float) -> float:
        return self.waits_s[min(len(self.waits_s) - 1, int(quantile * len(self.waits_s)))]


class Replica:
    """An engine's own page pool, with a block in the place of a page, and the work that waits before it."""

    def __init__(self, blocks: int, host_blocks: int = 0, host_cost: float = 0):
        self._pool = PagePool(blocks + 1, host_total=host_blocks)
        self._number, self._host_cost = 0, host_cost
        self.waiting = self.computed = 0.0
        self.from_host = 0

    def found(self, blocks: Sequence[PageName]) -> int:
        return next((number for number, block in enumerate(blocks) if block not in self._pool.news), len(blocks))

    def take(self, blocks: Sequence[PageName]) -> int:
        """Compute a prompt; returns how many of its blocks were cached."""
        pool = self._pool
        held = pool.match(blocks)
        back = pool.bring_back(blocks[len(held) :])
        found = len(held) + len(back)
        new = pool.allocate(len(blocks) - found)
        if new is None:
            raise ValueError(f"a prompt of {len(blocks)} blocks does not fit into a cache of {pool.total - 1}")
        for page, block in zip(new, blocks[found:]):
            pool.publish(page, block)
        pool.host.take()
        pool.release([*held, *back, *new])
        self.from_host += len(back)
        self.waiting += len(new) + len(back) * self._host_cost
        self.computed += len(new) + len(back) * self._host_cost
        return found

    def news(self) -> CacheNews:
        """Since the last time."""
        news = self._pool.news.since(self._number)
        self._number = news.number
        return news


Policy = Callable[[Arrival, list[Replica]], int]


def round_robin() -> Policy:
    turns = iter(range(2**62))
    return lambda _, replicas: next(turns) % len(replicas)


def least_loaded() -> Policy:
    return lambda _, replicas: min(range(len(replicas)), key=lambda at: replicas[at].waiting)


def prefix_alone() -> Policy:
    """The longest cached prefix, whatever waits there."""
    return lambda arrival, replicas: max(range(len(replicas)), key=lambda at: replicas[at].found(arrival.blocks))


def missing_and_waiting() -> Policy:
    """The plain rule: blocks to compute, those of the queue included."""

    def choose(arrival: Arrival, replicas: list[Replica]) -> int:
        return min(range(len(replicas)), key=lambda at: replicas[at].waiting - replicas[at].found(arrival.blocks))

    return choose


def podslice(count: int, max_share: float, block_tokens: int = BLOCK_TOKENS) -> Policy:
    choice = CacheChoice(count, block_tokens, max_share)

    def choose(arrival: Arrival, replicas: list[Replica]) -> int:
        for number, replica in enumerate(replicas):
            choice.index.apply(number, replica.news())
        loads = {
            number: EngineLoad(waiting=round(replica.waiting * block_tokens)) for number, replica in enumerate(replicas)
        }
        return choice.choose(arrival.blocks, len(arrival.blocks) * block_tokens, loads, arrival.at_s)

    return choose


def run(
    trace: Sequence[Arrival],
    policy: Policy,
    count: int,
    blocks: int,
    utilization: float = 1.0,
    host_blocks: int = 0,
    host_cost: float = 0,
) -> Outcome:
    replicas = [Replica(blocks, host_blocks, host_cost) for _ in range(count)]
    asked = sum(len(arrival.blocks) for arrival in trace)
    rate = asked / max(trace[-1].at_s, 1e-9) / count / utilization  # blocks a second that a replica computes
    hits, last_s, waits = 0, 0.0, []
    for arrival in trace:
        for replica in replicas:
            replica.waiting = max(0.0, replica.waiting - rate * (arrival.at_s - last_s))
        last_s = arrival.at_s
        replica = replicas[policy(arrival, replicas)]
        hits += replica.take(arrival.blocks)
        waits.append(replica.waiting / rate)
    computed = [replica.computed for replica in replicas]
    from_host = sum(replica.from_host for replica in replicas)
    return Outcome(hits / asked, from_host / asked, max(computed) * count / max(sum(computed), 1), tuple(sorted(waits)))


def read(path: Path) -> list[Arrival]:
    """Raises ValueError with the line that is none of a trace."""
    return [
        Arrival(each.at_s, tuple(block.to_bytes(8, "little", signed=True) for block in each.blocks))
        for each in traces.read(path).arrivals
    ]


app = typer.Typer(add_completion=False)


@app.command()
def main(
    trace: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    replicas: Annotated[int, typer.Option(min=1)] = 8,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks that each replica caches.")] = 4000,
    max_share: Annotated[float, typer.Option(min=1, help="As the config's max_load_share.")] = 1.05,
    utilization: Annotated[float, typer.Option(min=0.01, help="Of the replicas, without any hit.")] = 1.0,
    host_blocks: Annotated[int, typer.Option(min=0, help="Blocks that each replica's host memory keeps.")] = 0,
    host_cost: Annotated[float, typer.Option(min=0, help="Of a block that comes back, in blocks computed.")] = 0.1,
) -> None:
    """Print the hit rate and the load share of each policy."""
    try:
        arrivals = read(trace)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    policies = {
        "round robin": round_robin(),
        "least loaded": least_loaded(),
        "prefix alone": prefix_alone(),
        "missing + waiting": missing_and_waiting(),
        "podslice": podslice(replicas, max_share),
    }
    table = Table(
        "Policy",
        "Hit rate",
        "Of host",
        "Load share",
        "Wait p50",
        "p95",
        title=f"{len(arrivals)} requests of {trace.name}",
    )
    for name, policy in policies.items():
        found = run(arrivals, policy, replicas, blocks, utilization, host_blocks, host_cost)
        waits = (f"{found.wait_s(quantile):.1f} s" for quantile in (0.5, 0.95))
        table.add_row(name, f"{found.hit_rate:.3f}", f"{found.host_hit_rate:.3f}", f"{found.load_share:.3f}", *waits)
    Console().print(table)


if __name__ == "__main__":
    app()
