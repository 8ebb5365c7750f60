"""Wakes readers in event loops from an engine's thread."""

import asyncio
from collections.abc import Iterable
from typing import Protocol


class Reader(Protocol):
    """A reader of the engine's output, in an event loop, or in a thread (then `loop` is None)."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None: ...

    def wake(self) -> None:
        """Called in the event loop when there is output to read."""

    def abort(self) -> None:
        """Called when the event loop is closed, so nothing more will be read."""


def wake(readers: Iterable[Reader]) -> None:
    """Wake each event loop once for all its readers: once a step, not once a token. Called by the engine's thread."""
    loops: dict[asyncio.AbstractEventLoop, set[Reader]] = {}
    for reader in readers:
        if reader.loop is not None:
            loops.setdefault(reader.loop, set()).add(reader)
    for loop, theirs in loops.items():
        try:
            loop.call_soon_threadsafe(_wake_all, theirs)
        except RuntimeError:  # it is closed
            for reader in theirs:
                reader.abort()


def _wake_all(readers: set[Reader]) -> None:
    for reader in readers:
        reader.wake()
