"""From the time of a step to tokens and chips."""

from dataclasses import dataclass

TOKENS_AN_HOUR = 1_000_000


@dataclass(frozen=True)
class Rates:
    """What a slice of one replica gives at a time per decode step."""

    step_s: float
    tokens_per_s: float
    chips_per_million_tokens_an_hour: float

    @classmethod
    def of(cls, step_s: float, batch: int, chips: int) -> "Rates":
        tokens = batch / step_s
        return cls(step_s, tokens, chips * TOKENS_AN_HOUR / 3600 / tokens)
