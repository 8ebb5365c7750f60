"""From what is to run and what runs to the steps between them."""

from dataclasses import replace

import pytest

from apps.cell.reconcile import Delete, Deploy, ReplicaStatus, ServeApp, Target, Version, steps, surge_percent
from ray_configs.llm import AdapterSource


def app(status: str = "RUNNING", version: str = "one.0", wanted: int = 1, surge: int = 0) -> ServeApp:
    return ServeApp(status, "", version, wanted, surge, ())


SQL = AdapterSource(location="/adapters/sql", version=0)
ONE = Target("one", 1, 0)


@pytest.mark.parametrize(
    ("targets", "apps", "failed_for_s", "expected"),
    [
        ({"m": ONE}, {}, {}, [Deploy("m", Version("one"))]),
        ({"m": ONE}, {"m": app()}, {}, []),
        ({"m": ONE}, {"m": app("DEPLOYING")}, {}, []),
        ({}, {"m": app()}, {}, [Delete("m")]),
        ({}, {"m": app("DELETING")}, {}, []),
        ({"m": ONE}, {"m": app("DELETING")}, {}, []),  # published anew: waits until the old one is gone
        ({"m": Target("one", 0, 0)}, {"m": app()}, {}, [Delete("m")]),
        ({"m": Target("one", 0, 0)}, {}, {}, []),
        ({"m": Target("one", 2, 0)}, {"m": app()}, {}, [Deploy("m", Version("one"))]),  # same version: nobody restarts
        ({"m": Target("one", 2, 0)}, {"m": app(version="one.3")}, {}, [Deploy("m", Version("one", 3))]),
        ({"m": Target("two", 1, 0)}, {"m": app(version="one.3")}, {}, [Deploy("m", Version("two"))]),
        ({"m": Target("one", 1, 100)}, {"m": app()}, {}, [Deploy("m", Version("one"))]),
        ({"m": Target("one", 1, 0, {"sql": SQL})}, {"m": app()}, {}, [Deploy("m", Version("one"))]),
        ({"m": Target("one", 1, 0, {"sql": SQL})}, {"m": replace(app(), adapters={"sql": SQL})}, {}, []),
        ({"m": ONE}, {"m": app("DEPLOY_FAILED")}, {"m": 14}, []),
        ({"m": ONE}, {"m": app("DEPLOY_FAILED")}, {"m": 15}, [Deploy("m", Version("one", 1))]),
        ({"m": ONE}, {"m": app("DEPLOY_FAILED", "one.1")}, {"m": 15}, []),  # twice as long each time
        ({"m": ONE}, {"m": app("DEPLOY_FAILED", "one.1")}, {"m": 30}, [Deploy("m", Version("one", 2))]),
        ({"m": ONE}, {"m": app("DEPLOY_FAILED", "one.20")}, {"m": 600}, [Deploy("m", Version("one", 21))]),
        ({"m": Target("two", 1, 0)}, {"m": app("DEPLOY_FAILED")}, {"m": 0}, [Deploy("m", Version("two"))]),
        ({"m": ONE}, {"m": app(version="")}, {}, [Deploy("m", Version("one"))]),
    ],
)
def test_table(
    targets: dict[str, Target], apps: dict[str, ServeApp], failed_for_s: dict[str, float], expected: list[object]
) -> None:
    assert list(steps(targets, apps, failed_for_s)) == expected


def test_a_replica_that_is_told_of_an_adapter_still_answers() -> None:
    states = ("RUNNING", "UPDATING", "STARTING", "STOPPING")
    assert replace(app(), replicas=tuple(ReplicaStatus(state, state, "", "") for state in states)).active == 2


@pytest.mark.parametrize(
    ("replicas", "spare", "percent"),
    [(1, None, 100), (1, 0, 0), (1, 1, 100), (2, 1, 50), (3, 1, 33), (4, 9, 100), (0, 2, 0)],
)
def test_an_update_takes_no_more_slices_than_are_spare(replicas: int, spare: int | None, percent: int) -> None:
    assert surge_percent(replicas, spare) == percent
    if spare is not None and replicas:
        assert -(-replicas * percent // 100) <= max(spare, 0), "Serve rounds up"


def test_versions_read_back() -> None:
    for version in (Version("0af3"), Version("0af3", 12)):
        assert Version.parse(str(version)) == version
    assert Version.parse("of-somebody-else") == Version("of-somebody-else")
