"""What one side does when the other one errs, is slow, or is somebody else."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import zmq

from apps.arrays.model_folder import CheckpointError
from apps.llm import api
from apps.llm.api import CacheNews, Capabilities, EngineStats, Sink, TokenOutput, TokenRequest
from apps.llm.engine.engine import JaxEngine
from apps.llm.router.wire import hub, messages, sockets
from apps.llm.router.wire.errors import received_error, sent_error
from apps.llm.router.wire.messages import Endpoint, Hello
from apps.llm.router.wire.patience import Patience, core_waited
from apps.llm.router.wire.remote import RemoteEngine
from apps.llm.router.wire.served import ServedEngine
from tests.llm.router.wire.asking import Connected, Reader, ask, request, start, until
from tests.llm.router.wire.proxy import CutNetwork

Connect = Callable[[Endpoint], Connected]


class ScriptedEngine:
    """A `TokenEngine` whose test says what it answers."""

    def __init__(self) -> None:
        zeros = dict.fromkeys(EngineStats.__dataclass_fields__, 0)
        self.now = EngineStats(**zeros)
        self.news = [CacheNews(number=0, whole=True)]
        self.capabilities = Capabilities(
            **dict.fromkeys(("vocab_size", "max_model_len", "cache_tokens", "max_batch_size", "page_size"), 9),
            **{"embedding_size": 9, "eos_token_ids": (1,), "special_tokens": {"<s>": 0}, "adapters": 0},
            page_root=b"root",
            resumes_exactly=True,
        )
        self.queued: Future[None] = Future()
        self.submitted: list[tuple[list[TokenRequest], Sink]] = []
        self.aborted: list[int] = []
        self.failure: BaseException | None = None
        self.dead: str | None = None

    def submit(self, requests: Sequence[TokenRequest], sink: Sink) -> "Future[None]":
        if self.failure is not None:
            raise self.failure
        self.submitted.append((list(requests), sink))
        return self.queued

    def abort(self, ids: Sequence[int]) -> None:
        self.aborted += ids

    def adapters(self) -> list[Any]:
        return []

    def stats(self) -> EngineStats:
        return self.now

    def cache_news(self, since: Sequence[int] = ()) -> list[CacheNews]:
        return self.news

    def check(self, step_deadline_s: float = 60.0) -> None:
        if self.dead:
            raise api.EngineStopped(self.dead)


@pytest.fixture
def scripted() -> Iterator[tuple[ScriptedEngine, ServedEngine]]:
    engine = ScriptedEngine()
    served = ServedEngine(engine, "127.0.0.1", "scripted")  # type: ignore[arg-type]
    yield engine, served
    served.close()


@pytest.fixture
def dealer() -> Iterator[Callable[..., Any]]:
    """Raw connections to a replica."""
    context = zmq.Context()

    def dealer(endpoint: Endpoint, **options: int) -> Any:
        socket = context.socket(zmq.DEALER)
        socket.setsockopt(zmq.RCVTIMEO, 30_000)
        for name, value in options.items():
            socket.setsockopt(getattr(zmq, name), value)
        socket.curve_serverkey = endpoint.server_key
        socket.curve_publickey, socket.curve_secretkey = endpoint.client_keys
        socket.connect(endpoint.address)
        return socket

    yield dealer
    context.destroy(linger=0)


def test_wrong_keys_are_refused(served: ServedEngine) -> None:
    def nothing(*_: Any) -> None: ...

    others = zmq.curve_keypair()
    for wrong in ({"client_keys": others}, {"server_key": others[0]}):
        with pytest.raises(ConnectionError, match=r"replica-0 at tcp://127\.0\.0\.1"):
            RemoteEngine.connect(msgspec.structs.replace(served.endpoint, **wrong), nothing, nothing, timeout_s=5.0)


def test_without_curve_nobody_is_answered(served: ServedEngine) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(served.endpoint.address)
        socket.send(messages.encode(Hello(messages.VERSION)))
        assert not socket.poll(1500)


def test_secrets_stay_out_of_logs(served: ServedEngine) -> None:
    assert served.endpoint.client_keys[1].decode() not in repr(served.endpoint)


def test_another_version(served: ServedEngine, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.llm.router.wire.served.VERSION", 7)
    with pytest.raises(ConnectionError, match=rf"speaks version 7 .* version {messages.VERSION}$"):
        connect(served.endpoint)


@pytest.mark.parametrize("junk", [b"", b"\xc1", msgspec.msgpack.encode(["Submit", 1]), b"\x91" * 100_000])
def test_junk_ends_its_sender_alone(
    junk: bytes, engine: JaxEngine, served: ServedEngine, connect: Connect, dealer: Callable[..., Any]
) -> None:
    other = connect(served.endpoint)
    socket = dealer(served.endpoint)
    socket.send(messages.encode(Hello(messages.VERSION)))
    assert isinstance(messages.decode_for_router(socket.recv()), messages.Welcome)
    socket.send(junk)
    while isinstance(last := messages.decode_for_router(socket.recv()), messages.Heartbeat):
        pass
    assert isinstance(last, messages.Goodbye)
    socket.send(messages.encode(messages.Abort((1,))))
    assert isinstance(messages.decode_for_router(socket.recv()), messages.Goodbye)
    assert ask(other.engine, request()) and not other.losses


def test_a_replica_that_cannot_be_read_is_lost(
    scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    connected = connect(scripted[1].endpoint)
    monkeypatch.setattr(messages, "heartbeats", lambda *_: [b"\xc1"])
    assert connected.lost.wait(240)
    assert "cannot be read" in connected.losses[0][1]


ERRORS = [
    api.RequestError("top_p", "top_p: is 3"),
    api.PromptTooLong("prompt", "too long"),
    api.UnknownAdapter("ada"),
    api.QueueFull("full", 2.5),
    api.LimitReached("requests", "at most 3", 4.0),
    api.EngineStopped("it has ended"),
    api.AnswerFailed("not finite"),
    api.EngineError("x", "y", 3.0),
    CheckpointError("no such file"),
    MemoryError("full"),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_are_the_same(error: Exception, scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect) -> None:
    engine, served = scripted
    engine.failure = error
    with pytest.raises(type(error)) as raised:
        start(connect(served.endpoint).engine, request())
    got: Any = raised.value
    assert type(got) is type(error) and str(got) == str(error)
    for name in ("field", "status", "code", "says", "retry_after_s"):
        assert getattr(got, name, None) == getattr(error, name, None)


def test_an_unknown_error_is_the_servers() -> None:
    class PanicException(BaseException): ...

    got = received_error(sent_error(PanicException("rust")))
    assert type(got) is api.EngineError and str(got) == "PanicException: rust" and got.status == 500


def test_cancelling_ends_the_compile(scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect) -> None:
    engine, served = scripted
    remote = connect(served.endpoint).engine
    asked = request()
    queued = remote.submit([asked], Reader([asked.id]).sink)
    until(lambda: bool(engine.submitted))
    assert queued.cancel() and not remote.busy
    until(engine.queued.cancelled)


def test_cancelling_what_is_queued_meanwhile_aborts_it(
    scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect
) -> None:
    engine, served = scripted
    engine.queued.set_running_or_notify_cancel()  # too late to cancel
    remote = connect(served.endpoint).engine
    queued = remote.submit([request()], Reader([]).sink)
    until(lambda: bool(engine.submitted))
    assert queued.cancel()
    until(lambda: bool(engine.aborted))
    engine.aborted.clear()
    engine.queued.set_result(None)
    ids = [each.id for each in engine.submitted[0][0]]
    until(lambda: engine.aborted == ids)


def test_a_reader_that_raises_hurts_no_other(scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect) -> None:
    engine, served = scripted
    engine.queued.set_result(None)
    remote = connect(served.endpoint).engine
    good, bad = request(), request()
    reader = start(remote, good)
    remote.submit([bad], lambda outputs: 1 / 0).result(60)  # type: ignore[arg-type, return-value]
    ((inner,), sink), ((other,), _) = engine.submitted
    sink([TokenOutput(request=other.id, token_ids=(3,)), TokenOutput(request=inner.id, token_ids=(4,))])
    sink([TokenOutput(request=inner.id, token_ids=(5,), finish_reason="length")])
    assert reader.ended.wait(240) and reader.tokens() == [[4, 5]]


def test_drain_is_told_once_and_to_who_comes_later(served: ServedEngine, connect: Connect) -> None:
    early = connect(served.endpoint)
    served.drain()
    served.drain()
    late = connect(served.endpoint)
    assert early.draining.wait(240) and late.draining.wait(240)
    assert ask(early.engine, request())[0][-1].finish_reason == "length", "what is open goes on"
    assert early.drains == late.drains == 1 and not early.losses


def test_close_is_told(served: ServedEngine, connect: Connect) -> None:
    connected = connect(served.endpoint)
    served.close()
    assert connected.lost.wait(240)


@pytest.mark.usefixtures("slow")
def test_shutdown_ends_what_is_open(engine: JaxEngine, served: ServedEngine, connect: Connect) -> None:
    connected = connect(served.endpoint)
    reader = start(connected.engine, request(limit=128))
    assert reader.began.wait(240)
    connected.engine.shutdown()
    assert reader.ended.wait(240) and reader.reasons() == ["error"]
    until(lambda: not engine.busy)
    with pytest.raises(api.EngineStopped, match="shut down"):
        start(connected.engine, request())
    assert not connected.losses


def test_a_stuck_engine_is_lost(scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect) -> None:
    engine, served = scripted
    connected = connect(served.endpoint)
    engine.now = replace(engine.now, step_running_s=4.9)
    until(lambda: connected.engine.stats().step_running_s == 4.9)
    with pytest.raises(api.EngineStopped, match="in one step for 5 s"):
        connected.engine.check(2.0)
    assert not connected.losses
    engine.now = replace(engine.now, step_running_s=5.1)
    assert connected.lost.wait(240) and "stuck" in connected.losses[0][1]


def test_a_dead_engine_is_lost(scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect) -> None:
    engine, served = scripted
    connected = connect(served.endpoint)
    engine.dead = "out of memory"
    assert connected.lost.wait(240) and "out of memory" in connected.losses[0][1]


def test_patience() -> None:
    patience = Patience()
    assert patience.look(0.0) == 5.0
    patience.outputs = 20
    assert patience.look(0.3) == 1.0, "the current step says nothing yet"
    assert patience.look(0.0) == 3.0
    patience.changing.add((b"router", 1))
    assert patience.look(0.0) == 60.0
    patience.changing.clear()
    for _ in range(1000):
        patience.look(0.02)
        patience.look(0.0)
    assert patience.look(0.0) == 1.0


def test_a_step_that_waits_for_a_core_is_not_stuck() -> None:
    waited = [7.0]
    patience = Patience(lambda: waited[0])
    patience.outputs = 20
    assert patience.look(0.9) == 1.0
    waited[0] += 2.5
    assert patience.look(1.4) == 3.5
    assert patience.look(3.6) == 3.5, "it is stuck, whatever came before"
    patience = Patience(lambda: waited[0])
    patience.outputs = 20
    assert [patience.look(seconds) for seconds in (0.6, 0.0, 0.7)] == [1.0, 6.0, 6.0], "each step by itself"


def test_what_a_process_waits_for_a_core() -> None:
    """The oracle: more processes that compute than there are cores, each of which has to wait for its turns."""
    script = """import time
