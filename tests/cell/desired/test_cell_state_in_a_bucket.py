"""The state on gs://, over HTTP to something that speaks Cloud Storage's protocol."""

from collections.abc import Iterator

import pytest

from apps.cell.desired.store import StateError, StateTaken, Store
from apps.cell.errors import Unavailable
from tests.cell.desired.killed_cell import opened
from tests.cloud_storage import Storage, cloud_storage

MODEL = {"model": "/sax/test/m", "model_path": "catalog.local", "replicas": 2}
URI = "gs://a-bucket/cells/mine"


@pytest.fixture
def storage() -> Iterator[Storage]:
    with cloud_storage() as found:
        yield found


@pytest.mark.slow
def test_a_life(storage: Storage) -> None:
    admin = opened(URI)
    for number in range(14):
        admin.publish(None, MODEL | {"model": f"/sax/test/m{number}"})
    assert opened(URI).state == admin.state
    names = storage.names("a-bucket")
    assert "cells/mine/test/lease.json" in names
    assert [name for name in names if "state" in name] == [
        f"cells/mine/test/state-{number:09d}.json" for number in range(6, 16)
    ]


def test_two_writers(storage: Storage) -> None:
    one, other = opened(URI), opened(URI)
    one.publish(None, MODEL)
    with pytest.raises(Unavailable, match="written by another cell"):
        other.publish(None, MODEL | {"model": "/sax/test/n"})
    other.publish(None, MODEL | {"model": "/sax/test/n"})
    assert list(opened(URI).state.models) == ["/sax/test/m", "/sax/test/n"]


@pytest.mark.slow
def test_a_write_whose_answer_was_lost_is_sent_again_and_is_no_conflict(storage: Storage) -> None:
    admin = opened(URI)
    storage.lose_answers = 1
    admin.publish(None, MODEL)
    assert list(opened(URI).state.models) == ["/sax/test/m"]
    with pytest.raises(StateTaken):
        Store(URI, "test").write(2, admin.state)


def test_a_damaged_object_stops_the_cell_and_stays(storage: Storage) -> None:
    opened(URI).publish(None, MODEL)
    place = "a-bucket", "cells/mine/test/state-000000002.json"
    storage.put(*place, b"{")
    with pytest.raises(StateError, match=r"state-000000002\.json is damaged"):
        opened(URI)
    assert storage.objects[place][1] == b"{"
