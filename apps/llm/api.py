"""What crosses the boundary of a token engine: requests, outputs, stats and errors. No text, and no JAX.

A chat becomes a `TokenRequest` in `apps.llm.text`, and its `TokenOutput`s become text again there. All types can be
sent to another process as they stand, by msgspec.
"""

import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

import msgspec

from apps.serving.errors import AnswerFailed as AnswerFailed
from apps.serving.errors import EngineError as EngineError
from apps.serving.errors import EngineStopped as EngineStopped
from apps.serving.errors import LimitReached as LimitReached
from apps.serving.errors import QueueFull as QueueFull
from apps.serving.errors import RequestError as RequestError
from ray_configs.applications.callers import ANONYMOUS

FinishReason = Literal["stop", "length", "abort", "error"]
Pool = Literal["mean", "last"]
"""How hidden states become an embedding: the mean over all tokens, or the last token's."""

LATE = "the request's deadline has passed"

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
"""The caller of the current task's requests. `TextModel` reads it, so dialects need not pass it on."""
SESSION: ContextVar[str] = ContextVar("SESSION", default="")
"""What the current task's requests belong to, by their client's word; empty: nothing. Read as CALLER is."""


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """How to sample an answer's tokens. Every draw is a function of `seed` and of the token's position."""

    seed: int  # below 2**31
    temperature: float = 1.0  # 0: greedy
    top_k: int = 0  # 0: all
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0  # on tokens of the answer so far, once each
    frequency_penalty: float = 0.0  # on tokens of the answer so far, by count
    repetition_penalty: float = 1.0  # on tokens of prompt and answer (1: off)
    logit_bias: dict[int, float] = {}  # token id -> added to its logit
    logprobs: int | None = None  # None: none; k: of the sampled token and the k likeliest ones
    min_tokens: int = 0  # no eos and no stop token before this many
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None  # no other token is sampled; None: all
    banned: tuple[tuple[int, ...], ...] = ()  # tokens that never come one after another

    @property
    def penalized(self) -> bool:
        """Whether it needs counts of the tokens so far."""
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)


class PromptImage(msgspec.Struct, frozen=True):
    """An image in a prompt, as a model sees it. Its tokens are one after another, row by row."""

    start: int  # the place of its first token
    grid: tuple[int, int]  # rows and columns of its parts, each a token
    pixels: bytes  # of its patches, a token's together: [patches, channels, patch, patch] uint8
    digest: bytes  # of its grid and pixels
    breaks: int = 0  # tokens after each row, which show nothing of it

    @property
    def parts(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.grid[0] * (self.grid[1] + self.breaks)

    @property
    def end(self) -> int:
        return self.start + self.tokens


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One answer to a prompt, the scores of a suffix, or an embedding. A request for n answers makes n of these.

    With `answer_ids` it continues an answer that was begun elsewhere, with the tokens that would have followed there.
    """

    id: int  # unique among the requests of whoever submits it
    prompt_ids: tuple[int, ...]
    images: tuple[PromptImage, ...] = ()  # that tokens of the prompt stand for, in its order
    answer_ids: tuple[int, ...] = ()  # the answer so far
    limit: int = 0  # the answer ends at this many tokens, with its prompt
    sampling: Sampling | None = None  # None: nothing is sampled
    grammar: "Grammar | None" = None  # which the answer must follow
    suffix: tuple[int, ...] | None = None  # to score, directly after the prompt
    pooling: Pool | None = None  # of the prompt's hidden states to an embedding
    adapter: bytes | None = None  # key of a LoRA adapter; None: the model itself
    caller: Caller = ANYONE
    priority: int = 0  # a caller's waiting requests go by priority, lowest first, then by arrival
    cache_salts: tuple[str, ...] = ()  # shares cached prefixes only with requests of the same salts
    session: str = ""  # requests of the same go to the same cache, as long as that pays
    deadline_s: float | None = None  # it ends with an error so many seconds after its submission; None: never
    moved: bool = False
    """It was begun elsewhere: it goes before its caller's others of the same priority, and what was computed of it
    before (prompt and answer so far) is not charged to its caller again."""


class TokenLogprobs(msgspec.Struct, frozen=True):
    """One sampled token's log probability (of the model's own distribution, before temperature)."""

    logprob: float
    top_ids: tuple[int, ...]  # the likeliest tokens, likeliest first
    top_logprobs: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Grammar:
    """A grammar that an answer must follow, where a single JSON schema is not enough.

    Args:
        lark: the grammar in llguidance's dialect of Lark, or as its JSON.
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


