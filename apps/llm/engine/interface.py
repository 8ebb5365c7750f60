"""A token engine, as what stands in front of it sees it."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from apps.llm.api import AdapterInfo, CacheNews, Capabilities, EngineStats, Sink, TokenRequest


class TokenEngine(Protocol):
    """Takes requests in tokens and sends tokens back. It knows no text.

    Who owns what: the engine owns its slots, its pages, its queue and their fair division between callers. Keys, limits
    of callers and the bound of the queue belong to whoever submits, who may have several engines: it counts from what
    the outputs say.
    """

    @property
    def capabilities(self) -> Capabilities: ...

    def submit(self, requests: Sequence[TokenRequest], sink: Sink) -> "Future[None]":
        """Queue requests that share a prompt and a grammar, all or none. The outputs of each come in order.

        The future is done when they are queued: at once without a grammar, otherwise once it is compiled. Cancel it if
        nobody needs them any more. It fails with:

            RequestError: the grammar is not valid, or too complex, or the answer so far does not follow it.
            QueueFull: too many complex grammars are compiled or followed.
            UnknownAdapter: no adapter has that key.
            EngineStopped: the engine has ended.
        """

    def abort(self, ids: Sequence[int]) -> None:
        """End requests; each that is still open gets a last output. Their KV pages are free within one step.
        Thread-safe, and harmless after their end."""

    def adapters(self) -> Sequence[AdapterInfo]:
        """The LoRA adapters that requests can ask for, oldest first."""

    def load_adapter(self, name: str, location: str) -> AdapterInfo:
        """Load a LoRA adapter while the engine runs; requests can ask for it once this returns.

        Args:
            location: a folder in PEFT's layout, a hub id or an fsspec URL.

        Raises:
            RequestError: the name is taken, or no place is free.
            CheckpointError: it cannot be read, or does not fit the model.
            EngineStopped: the engine has ended.
        """

    def unload_adapter(self, name: str) -> None:
        """Take an adapter away, and wait until its requests have ended.

        Raises:
            UnknownAdapter: no adapter has that name.
            EngineStopped: the engine has ended.
        """

    def stats(self) -> EngineStats: ...

    def cache_news(self, since: Sequence[int] = ()) -> Sequence[CacheNews]:
        """What each DP rank's prefix cache has stored and forgotten.

        Args:
            since: the numbers of the last news, one for each rank; empty: all that they have.
        """

    @property
    def busy(self) -> bool:
        """Whether requests are open."""

    def awaits(self) -> str | None:
        """What requests wait for while no engine can take them, in words for their readers; None: one can."""

    def check(self, step_deadline_s: float = 60.0) -> None:
        """Raises EngineStopped when it is dead, or one step has taken longer than the deadline."""

    def lose_stuck(self, step_deadline_s: float) -> None:
        """End the requests of what `check` finds stuck, for their readers. What goes on is as before."""

    def shutdown(self) -> None:
        """Stop. Open requests fail with an error that says so."""


class Vocabulary(Protocol):
    """What the engine needs of a tokenizer: the library's own object, for grammars, and one encoded text."""

    fast: Any
    eos_token_ids: tuple[int, ...]

    def encode(self, text: str) -> list[int]: ...
