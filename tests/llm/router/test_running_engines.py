"""Which replicas are a fleet's members. Ray's word of who runs is given here; engines and wire are real."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from ray.serve._private.common import DeploymentID
from ray.serve.exceptions import DeploymentUnavailableError

from apps.llm.api import EngineStopped
from apps.llm.router.fleet import Fleet
from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.served import ServedEngine
from apps.llm.running_engines import LOOK_S, RunningEngines
from apps.llm.text import Engine
from tests.llm.engine.asking import ids, read, settled
from tests.llm.engine.schedule.test_resume import PROMPT, params_of
from tests.llm.router.mortal import in_words
from tests.llm.serve.serving import wait_until

Load = Callable[..., Engine]


class Running:
    """A deployment's handle: `endpoints` are what its replicas answer, each its own or an error."""

    def __init__(self) -> None:
        self.endpoints = list[Endpoint | TimeoutError]()
        self.asked = 0  # calls for any replica, which have Serve start one
        self.endpoint = self

    def broadcast(self, method: str) -> "Running":
        assert method == "endpoint"
        return self

    def results(self, **_: Any) -> list[Endpoint | TimeoutError]:
        """As `DeploymentBroadcastResponse.results` has it, with `return_exceptions`."""
        if not self.endpoints:
            raise DeploymentUnavailableError(DeploymentID("LLMEngine"))
        return self.endpoints

    def remote(self) -> "Running":
        self.asked += 1
        return self

    def result(self, **_: Any) -> Endpoint:
        wait_until(lambda: bool(self.endpoints))
        (first,) = self.endpoints
        assert isinstance(first, Endpoint)
        return first


@pytest.fixture
def replicas(load: Load) -> Iterator[list[ServedEngine]]:
    served = [ServedEngine(load().tokens, "127.0.0.1", name) for name in ("first", "second")]
    yield served
    for replica in served:
        replica.close()
    settled(load())


def test_members_are_those_that_run(load: Load, replicas: list[ServedEngine]) -> None:
    handle, (whole,) = Running(), read(load().submit(PROMPT, params_of("sampled", 100)))
    handle.endpoints = [replicas[0].endpoint]
    engines = RunningEngines(handle)  # type: ignore[arg-type]
    fleet = engines.start(1.05)
    assert fleet.members == ["replica first"]
    generation = in_words(load(), fleet).submit(PROMPT, params_of("sampled", 100))
    first = next(iter(generation))
    handle.endpoints = [replica.endpoint for replica in replicas]
    wait_until(lambda: len(fleet.members) == 2)
    handle.endpoints = [replicas[1].endpoint]  # Serve is about to stop the other
    wait_until(lambda: fleet.members == ["replica second"])
    assert ids([first, *read(generation)[0]]) == ids(whole)
    (remote,) = engines._remotes.values()
    fleet.lost(remote, "has failed once")
    assert fleet.members == []
    wait_until(lambda: fleet.members == ["replica second"])
    replicas[1].drain()
    wait_until(lambda: fleet.members == [])
    engines.close()
    fleet.shutdown()


@pytest.mark.slow
def test_a_silent_one_hides_no_other(load: Load, replicas: list[ServedEngine]) -> None:
    """A stopped process answers nobody until Serve kills it, which may take a minute. One that comes then is needed."""
    handle = Running()
    handle.endpoints = [replicas[0].endpoint]
    engines = RunningEngines(handle)  # type: ignore[arg-type]
    fleet = engines.start(1.05)
    handle.endpoints = [TimeoutError(), replicas[1].endpoint]
    wait_until(lambda: len(fleet.members) == 2)
    time.sleep(3 * LOOK_S)
    assert len(fleet.members) == 2, "what does not answer Ray may still answer the wire, whose word counts"
    engines.close()
    fleet.shutdown()


@pytest.mark.slow
def test_requests_have_an_engine_started_where_none_is_left(load: Load, replicas: list[ServedEngine]) -> None:
    """With `min_replicas=0`, Serve stops the last engine when nobody has asked for a while, and then somebody does."""
    (whole,) = read(load().submit(PROMPT, params_of("sampled", 20)))
    handle = Running()
    handle.endpoints = [replicas[0].endpoint]
    engines = RunningEngines(handle)  # type: ignore[arg-type]
    fleet = engines.start(1.05)
    handle.endpoints = []
    replicas[0].drain()
    wait_until(lambda: fleet.members == [])
    time.sleep(3 * LOOK_S)
    assert handle.asked == 0
    generation = in_words(load(), fleet).submit(PROMPT, params_of("sampled", 20))
    wait_until(lambda: handle.asked == 1)
    handle.endpoints = [replicas[1].endpoint]
    assert ids(read(generation)[0]) == ids(whole)
    engines.close()
    fleet.shutdown()


class Changing:
    """A service that is changed in place: engines of before and after, which the router of each sees."""

    def __init__(self, load: Load):
        self.load, self.handle = load, Running()
        self.started = list[ServedEngine]()
        self.routers = list[RunningEngines]()

    def start(self, config: str, page_root: bytes | None = None) -> ServedEngine:
        served = ServedEngine(self.load().tokens, "127.0.0.1", f"{config} {len(self.started)}", config)
        if page_root is not None:
            served.endpoint = msgspec.structs.replace(served.endpoint, page_root=page_root)
        self.started.append(served)
        self.handle.endpoints.append(served.endpoint)
        return served

    def stop(self, served: ServedEngine) -> None:
        """As Serve does: it is taken off the list, and told to end."""
        self.handle.endpoints.remove(served.endpoint)
        served.drain()

    def router(self, config: str, memory: "Memory | None" = None) -> RunningEngines:
        self.routers.append(RunningEngines(self.handle, config, memory=memory))  # type: ignore[arg-type]
        return self.routers[-1]


