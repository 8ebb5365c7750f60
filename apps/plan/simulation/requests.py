"""Requests as a simulation needs them: when, how long, and which blocks of their prompts are whose."""

import math
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from apps.llm.page_names import PageName


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """A request."""

    at_s: float  # since the first; without meaning where so many run at a time
    prompt: int  # tokens
    answer: int
    blocks: tuple[int, ...] = ()  # of the prompt, and of the answer as far as known: equal ones have equal tokens
    block_tokens: int = 0
    session: str = ""
    after_s: float | None = None  # so long after its session's request before has ended; None: at `at_s`
    goes_on: bool = False  # its prompt begins with that request's prompt and answer


@dataclass(frozen=True)
class Trace:
    """Requests, in the order of their arrival.

    Args:
        concurrency: so many at a time, each as soon as another has ended; None: when they arrive.
        source: where they are from, in words.
    """

    arrivals: Sequence[TraceRequest]
    concurrency: int | None = None
    source: str = ""

    @property
    def shares(self) -> bool:
        """Whether a prompt may begin with what another one had."""
        return any(arrival.blocks or arrival.goes_on for arrival in self.arrivals)

    @property
    def reacts(self) -> bool:
        """Whether requests wait for the ends of others."""
        return self.concurrency is not None or any(arrival.after_s is not None for arrival in self.arrivals)


def page_names(arrival: TraceRequest, number: int, page_size: int, before: Sequence[PageName] = ()) -> list[PageName]:
    """Names of all pages that a request will fill: those of equal blocks after equal blocks are equal.

    Args:
        number: of the request; nothing else has the rest of its pages.
        before: names of the pages of the request that it goes on from.
    """
    pages, names, parent = (arrival.prompt + arrival.answer) // page_size, list(before), 0
    if arrival.blocks and not names:
        blocks, size = arrival.blocks, arrival.block_tokens
        for page in range(min(pages, len(blocks) * size // page_size)):
            first, last = page * page_size // size, -(-(page + 1) * page_size // size)
            parent = hash((parent, page, *map(odd, blocks[first:last])))
            names.append(struct.pack("<qq", parent, page))
    names += (struct.pack("<qq", -number - 1, page) for page in range(len(names), pages))
    return names[:pages]


def odd(number: int) -> int:
    """Another number for each, none of them -2: Python has the same hash for that and for -1."""
    return 2 * number + 1


Length = Callable[[random.Random], int]


def length(text: str) -> Length:
    """How long prompts or answers are, from its form on the command line.

    `512`: all alike. `32:512`: anything from one to the other. `normal:512:64`: mean and deviation.
    `lognormal:512:0.8`: median, and deviation of the logarithm. `exponential:256`: mean.

    Raises:
        ValueError: it is none of these.
    """
    kind, *values = (
        text.split(":") if text[:1].isalpha() else ("constant" if ":" not in text else "uniform", *text.split(":"))
    )
    try:
        numbers = [float(value) for value in values]
        draw = _DRAWS[kind](*numbers)
        if not all(number >= 0 and math.isfinite(number) for number in numbers) or numbers[0] < 1:
            raise ValueError
        if kind == "uniform" and numbers[0] > numbers[1]:
            raise ValueError
    except (KeyError, TypeError, ValueError, IndexError):
        forms = "512, 32:512, normal:MEAN:DEVIATION, lognormal:MEDIAN:SIGMA or exponential:MEAN, each in tokens from 1"
        raise ValueError(f"{text!r} says no lengths; write {forms}") from None
    return lambda dice: max(1, round(draw(dice)))


_DRAWS: dict[str, Callable[..., Callable[[random.Random], float]]] = {
    "constant": lambda value: lambda dice: value,
    "uniform": lambda low, high: lambda dice: dice.randint(int(low), int(high)),
    "normal": lambda mean, deviation: lambda dice: dice.gauss(mean, deviation),
    "lognormal": lambda median, sigma: lambda dice: median * math.exp(sigma * dice.gauss(0, 1)),
    "exponential": lambda mean: lambda dice: dice.expovariate(1 / mean),
}


def drawn(
    prompt: Length,
    answer: Length,
    requests: int,
    rate: float | None = None,
    concurrency: int | None = None,
    shared: int = 0,
    seed: int = 0,
) -> Trace:
    """Requests at random, the same for the same seed.

    Args:
        rate: requests a second, Poisson.
        concurrency: or so many at a time.
        shared: tokens that all prompts begin with, in front of `prompt`.
    """
    return Trace(list(_draw(prompt, answer, requests, rate, shared, random.Random(seed))), concurrency)


def _draw(
    prompt: Length, answer: Length, requests: int, rate: float | None, shared: int, dice: random.Random
) -> Iterator[TraceRequest]:
    at = 0.0
    blocks, size = ((0,), shared) if shared else ((), 0)
    for number in range(requests):
        if rate is not None and number:
            at += dice.expovariate(rate)
        yield TraceRequest(at, shared + prompt(dice), answer(dice), blocks, size)
