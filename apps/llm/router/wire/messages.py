"""What routers and replicas say to each other, in msgpack.

1. A router says Hello. The replica answers Welcome, or OtherVersion, and from then on sends a Heartbeat every BEAT_S.
2. Submit, Cancel, Abort and ChangeAdapter go to the replica. Each Submit and ChangeAdapter, a *call*, gets a CallDone.
3. StepOutputs brings what one step has made for all of a router's requests.
4. The replica says Leaving when its requests are to go elsewhere, and Goodbye to whom it does not listen any more.

Hello and OtherVersion are the same in every version.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from apps.llm.api import (
    AdapterInfo,
    CacheNews,
    Capabilities,
    EngineStats,
    Grammar,
    RequestError,
    TokenOutput,
    TokenRequest,
)
from apps.llm.schemas.written import check_schemas

VERSION = 2
MOST_BYTES = 64 * 2**20
"""Largest message. An HTTP body has at most half of that, and its prompt is sent once, however many its answers."""
MOST_UNSENT = 64 * 2**20
"""Bytes that wait for a peer which does not read."""
BEAT_S = 0.1
RETRY_S = 0.01  # how soon a peer that did not read is tried again
NAMES = 2**16
"""Most page names of one message: 1 MiB."""


class Endpoint(msgspec.Struct, frozen=True):
    """What a router needs to reach a replica. Whoever has it may connect."""

    address: str  # tcp://ip:port
    replica: str  # its name, for messages and logs
    server_key: bytes  # CURVE public key of the replica
    client_keys: tuple[bytes, bytes]  # CURVE public and secret key of its routers
    page_root: bytes  # see `Capabilities`: engines that share it continue each other's answers
    config: str = ""  # a digest of what the engine was started with

    def __repr__(self) -> str:
        return f"Endpoint({self.replica!r}, {self.address!r})"  # no secret in a log


class SentError(msgspec.Struct, frozen=True, array_like=True):
    """An exception; see `errors`."""

    kind: str  # name of its class
    message: str
    field: str | None = None
    retry_after_s: float | None = None


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=True):
    version: int


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Requests, without what they share."""

    call: int
    prompt_ids: tuple[int, ...]
    cache_salts: tuple[bytes, ...]  # they may have characters that UTF-8 has not
    grammar: bytes | None  # in JSON: schemas may have any number and character
    requests: tuple[TokenRequest, ...]


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nobody needs these requests any more, queued or not."""

    call: int
    ids: tuple[int, ...]


class Abort(msgspec.Struct, frozen=True, array_like=True, tag=True):
    ids: tuple[int, ...]


class ChangeAdapter(msgspec.Struct, frozen=True, array_like=True, tag=True):
    call: int
    name: str
    location: str | None  # None: take it away


class OtherVersion(msgspec.Struct, frozen=True, array_like=True, tag=True):
    version: int  # the replica's


class Welcome(msgspec.Struct, frozen=True, array_like=True, tag=True):
    capabilities: Capabilities
    adapters: list[AdapterInfo]
    ranks: int
    stats: EngineStats


class StepOutputs(msgspec.Struct, frozen=True, array_like=True, tag=True):
    ids: list[int]  # the router's; the outputs name the requests as the replica does
    outputs: list[TokenOutput]


class CallDone(msgspec.Struct, frozen=True, array_like=True, tag=True):
    call: int
    error: SentError | None = None
    adapter: AdapterInfo | None = None  # that was loaded


class AdapterList(msgspec.Struct, frozen=True, array_like=True, tag=True):
    adapters: list[AdapterInfo]


class Heartbeat(msgspec.Struct, frozen=True, array_like=True, tag=True):
    stats: EngineStats
    patience_s: float  # longer than that no step should take
    ended: str | None  # why the engine has ended
    news: list[tuple[int, CacheNews]]  # DP rank, and what its cache has stored and forgotten


class Leaving(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The replica is drained: requests are to go elsewhere."""


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=True):
    reason: str


