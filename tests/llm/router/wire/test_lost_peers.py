"""The end of a replica, of a router and of the network between them."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from apps.llm.api import EngineStopped
from apps.llm.engine.engine import JaxEngine
from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.served import ServedEngine
from tests.llm.engine.tiny_models import environment
from tests.llm.router.wire.asking import Connected, ask, request, start, until
from tests.llm.router.wire.proxy import CutNetwork

Connect = Callable[[Endpoint], Connected]
HERE = Path(__file__).parent


def in_process(name: str, *arguments: str) -> tuple["subprocess.Popen[str]", str]:
    """A process, and the first line that it prints."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / name), *arguments], env=environment(), stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


class Replica:
    def __init__(self, process: "subprocess.Popen[str]", line: str):
        self.process = process
        self.endpoint = msgspec.msgpack.decode(bytes.fromhex(line), type=Endpoint)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


@pytest.fixture(scope="module")
def replica(llama: Path, compile_cache: str, engine: JaxEngine) -> Iterator[Replica]:
    """In a process of its own. (`engine` has filled the compile cache before.)"""
    process, line = in_process("replica_process.py", str(llama), compile_cache)
    yield Replica(process, line)
    process.kill()
    process.wait()


@pytest.fixture
def network(replica: Replica) -> Iterator[CutNetwork]:
    network = CutNetwork(int(replica.endpoint.address.rpartition(":")[2]))
    yield network
    network.close()


def lost_once(connected: Connected, reader: Any, because: str) -> None:
    """It is told of the loss once, in the wire's thread, and no output comes afterwards."""
    assert connected.lost.wait(240)
    calls = reader.calls
    with pytest.raises(EngineStopped, match=because):
        start(connected.engine, request())
    with pytest.raises(EngineStopped, match=because):
        connected.engine.check()
    with pytest.raises(EngineStopped, match=because):
        connected.engine.load_adapter("a", "none")
    assert not connected.engine.busy
    time.sleep(0.5)
    assert reader.calls == calls and not reader.ended.is_set()
    ((remote, reason, thread),) = connected.losses
    assert remote is connected.engine and because in reason and thread == "podslice-wire"


@pytest.mark.slow
def test_a_stopped_replica_is_lost_and_can_be_reached_again(replica: Replica, connect: Connect) -> None:
    connected = connect(replica.endpoint)
    reader = start(connected.engine, request(limit=128), request(limit=128))
    assert reader.began.wait(240)
    replica.signal(signal.SIGSTOP)
    try:
        lost_once(connected, reader, "silent")
    finally:
        replica.signal(signal.SIGCONT)
    again = connect(replica.endpoint)
    until(lambda: again.engine.stats().running == again.engine.stats().pages_used == 0)
    assert ask(again.engine, request())[0][-1].finish_reason == "length"
    assert len(connected.losses) == 1


@pytest.mark.slow
def test_a_cut_network(replica: Replica, network: CutNetwork, connect: Connect) -> None:
    far = connect(replica.endpoint)
    connected = connect(msgspec.structs.replace(replica.endpoint, address=f"tcp://127.0.0.1:{network.port}"))
    reader = start(connected.engine, *(request(limit=128) for _ in range(100)))
    assert reader.began.wait(240)
    until(lambda: far.engine.stats().running > 0)
    network.cut()
    lost_once(connected, reader, "silent")
    until(lambda: far.engine.stats().running + far.engine.stats().waiting == 0)
    ended = far.engine.stats().generated_tokens
    assert ended < 100 * 100, "the replica has aborted them"
    assert not far.losses


def test_a_killed_replica(replica: Replica, connect: Connect) -> None:
    """The last test with this replica."""
    connected = connect(replica.endpoint)
    reader = start(connected.engine, request(limit=128))
    assert reader.began.wait(240)
    replica.signal(signal.SIGKILL)
    lost_once(connected, reader, "ended the connection")
    with pytest.raises(ConnectionError, match="replica-1"):
        connect(replica.endpoint)


@pytest.mark.slow
@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGSTOP])
def test_a_router_that_vanishes(end: int, engine: JaxEngine, served: ServedEngine, connect: Connect) -> None:
    stays = connect(served.endpoint)
    before = engine.stats().generated_tokens
    mine = start(stays.engine, request(limit=128))
    process, line = in_process("router_process.py", msgspec.msgpack.encode(served.endpoint).hex())
    assert line == "runs"
    process.send_signal(end)
    try:
        later = start(stays.engine, request(limit=128))
        assert mine.ended.wait(240) and later.ended.wait(240)
        until(lambda: not engine.busy)
    finally:
        process.kill()
        process.wait()
    assert mine.reasons() == later.reasons() == ["length"]
    whole = len(later.tokens()[0])
    generated = engine.stats().generated_tokens - before
    assert 2 * whole < generated < 3.9 * whole, "its two requests were aborted, and did not end"
    assert engine.stats().pages_used == 0 and not stays.losses