class TokenScore(NamedTuple):
    """A given token's log probability after the tokens before it, by the model's own distribution."""

    logprob: float
    rank: int  # 1: the likeliest token
    likeliest: int  # id of the likeliest token at this position
    likeliest_logprob: float


class TokenOutput(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is new of one request."""

    request: int  # its id
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()  # one for each token, if they are wanted
    finish_reason: FinishReason | None = None  # set once, in the request's last output
    error: str | None = None  # with finish_reason "error": what went wrong
    of_answer: bool = False  # with an error: it is this answer's alone, the engine goes on
    at_fault: str | None = None  # and the field of the request that is the reason, if one is
    scores: tuple[TokenScore, ...] = ()  # for a suffix: one for each token
    embedding: bytes | None = None  # for `pooling`: [hidden] float32, of length 1
    cached_tokens: int = 0  # prompt tokens whose KV pages were found in the prefix cache
    entered_ns: int = 0  # when it first left the queue, by the engine's `time.monotonic_ns`; 0: not yet


Sink = Callable[[list[TokenOutput]], None]
"""Takes the outputs of one step. Called by the engine's thread: it neither waits nor raises."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    """A LoRA adapter that an engine has loaded."""

    name: str
    key: bytes  # digest of its weights, the same on every replica
    created: int = field(default_factory=lambda: int(time.time()))


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a token engine can do, and the sizes that whoever submits needs to know."""

    vocab_size: int
    max_model_len: int  # tokens of prompt and answer together
    cache_tokens: int  # that the KV cache holds, at least
    max_batch_size: int  # sequences computed at the same time
    page_size: int  # tokens of a page of the KV cache
    embedding_size: int
    eos_token_ids: tuple[int, ...]  # that end an answer
    special_tokens: dict[str, int]  # by their text
    adapters: int  # that fit at a time
    page_root: bytes  # of the names of its cache's pages: see `page_names`
    resumes_exactly: bool
    """Whether an answer that is continued from its tokens is the undisturbed one, bit for bit. If not, rounding may
    differ where steps of different sizes are computed by different kernels, and a near tie may fall the other way."""
    image_tokens: int = 0  # that the images of one request may have; 0: it takes none
    max_image_tokens: int = 0  # of one image
    continues_held: bool = True
    """Whether it continues answers that follow a grammar, or whose tokens so far count for a penalty."""

    def cannot_continue(self, request: "TokenRequest") -> str | None:
        """Why an answer that has tokens can't go on in an engine like this one, in words for its reader; None: it can.
        An answer without a grammar or penalties always can, though `resumes_exactly` may be False."""
        if self.continues_held or request.sampling is None:
            return None
        if request.grammar is not None:
            return f"{request.grammar.field}: the engine can't continue an answer that follows a grammar"
        for name in ("presence_penalty", "frequency_penalty"):
            if getattr(request.sampling, name):
                return f"{name}: the engine can't continue an answer whose tokens count for a penalty"
        return None


class CacheNews(msgspec.Struct, frozen=True, kw_only=True):
    """Which full pages a DP rank's prefix cache has got or lost, by their names."""

    number: int  # pass it to ask for what comes after
    whole: bool = False  # `stored` is all that it has
    stored: tuple[bytes, ...] = ()
    forgotten: tuple[bytes, ...] = ()


class UnknownAdapter(RequestError):
    """No adapter of that name is loaded."""

    status, code = 404, "model_not_found"

    def __init__(self, name: str):
        super().__init__("model", f"there is no adapter {name}")


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
    waiting_tokens: int  # of the prompts of waiting sequences
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
    host_pages_total: int = 0  # for which the hosts' memory has room
    host_pages_used: int = 0
    host_hit_tokens: int = 0  # of pages that came back from the hosts' memory
    programs_compiled: int = 0  # before it was ready, because none was prepared

    @classmethod
    def together(cls, parts: "list[EngineStats]") -> "EngineStats":
        """Combine the stats of several DP ranks. Compiles are counted per process, so they are the same for each."""
        of_all = {field.name: sum(getattr(part, field.name) for part in parts) for field in fields(cls)}
        for name in ("compiles_after_ready", "step_running_s"):
            of_all[name] = max((getattr(part, name) for part in parts), default=0)
        return cls(**of_all)
