"""Where recorded requests would go: hit rates of prefix caches and shares of the work, by policy.

    python -m tools.route_trace conversation_trace.jsonl --replicas 8 --blocks 4000

Reads Mooncake's traces (kvcache-ai/Mooncake, FAST25-release/traces): a line a request with `timestamp` in milliseconds
and `hash_ids` of the prompt's blocks. Each replica caches so many blocks, least recently used first out, and computes
what its cache lacks at the rate that keeps all of them busy for the whole trace (`--utilization` 1).

`podslice` is the choice that an engine makes between its DP ranks (`apps.llm.placement`), fed by what the caches
announce; the others are for comparison. A load share is the busiest replica's work over the mean, in blocks computed.
"""

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from apps.llm.api import CacheNews
from apps.llm.page_names import PageName
from apps.llm.placement.choice import CacheChoice, EngineLoad

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
    load_share: float
    waits_s: tuple[float, ...]  # until a prompt is computed, ascending

    def wait_s(self, quantile: float) -> float:
        return self.waits_s[min(len(self.waits_s) - 1, int(quantile * len(self.waits_s)))]


class Replica:
    """A cache of so many blocks, and the work that waits before it."""

    def __init__(self, blocks: int):
        self._room, self._cached = blocks, OrderedDict[PageName, None]()
        self._news, self._number = dict[PageName, bool](), 0
        self.waiting = self.computed = 0.0

    def found(self, blocks: Sequence[PageName]) -> int:
        return next((number for number, block in enumerate(blocks) if block not in self._cached), len(blocks))

    def take(self, blocks: Sequence[PageName]) -> int:
        """Compute a prompt; returns how many of its blocks were cached."""
        found = self.found(blocks)
        self.waiting += len(blocks) - found
        self.computed += len(blocks) - found
        for block in blocks:
            if block not in self._cached:
                self._news[block] = True
            self._cached[block] = None
            self._cached.move_to_end(block)
        while len(self._cached) > self._room:
            self._news[self._cached.popitem(last=False)[0]] = False
        return found

    def news(self) -> CacheNews:
        news, self._news, self._number = self._news, {}, self._number + 1
        stored = tuple(block for block, there in news.items() if there)
        forgotten = tuple(block for block, there in news.items() if not there)
        return CacheNews(number=self._number, stored=stored, forgotten=forgotten)


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


def run(trace: Sequence[Arrival], policy: Policy, count: int, blocks: int, utilization: float = 1.0) -> Outcome:
    replicas = [Replica(blocks) for _ in range(count)]
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
    return Outcome(hits / asked, max(computed) * count / max(sum(computed), 1), tuple(sorted(waits)))


def read(path: Path) -> list[Arrival]:
    """Raises ValueError with the line that is none of a trace."""
    arrivals = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            entry = json.loads(line)
            blocks = tuple(int(block).to_bytes(8, "little") for block in entry["hash_ids"])
            arrivals.append(Arrival(entry["timestamp"] / 1000, blocks))
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise ValueError(
                f"{path}, line {number}: no request of a trace ({type(error).__name__}: {error})"
            ) from error
    if not arrivals:
        raise ValueError(f"{path} has no requests")
    return arrivals


app = typer.Typer(add_completion=False)


@app.command()
def main(
    trace: Annotated[Path, typer.Argument(exists=True, dir_okay=False)],
    replicas: Annotated[int, typer.Option(min=1)] = 8,
    blocks: Annotated[int, typer.Option(min=1, help="Blocks that each replica caches.")] = 4000,
    max_share: Annotated[float, typer.Option(min=1, help="As the config's max_load_share.")] = 1.05,
    utilization: Annotated[float, typer.Option(min=0.01, help="Of the replicas, without any hit.")] = 1.0,
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
        "Policy", "Hit rate", "Load share", "Wait p50", "p95", title=f"{len(arrivals)} requests of {trace.name}"
    )
    for name, policy in policies.items():
        found = run(arrivals, policy, replicas, blocks, utilization)
        waits = (f"{found.wait_s(quantile):.1f} s" for quantile in (0.5, 0.95))
        table.add_row(name, f"{found.hit_rate:.3f}", f"{found.load_share:.3f}", *waits)
    Console().print(table)


if __name__ == "__main__":
    app()
