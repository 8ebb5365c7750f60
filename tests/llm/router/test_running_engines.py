"""Which replicas are a fleet's members. Ray's word of who runs is given here; engines and wire are real."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from apps.llm.routed import RunningEngines
from apps.llm.router.wire.messages import Endpoint
from apps.llm.router.wire.served import ServedEngine
from apps.llm.text import Engine
from tests.llm.engine.asking import ids, read, settled
from tests.llm.engine.schedule.test_resume import PROMPT, params_of
from tests.llm.router.mortal import in_words
from tests.llm.serve.serving import wait_until

Load = Callable[..., Engine]


class Running:
    """A deployment's handle: `endpoints` are what its replicas answer."""

    def __init__(self) -> None:
        self.endpoints = list[Endpoint]()

    def broadcast(self, method: str) -> "Running":
        assert method == "endpoint"
        return self

    def results(self, **_: Any) -> list[Endpoint]:
        return self.endpoints


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