from apps.llm.router.wire.patience import core_waited
before, began = core_waited(), time.monotonic()
while time.monotonic() < began + 1:
    pass
print(core_waited() - before)"""
    cores = len(os.sched_getaffinity(0))
    run = [subprocess.Popen([sys.executable, "-c", script], stdout=-1, text=True) for _ in range(3 * cores)]
    waited = [float(process.communicate()[0]) for process in run]
    assert sum(waited) > len(run) / 4 and max(waited) < 10
    before = core_waited()
    time.sleep(0.2)
    assert core_waited() - before < 10


def test_lose_stuck(scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect) -> None:
    engine, served = scripted
    engine.queued.set_result(None)
    connected = connect(served.endpoint)
    reader = start(connected.engine, request())
    connected.engine.lose_stuck(10.0)
    engine.now = replace(engine.now, step_running_s=4.0)
    until(lambda: connected.engine.stats().step_running_s == 4.0)
    assert not reader.ended.is_set()
    connected.engine.lose_stuck(2.0)
    assert reader.ended.wait(240) and reader.reasons() == ["error"]
    until(lambda: engine.aborted == [engine.submitted[0][0][0].id])


@pytest.mark.slow
def test_a_router_that_does_not_read_is_left(
    connect: Connect, dealer: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "SILENT_MS", 10**6)  # libzmq would close the connection
    engine = ScriptedEngine()
    served = ServedEngine(engine, "127.0.0.1", "scripted")  # type: ignore[arg-type]
    engine.queued.set_result(None)
    other = connect(served.endpoint)
    socket = dealer(served.endpoint, RCVHWM=1)
    socket.send(messages.encode(Hello(messages.VERSION)))
    socket.send(messages.submit_message(1, [request()]))
    until(lambda: bool(engine.submitted))
    ((inner,), sink) = engine.submitted[0]
    large = TokenOutput(request=inner.id, embedding=bytes(2**20))
    sent = 0
    while not engine.aborted:
        sent += 1
        sink([large])
        until(lambda: not served._mailbox._things)
    until(lambda: engine.aborted == [inner.id])
    assert 64 < sent < 300, "the kernel keeps some too"
    while not isinstance(last := messages.decode_for_router(socket.recv()), messages.Goodbye):
        pass
    assert "64 MiB" in last.reason and not other.losses
    served.close()


def test_submits_that_cannot_be_sent_are_refused(
    scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "SILENT_ROUNDS", 10**6)
    network = CutNetwork(int(scripted[1].endpoint.address.rpartition(":")[2]))
    remote = connect(msgspec.structs.replace(scripted[1].endpoint, address=f"tcp://127.0.0.1:{network.port}")).engine
    network.cut()
    queued = [remote.submit([request(range(300_000))], Reader([]).sink) for _ in range(150)]
    until(lambda: any(each.done() for each in queued))
    refused = next(each for each in queued if each.done())
    assert type(refused.exception()) is api.QueueFull
    network.close()


def test_a_large_step_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MOST_BYTES", 1000)
    outputs = [TokenOutput(request=i, embedding=bytes(size)) for i, size in enumerate((400, 400, 400, 2000))]
    parts = [messages.decode_for_router(part) for part in messages.output_messages([5, 6, 7, 8], outputs)]
    assert len(parts) > 1 and [id for part in parts for id in part.ids] == [5, 6, 7, 8]
    got = [output for part in parts for output in part.outputs]
    assert got[:3] == outputs[:3] and got[3].finish_reason == "error" and got[3].of_answer


def test_much_news_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "NAMES", 10)
    names = tuple(bytes([i]) for i in range(35))
    news = [(0, CacheNews(number=9, whole=True, stored=names)), (1, CacheNews(number=4, forgotten=names[:8]))]
    beats = [messages.decode_for_router(beat) for beat in messages.heartbeats(ScriptedEngine().now, 1.0, None, news)]
    heard = [each for beat in beats for each in beat.news]
    assert len(beats) > 3 and all(len(each.stored) + len(each.forgotten) <= 10 for _, each in heard)
    assert [each.whole for _, each in heard] == [True, False, False, False, False]
    assert tuple(name for rank, each in heard if not rank for name in each.stored) == names
    assert heard[-1] == news[1]


def test_a_late_round_counts_nothing(
    scripted: tuple[ScriptedEngine, ServedEngine], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a router whose every round is late, however silent its replica is."""
    connected = connect(scripted[1].endpoint)
    counted = threading.Event()
    count = hub.Wire._count

    def late(wire: hub.Wire, late: bool) -> None:
        for line in wire._lines.values():
            line.silent_rounds = 100
        count(wire, True)
        counted.set()

    monkeypatch.setattr(hub.Wire, "_count", late)
    assert counted.wait(240)
    assert not connected.losses


def test_one_thread_for_all(served: ServedEngine, connect: Connect) -> None:
    first, second = (connect(served.endpoint).engine for _ in range(2))
    assert first._wire is second._wire
