"""What a step and the host's work around it cost, in seconds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol


class StepCost(NamedTuple):
    """The time of one step on the device, by what it waits for; the sum is the step's."""

    hbm: float = 0.0
    compute: float = 0.0
    ici: float = 0.0

    @property
    def seconds(self) -> float:
        return self.hbm + self.compute + self.ici


class StepClock(Protocol):
    """How long the device takes for a step."""

    @property
    def remembers(self) -> int:
        """For how many steps without a part of a prompt it matters that one before them had some."""

    def cost(self, decodes: Sequence[int], chunks: Sequence[tuple[int, int]], since: int) -> StepCost:
        """A step's time.

        Args:
            decodes: for each sequence that computes one token: its tokens in the KV cache after the step.
            chunks: for each part of a prompt: its tokens in the step, and those in the KV cache after it.
            since: steps since the last one with a part of a prompt, at most `remembers`.
        """


@dataclass(frozen=True)
class HostTimes:
    """The host's work, in seconds: of the engine's thread, and of the text in the same process, if it is there.

    One interpreter runs one thread at a time, so the text's work waits for the engine's and holds it up.
    """

    step_s: float
    """To plan, launch and read a step, without its rows."""
    row_s: float
    """To plan, launch and read one row of it."""
    token_s: float = 0.0
    """To make text of a token and send it; 0 where routers do."""
    request_s: float = 0.0
    """From the client's request to the engine's queue: HTTP, the chat template, the tokenizer; one after another."""


ENGINE = HostTimes(step_s=30e-6, row_s=4.5e-6)
"""Of the engine's thread alone, by `python -m tools.host_cost` on two cores of a server (docs/benchmarks.md)."""
TOKEN_S = 7e-6
"""Of a token's text, by the same."""
REQUEST_S = 2e-3
"""Assumed: of a prompt of a thousand tokens or so."""


def host_times(text: bool) -> HostTimes:
    """The host's work where it has not been measured.

    Args:
        text: the engine's process makes the text too, because no routers do.
    """
    return replace(ENGINE, token_s=TOKEN_S if text else 0.0, request_s=REQUEST_S)
