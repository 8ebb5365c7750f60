"""Hands outputs on to whoever submitted their requests."""

from apps.llm.api import Sink, TokenOutput

Outputs = list[tuple[Sink, TokenOutput]]


def deliver(outputs: Outputs) -> None:
    """Hand outputs on, those of one sink together, in their order."""
    by_sink: dict[Sink, list[TokenOutput]] = {}
    for sink, output in outputs:
        by_sink.setdefault(sink, []).append(output)
    for sink, theirs in by_sink.items():
        sink(theirs)
