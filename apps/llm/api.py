"""Types of requests to a language model, their results and their errors.

The engine, the HTTP dialects and the batch driver share them. This module does not import JAX, so it is cheap to
import for code that only reads and writes requests.
"""

import asyncio
import hashlib
import itertools
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from apps.serving.errors import AnswerFailed as AnswerFailed
from apps.serving.errors import EngineError as EngineError
from apps.serving.errors import EngineStopped as EngineStopped
from apps.serving.errors import LimitReached as LimitReached
from apps.serving.errors import QueueFull as QueueFull
from apps.serving.errors import RequestError as RequestError
from ray_configs.applications.callers import ANONYMOUS

if TYPE_CHECKING:
    from apps.llm.chat.reader import AnswerReader
    from apps.llm.engine.fairness.admission import CallerState
    from apps.llm.engine.loop import Loop

FinishReason = Literal["stop", "length", "abort", "error"]
Pool = Literal["mean", "last"]
"""How hidden states become an embedding: the mean over all tokens, or the last token's."""

MAX_CHOICES = 128  # answers of one request, or suffixes to score
MAX_BIAS = 512  # logit_bias entries of one request
MAX_STOPS = 128  # stop strings of one request, each searched for in the text of every token
MAX_STOP_LENGTH = 1024  # characters of one
MAX_STOP_TOKENS = 1024  # stop_token_ids of one request
MAX_WORDS = 128  # bad_words of one request
MAX_MESSAGES = 10_000  # messages, or items, of one chat; parts of one of them
MAX_TOOLS = 1000  # of one chat; calls of one message
MAX_SEQUENCES = 1024  # answers to all prompts of one request
MAX_COPIED = 2**24  # prompt tokens of one request, counted once for each answer
TOP_LOGPROBS = 20  # most alternatives reported for a token: OpenAI's limit

_ids = itertools.count()


class PromptTooLong(RequestError):
    """The prompt (with room for one token of answer) is longer than the model's context or the KV cache."""

    code = "context_length_exceeded"


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a request."""

    name: str = ANONYMOUS  # of its API key
    address: str = ""  # tells callers without a key apart
    background: bool = False  # gets slots, pages and tokens of a step only where no other request needs them


ANYONE = Caller()
CALLER: ContextVar[Caller] = ContextVar("CALLER", default=ANYONE)
"""The caller of the current task's requests. `EngineModel` reads it, so dialects need not pass it on."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer must follow, where a single JSON schema is not enough.

    Args:
        lark: the grammar in llguidance's dialect of Lark.
        schemas: the JSON schemas in it, each with its field of the request, which error messages name.
        written: the fields of what clients have written in it themselves, which may take any time to follow.
    """

    lark: str
    schemas: tuple[tuple[str, Mapping[str, Any]], ...] = ()
    written: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The field to name for the grammar as a whole."""
        fields = [*(field for field, _ in self.schemas), *self.written]
        return fields[0] if len(fields) == 1 else "tools"