ToReplica = Hello | Submit | Cancel | Abort | ChangeAdapter
ToRouter = OtherVersion | Welcome | StepOutputs | CallDone | AdapterList | Heartbeat | Leaving | Goodbye

encode = msgspec.msgpack.Encoder().encode
decode_for_replica = msgspec.msgpack.Decoder(ToReplica).decode
decode_for_router = msgspec.msgpack.Decoder(ToRouter).decode

UNREADABLE = msgspec.MsgspecError, UnicodeDecodeError, RecursionError
"""What decoding raises."""


def submit_message(call: int, requests: Sequence[TokenRequest]) -> bytes:
    """A Submit, encoded. Raises RequestError: the requests are too large, or their schemas."""
    first = requests[0]
    bare = [msgspec.structs.replace(each, prompt_ids=(), cache_salts=(), grammar=None) for each in requests]
    salts = tuple(salt.encode("utf-8", "surrogatepass") for salt in first.cache_salts)
    grammar = None if first.grammar is None else _grammar_message(first.grammar)
    message = encode(Submit(call, first.prompt_ids, salts, grammar, tuple(bare)))
    if len(message) > MOST_BYTES:
        raise RequestError("prompt", f"the request is larger than {MOST_BYTES // 2**20} MiB")
    return message


def submitted(message: Submit, ids: Sequence[int]) -> list[TokenRequest]:
    """The requests, under other ids."""
    salts = tuple(salt.decode("utf-8", "surrogatepass") for salt in message.cache_salts)
    shared: dict[str, Any] = {"prompt_ids": message.prompt_ids, "cache_salts": salts}
    if message.grammar is not None:
        lark, schemas, written = json.loads(message.grammar)
        shared["grammar"] = Grammar(lark, tuple(map(tuple, schemas)), tuple(written))
    return [msgspec.structs.replace(each, id=id, **shared) for id, each in zip(ids, message.requests, strict=True)]


def _grammar_message(grammar: Grammar) -> bytes:
    check_schemas(grammar.schemas)  # as the replica does: what is too deep or long cannot be sent
    return json.dumps([grammar.lark, grammar.schemas, grammar.written], default=_plain).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")


def output_messages(ids: list[int], outputs: list[TokenOutput]) -> list[bytes]:
    """StepOutputs, encoded: in one message, if it is not too large."""
    message = encode(StepOutputs(ids, outputs))
    if len(message) <= MOST_BYTES:
        return [message]
    if len(outputs) == 1:
        error = f"its result is larger than {MOST_BYTES // 2**20} MiB"
        large = TokenOutput(request=outputs[0].request, finish_reason="error", error=error, of_answer=True)
        return [encode(StepOutputs(ids, [large]))]
    half = len(outputs) // 2
    return output_messages(ids[:half], outputs[:half]) + output_messages(ids[half:], outputs[half:])


def heartbeats(
    stats: EngineStats, patience_s: float, ended: str | None, news: Sequence[tuple[int, CacheNews]]
) -> list[bytes]:
    """Heartbeats, encoded: one, unless there is much news."""
    pieces: list[list[tuple[int, CacheNews]]] = [[]]
    space = NAMES
    for rank, each in news:
        for piece in _pieces(each):
            names = len(piece.stored) + len(piece.forgotten)
            if names > space:
                pieces.append([])
                space = NAMES
            space -= names
            pieces[-1].append((rank, piece))
    return [encode(Heartbeat(stats, patience_s, ended, piece)) for piece in pieces]


def _pieces(news: CacheNews) -> list[CacheNews]:
    if len(news.stored) + len(news.forgotten) <= NAMES:
        return [news]
    pieces = [
        CacheNews(number=news.number, whole=news.whole and not first, stored=news.stored[first : first + NAMES])
        for first in range(0, len(news.stored), NAMES)
    ]
    if news.forgotten:  # few: of the last events
        pieces.append(CacheNews(number=news.number, forgotten=news.forgotten))
    return pieces