@pytest.fixture
def changing(load: Load) -> Iterator[Changing]:
    changing = Changing(load)
    yield changing
    for router in changing.routers:
        router.close()
        if router._fleet is not None:
            router._fleet.shutdown()
    for served in changing.started:
        served.close()
    settled(load())


@pytest.mark.slow
def test_a_router_begins_with_an_engine_of_its_own_config(changing: Changing) -> None:
    """Or it would answer with the former limits, or another model's tokens, for as long as it lives."""
    changing.start("before")
    started = list[Fleet]()
    waits = threading.Thread(target=lambda: started.append(changing.router("after").start(1.05)))
    waits.start()
    time.sleep(4 * LOOK_S)
    assert not started
    after = changing.start("after")
    waits.join()
    assert started[0].members == [f"replica {after.endpoint.replica}"]
    time.sleep(4 * LOOK_S)
    assert started[0].members == [f"replica {after.endpoint.replica}"]


@pytest.mark.slow
def test_open_answers_go_on_in_an_engine_of_the_next_config(load: Load, changing: Changing) -> None:
    (whole,) = read(load().submit(PROMPT, params_of("sampled", 100)))
    before = changing.start("before")
    fleet = changing.router("before").start(1.05)
    generation = in_words(load(), fleet).submit(PROMPT, params_of("sampled", 100))
    first = next(iter(generation))
    after = changing.start("after")
    time.sleep(4 * LOOK_S)
    assert fleet.members == [f"replica {before.endpoint.replica}"], "the former engine has them while it runs"
    changing.stop(before)
    assert ids([first, *read(generation)[0]]) == ids(whole)
    wait_until(lambda: fleet.members == [f"replica {after.endpoint.replica}"])


def test_answers_end_where_the_next_engine_has_another_model(load: Load, changing: Changing) -> None:
    (whole,) = read(load().submit(PROMPT, params_of("sampled", 100)))
    before = changing.start("before")
    fleet = changing.router("before").start(1.05)
    model = in_words(load(), fleet)
    generation = model.submit(PROMPT, params_of("sampled", 100))
    first = next(iter(generation))
    changing.start("after", b"another model's")
    changing.stop(before)
    assert ids([first, *read(generation)[0]]) == ids(whole), "it ends where it began"
    wait_until(lambda: fleet.members == [])
    (outputs,) = read(model.submit(PROMPT, params_of("sampled", 100)))
    with pytest.raises(EngineStopped, match="is being changed"):
        outputs[-1].raise_failure()


class Memory:
    """As the cluster's: `apps.serving.private_ray`."""

    def __init__(self) -> None:
        self.values = dict[str, bytes]()

    def kept(self, name: str) -> bytes:
        return self.values.get(name, b"")

    def keep(self, name: str, value: bytes) -> None:
        self.values[name] = value


def test_a_router_that_comes_anew_needs_no_engine(load: Load, changing: Changing) -> None:
    """A service that has gone to zero pays for no slice because a router's machine was lost."""
    (whole,) = read(load().submit(PROMPT, params_of("sampled", 20)))
    memory, handle = Memory(), changing.handle
    engine = changing.start("config")
    changing.router("config", memory).start(1.05)
    changing.stop(engine)
    fleet = changing.router("config", memory).start(1.05)
    assert fleet.members == [] and fleet.capabilities == load().tokens.capabilities and handle.asked == 0
    generation = in_words(load(), fleet).submit(PROMPT, params_of("sampled", 20))
    wait_until(lambda: handle.asked == 1)
    changing.start("config")
    assert ids(read(generation)[0]) == ids(whole)


def test_a_router_that_remembers_another_model_begins_anew(load: Load, changing: Changing) -> None:
    """Somebody has replaced the checkpoint, and with it perhaps the tokenizer."""
    memory = Memory()
    other = msgspec.structs.replace(load().tokens.capabilities, page_root=b"another model's")
    memory.keep("config", msgspec.msgpack.encode(other))
    fleet = changing.router("config", memory).start(1.05)
    fleet.check()
    generation = in_words(load(), fleet).submit(PROMPT, params_of("sampled", 20))
    changing.start("config")
    with pytest.raises(EngineStopped, match="is another one now"):
        read(generation)[0][-1].raise_failure()
    with pytest.raises(EngineStopped, match="is another one now"):
        fleet.check()
    assert changing.router("config", memory).start(1.05).capabilities == load().tokens.capabilities


@pytest.mark.parametrize("kept", [b"", b"\xc1", msgspec.msgpack.encode({"vocab_size": 1})])
def test_what_is_not_understood_is_not_remembered(load: Load, changing: Changing, kept: bytes) -> None:
    memory = Memory()
    memory.keep("config", kept)
    changing.start("config")
    handle = changing.handle
    (endpoint,), handle.endpoints = handle.endpoints, []
    started = list[Fleet]()
    waits = threading.Thread(target=lambda: started.append(changing.router("config", memory).start(1.05)))
    waits.start()
    wait_until(lambda: handle.asked == 1)
    assert not started
    handle.endpoints = [endpoint]
    waits.join()
    assert started[0].capabilities == load().tokens.capabilities