@dataclass(frozen=True, slots=True)
class Pattern:
    """What the text of an answer must be, where that is no JSON.

    Args:
        rule: the right side of a rule in llguidance's dialect of Lark.
        field: of the request, which error messages name.
        like: a JSON schema that is as hard to follow; None: not known.
    """

    rule: str
    field: str
    like: Mapping[str, Any] | None = None

    @property
    def grammar(self) -> Grammar:
        """The grammar of an answer that is this text alone."""
        lark = f"%llguidance {{}}\nstart: content\ncontent: {self.rule}\n"
        return Grammar(lark, ((self.field, self.like),)) if self.like is not None else Grammar(lark, (), (self.field,))


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample tokens, in OpenAI's terms plus vLLM's extensions. Checked by `Engine.submit`."""

    max_tokens: int | None = None  # None: as far as the context allows
    within_context: bool = False  # if max_tokens exceeds the context, end the answer there; False: refuse the request
    min_tokens: int = 0  # no eos and no stop token before this many
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0  # 0: greedy
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0  # on tokens of the answer so far, once each
    frequency_penalty: float = 0.0  # on tokens of the answer so far, by count
    repetition_penalty: float = 1.0  # on tokens of prompt and answer (1: off)
    logit_bias: dict[int, float] = field(default_factory=dict)  # token id -> added to its logit
    logprobs: int | None = None  # None: none; k: of the sampled token and the k likeliest ones
    n: int = 1
    stop: Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    include_stop_text: bool = False
    json_schema: str | dict[str, Any] | None = None  # a JSON schema; {} or "{}" means any JSON object
    pattern: Pattern | None = None  # instead of json_schema: what the answer must be
    grammar: Grammar | None = None  # instead of both: a grammar that the answer must follow
    bad_words: Sequence[str] = ()  # their tokens never come one after another
    allowed_token_ids: Sequence[int] | None = None  # no other token is sampled; None: all
    reader: "Callable[[], AnswerReader | None] | None" = field(default=None, compare=False)
    """Makes readers of the answers; None if they are only text. With them, stop strings end an answer in its text, not
    in its reasoning nor in the arguments of a call."""
    shown_tokens: frozenset[int] = frozenset()  # special tokens whose text is included in the answer's
    priority: int = 0  # a caller's waiting requests go by priority, lowest first, then by arrival
    cache_salt: str = ""  # shares cached prefixes only with requests of the same salt

    @property
    def constrained(self) -> bool:
        """Whether the answer must follow a schema, a pattern or a grammar."""
        return self.constraint is not None

    @property
    def constraint(self) -> str | dict[str, Any] | Grammar | None:
        """What it must follow."""
        if self.grammar is not None:
            return self.grammar
        return self.json_schema if self.pattern is None else self.pattern.grammar


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """One sampled token's log probability (of the model's own distribution, before temperature)."""

    token_id: int
    text: str
    logprob: float
    top: tuple[tuple[int, str, float], ...]  # the likeliest tokens: (id, text, logprob), likeliest first
    data: tuple[bytes, ...]  # bytes of the token, and of those: a part of a character has no text
    offset: int  # characters of the answer before it


class TokenScore(NamedTuple):
    """A given token's log probability after the tokens before it, by the model's own distribution."""

    logprob: float
    rank: int  # 1: the likeliest token
    likeliest: int  # id of the likeliest token at this position
    likeliest_logprob: float


@dataclass(frozen=True, slots=True)
class PromptToken:
    """One token of a prompt."""

    token_id: int
    text: str
    shown: int  # characters of the prompt's text that it completes; 0 for a special token
    score: TokenScore | None = None  # None for the first token, which has no context
    likeliest_text: str = ""


@dataclass(frozen=True, slots=True)
class Output:
    """New output of one sequence of a request. No stop string can remove any of `text` later."""

    index: int  # which of the request's n sequences
    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None  # set once, in the sequence's last output
    stop_reason: str | int | None = None  # the stop string or stop token id that ended it
    error: str | None = None  # with finish_reason "error": what went wrong
    of_answer: bool = False  # with an error: it is this answer's alone, the engine goes on
    at_fault: str | None = None  # and the field of the request that is the reason, if one is
    scores: tuple[TokenScore, ...] = ()  # for a scored suffix: one for each token
    embedding: np.ndarray | None = None  # for an embedded prompt: [hidden] float32, of length 1

    def moved(self, by: int) -> "Output":
        """A copy whose index is larger by this number: for the outputs of one prompt among several."""
        return replace(self, index=self.index + by)

    def failure(self) -> EngineError | None:
        """Why the sequence ended before its answer was complete; None if it did not."""
        if self.finish_reason not in ("error", "abort"):
            return None
        if self.at_fault is not None:
            return RequestError(self.at_fault, self.error or "")
        return (AnswerFailed if self.of_answer else EngineStopped)(self.error or "the request was aborted")

    def raise_failure(self) -> None:
        """Raises AnswerFailed or EngineStopped if the sequence ended before its answer was complete; RequestError if a
        field of the request is the reason."""
        if (failure := self.failure()) is not None:
            raise failure


@dataclass(slots=True)
class Times:
    """When a request entered each of its stages, by `time.monotonic_ns`; 0: not yet."""

    grammar: tuple[int, int] | None = None  # start and end of compiling its grammar
    queued: int = 0
    left_queue: int = 0  # its first sequence got a slot
    first_token: int = 0  # was read
    ended: int = 0


@dataclass(eq=False)
class Adapter:
    """A LoRA adapter that an engine has loaded."""

    name: str
    location: str
    place: int  # among the adapters on the devices, from 1
    created: int = field(default_factory=lambda: int(time.time()))
    key: bytes = b""
    """Digest of its weights: tells its KV pages from those of the model and of other adapters, also of an earlier one
    with this name. The same on every replica that has loaded the same weights."""


class UnknownAdapter(RequestError):
    """No adapter of that name is loaded."""

    status, code = 404, "model_not_found"

    def __init__(self, name: str):
        super().__init__("model", f"there is no adapter {name}")


class Generation:
    """A submitted request: iterate it (`for` in a thread, `async for` in an event loop) to read its outputs.

    Iteration ends after each of the n sequences has sent its `finish_reason`. A sequence that is scored or embedded has
    just one output. To stop early, call `abort()`: the KV pages are free within one step. Outputs of one step arrive
    together; `drain()` takes all that are ready. To read only the complete result, call `wait()` and then `drain()`.
    """

    def __init__(self, prompt_ids: Sequence[int], params: SamplingParams | None, n: int = 1, caller: Caller = ANYONE):
        self.id = next(_ids)  # in order of arrival
        self.caller = caller
        self.usage: CallerState | None = None  # set by submit
        self.adapter: Adapter | None = None  # set by submit
        self.cache_salts: tuple[str, ...] = ()  # of the caller and of the request, set by submit; see `page_root`
        self.prompt_ids = tuple(prompt_ids)
        self.params = params  # None: nothing is sampled; `n` suffixes are scored, or a prompt is embedded
        self.n = n if params is None else params.n
        self.times = Times()
        self.cached_tokens = 0  # prompt tokens whose KV pages were found in the prefix cache
        self.engine: Loop[Any] | None = None  # set by submit
        self._open = self._running = self.n
        self._ended = threading.Event()
        self._queue: queue.SimpleQueue[Output] = queue.SimpleQueue()
        self._wake = asyncio.Event()
        self.loop: asyncio.AbstractEventLoop | None = None  # where it is read; None: in a thread. Set by submit

    @property
    def finished(self) -> bool:
        return self._open == 0

    @property
    def page_root(self) -> bytes:
        """What the names of its KV pages begin with: they match those of the same model, adapter and salts alone.

        Equal on every replica. Empty for the model itself without salts.
        """
        parts = [
            b"" if self.adapter is None else self.adapter.key,
            *(salt.encode("utf-8", "surrogatepass") for salt in self.cache_salts),
        ]
        if not any(parts):
            return b""
        # Each with its length, so that no two lists of parts look alike.
        framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        return hashlib.blake2b(framed, digest_size=16).digest()

    def put(self, output: Output) -> None:
        """Add an output. Called by the engine's thread."""
        self._queue.put(output)
        if not self.times.first_token and output.token_ids:
            self.times.first_token = time.monotonic_ns()
        if output.finish_reason is not None:
            self._running -= 1
            if not self._running:
                self.times.ended = time.monotonic_ns()
                if self.usage is not None:
                    self.usage.request_ended()
                self._ended.set()

    def wake(self) -> None:
        """Wake the reader. Called in the event loop after `put`s."""
        self._wake.set()

    def lose(self, reason: str) -> None:
        """End the request for its reader, which gets EngineStopped: the engine is stuck. Thread-safe.

        The engine still ends it when it goes on.
        """
        if not self._ended.is_set():
            self._queue.put(Output(-1, "", (), finish_reason="error", error=reason))
            self._ended.set()

    def abort(self) -> None:
        """Stop all of the request's sequences. Thread-safe, and harmless after the end."""
        if self.engine is not None and not self.finished:
            self.engine.abort(self)

    def _take(self, output: Output) -> Output:
        if output.index < 0:  # see `lose`
            output.raise_failure()
        if output.finish_reason is not None:
            self._open -= 1
        return output

    def __iter__(self) -> Iterator[Output]:
        while self._open:
            yield self._take(self._queue.get())

    def wait(self) -> None:
        """Wait until the request has ended. The thread is woken once, not at each token."""
        self._ended.wait()

    def drain(self) -> list[Output]:
        """All outputs that are ready, oldest first; may be empty. Raises EngineStopped if the engine is stuck."""
        outputs = []
        while True:
            try:
                outputs.append(self._take(self._queue.get_nowait()))
            except queue.Empty:
                return outputs

    async def batches(self, *others: "Generation") -> AsyncIterator[list[Output]]:
        """Outputs as they arrive, in lists of all that are ready: one list a step, or fewer if the reader is slower.

        Args:
            others: read together with this one; their outputs' indices continue after this one's.
        """
        first, rest = self.n, list[tuple[int, Generation]]()
        for generation in others:
            generation._wake = self._wake
            rest.append((first, generation))
            first += generation.n
        while self._open or any(generation._open for _, generation in rest):
            outputs = self.drain()
            for first, generation in rest:
                outputs += [output.moved(first) for output in generation.drain()]
            if outputs:
                yield outputs
            else:
                await self._wake.wait()
                self._wake.clear()

    async def __aiter__(self) -> AsyncIterator[Output]:
        async for outputs in self.batches():
            for output in outputs:
                yield output


@dataclass
class CallerStats:
    """Usage of all callers of one name; `tokens` and `refused` are totals since the engine started."""

    requests: int = 0  # open
    waiting: int = 0  # sequences
    tokens: int = 0  # of prompts and answers
    refused: int = 0  # requests


@dataclass(frozen=True, slots=True)
class EngineStats:
    """The engine's load; counters are totals since it started."""

    running: int
    waiting: int
    pages_total: int
    pages_used: int
    prompt_tokens: int
    generated_tokens: int
    scored_tokens: int
    embeddings: int
    prefix_hit_tokens: int
    preemptions: int
    drafted_tokens: int
    accepted_tokens: int  # drafted tokens that were right
    compiles_after_ready: int
    steps: int
    step_running_s: float  # how long the current turn of the loop has been running; 0 when idle

    @classmethod
    def together(cls, parts: "list[EngineStats]") -> "EngineStats":
        """Combine the stats of several DP ranks. Compiles are counted per process, so they are the same for each."""
        of_all = {field.name: sum(getattr(part, field.name) for part in parts) for field in fields(cls)}
        for name in ("compiles_after_ready", "step_running_s"):
            of_all[name] = max(getattr(part, name) for part in parts)
        return cls(**of_all)
