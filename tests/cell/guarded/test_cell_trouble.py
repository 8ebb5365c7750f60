"""A cell whose storage or whose Serve fails: the rest goes on, callers are told, and the log stays readable.

The storage's refusals are the kernel's own: no file may grow (RLIMIT_FSIZE), as on a full disk.
"""

import itertools
import logging
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from apps.cell.admin import Admin
from apps.cell.cell import CellReconciler
from apps.cell.desired.store import RENEW_S, StateError, Store
from apps.cell.errors import CellError, Unavailable
from apps.cell.rounds import FIRST_AGAIN_S, LAST_AGAIN_S, Failures, Rounds
from apps.serving.files import Holder
from ray_configs.cell import CellConfig

MODEL = {"model": "/sax/test/m", "model_path": "catalog.local", "checkpoint": "None", "replicas": 1}


@contextmanager
def full_disk() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def admin_of(folder: Path) -> Admin:
    store = Store(str(folder), "test")
    return Admin(CellConfig(state_uri=str(folder)), store, store.lease(Holder("me", "here")))


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class SomeApps:
    """Serve, which takes all models but one."""

    def __init__(self) -> None:
        self.deployed: list[str] = []

    def observe(self) -> dict[str, Any]:
        return {}

    def deploy(self, name: str, *_: Any) -> None:
        if name.endswith("/bad"):
            raise ValueError("Serve does not like it")
        self.deployed.append(name)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, logger="podslice")
    return caplog


def errors(lines: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in lines.records if record.levelno >= logging.ERROR]


def test_a_full_disk_stops_no_reconciling_and_is_told_once(
    tmp_path: Path, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin, clock, apps = admin_of(tmp_path), Clock(), SomeApps()
    admin.open()
    admin.publish(None, MODEL)
    before = admin.state
    failures = Failures(clock)
    monkeypatch.setattr("apps.cell.rounds.time.monotonic", clock)
    rounds = Rounds(admin.renew, CellReconciler(CellConfig(), admin, apps, failures).reconcile, failures)  # type: ignore[arg-type]
    with full_disk():
        for _ in range(5):
            clock.now += RENEW_S
            rounds.once()
        for call, body in (
            (admin.publish, MODEL | {"model": "/sax/test/n"}),
            (admin.update, {"model": "/sax/test/m", "replicas": 2}),
            (admin.unpublish, {"model": "/sax/test/m"}),
            (admin.set_acl, {"model": "/sax/test/m", "acl": "alice"}),
        ):
            with pytest.raises(Unavailable, match="cannot be written: File too large; the call changed nothing"):
                call(None, body)
    assert apps.deployed == ["/sax/test/m"] * 5, "every round reconciled"
    assert admin.state == before
    assert len(errors(lines)) == 1 and "lease" in errors(lines)[0]
    clock.now += RENEW_S
    rounds.once()
    admin.publish(None, MODEL | {"model": "/sax/test/n"})
    again = admin_of(tmp_path)
    again.open()
    assert set(again.state.models) == {"/sax/test/m", "/sax/test/n"}


def test_a_state_that_can_only_be_read_is_served(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    """Published models need not stop because their state's disk is full when the admin starts again."""
    first = admin_of(tmp_path)
    first.open()
    first.publish(None, MODEL)
    first.close()
    admin = admin_of(tmp_path)
    with full_disk():
        admin.open()
        assert list(admin.state.models) == ["/sax/test/m"]
        with pytest.raises(Unavailable, match="cannot be written"):
            admin.unpublish(None, {"model": "/sax/test/m"})
        with pytest.raises(StateError, match="cannot be written"):
            admin.renew()
    assert len(errors(lines)) == 1
    admin.renew()
    admin.unpublish(None, {"model": "/sax/test/m"})


def test_a_new_cell_that_cannot_write_does_not_start(tmp_path: Path) -> None:
    with full_disk(), pytest.raises((StateError, CellError), match="cannot be written"):
        admin_of(tmp_path / "new").open()


def test_what_serve_refuses_of_one_model_leaves_the_others(tmp_path: Path, lines: pytest.LogCaptureFixture) -> None:
    admin, apps = admin_of(tmp_path), SomeApps()
    admin.open()
    for name in ("a", "bad", "c"):
        admin.publish(None, MODEL | {"model": f"/sax/test/{name}"})
    cell = CellReconciler(CellConfig(), admin, apps)  # type: ignore[arg-type]
    for _ in range(3):
        cell.reconcile()
    assert apps.deployed == ["/sax/test/a", "/sax/test/c"] * 3
    entry = cell.entry("/sax/test/bad", admin.state.models["/sax/test/bad"])
    assert (entry["state"], entry["reason"]) == ("FAILED", "Serve does not like it")
    assert len(errors(lines)) == 1 and "/sax/test/bad cannot be loaded" in errors(lines)[0]


def test_a_failure_is_logged_after_ever_longer_times(lines: pytest.LogCaptureFixture) -> None:
    clock = Clock()
    failures = Failures(clock)
    began, logged = clock.now, []
    for _ in range(20_000):
        count = len(errors(lines))
        with failures.noting("the sky falls"):
            raise RuntimeError(f"blue {id(began)} {clock.now}")
        if len(errors(lines)) > count:
            logged.append(clock.now - began)
        clock.now += 2
    gaps = [later - earlier for earlier, later in itertools.pairwise(logged)]
    assert gaps[0] == FIRST_AGAIN_S and max(gaps) == LAST_AGAIN_S and gaps == sorted(gaps) and len(gaps) < 20
    with failures.noting("the sky falls"):
        raise RuntimeError("red")
    assert len(errors(lines)) == len(logged) + 1, "another error is news"
    with failures.noting("the sky falls"):
        pass
    assert lines.records[-1].levelno == logging.INFO
