"""The order in which Serve is shut down, with stand-ins for Ray. Real servers: tests/podslice/test_draining.py."""

import subprocess
import sys

import pytest

from apps.serving import private_ray, shutdown

NO_MODEL, LONG = "stopped meanwhile", "slow"


class Stand:
    """What happened, in order. Of two applications, one does not answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interrupted: bool = False):
        self.happened: list[str] = []
        self._interrupted, self._at_proxies = interrupted, [2, 1, 0]
        monkeypatch.setattr(private_ray, "drain_timeouts", lambda: {NO_MODEL: 1.0, LONG: 60.0})
        monkeypatch.setattr(private_ray, "open_at_proxies", self._open_at_proxies)
        monkeypatch.setattr(shutdown.serve, "get_app_handle", lambda name: Handle(name, self))
        monkeypatch.setattr(shutdown, "_shutdown", lambda: self.happened.append("shut down"))

    def _open_at_proxies(self) -> int:
        left = self._at_proxies.pop(0)
        self.happened.append(f"{left} at the proxies")
        return left

    async def results(self, name: str) -> list[int]:
        if self._interrupted:
            raise KeyboardInterrupt
        if name == NO_MODEL:
            raise RuntimeError("no replica")
        self.happened.append(f"{name} drained")
        return [0]


class Handle:
    def __init__(self, name: str, stand: Stand):
        self._name, self._stand = name, stand

    def broadcast(self, method: str, timeout_s: float) -> "Handle":
        assert method == "drain" and timeout_s in (1.0, 60.0)
        return self

    async def results_async(self, timeout_s: float) -> list[int]:
        return await self._stand.results(self._name)


def test_replicas_then_proxies_then_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    stand = Stand(monkeypatch)
    shutdown.shut_down()
    assert stand.happened == [
        f"{LONG} drained",
        "2 at the proxies",
        "1 at the proxies",
        "0 at the proxies",
        "shut down",
    ]


def broken() -> dict[str, float]:
    raise RuntimeError("the controller is gone")


@pytest.mark.parametrize("how", ["interrupted", "broken", "in no time"])
def test_it_always_ends(monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    stand = Stand(monkeypatch, interrupted=how == "interrupted")
    if how == "broken":
        monkeypatch.setattr(private_ray, "drain_timeouts", broken)
    shutdown.shut_down(finish=how != "in no time")
    assert stand.happened == ["shut down"]


@pytest.mark.slow
@pytest.mark.parametrize("application", ["apps.llm", "apps.stable_diffusion", "apps.cell"])
def test_who_builds_an_application_shuts_down_so(application: str) -> None:
    """`serve run` calls `serve.shutdown` on Ctrl-C, in the process in which it has built the application."""
    code = f"from {application} import build; from ray import serve; print(serve.shutdown.__module__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "apps.serving.shutdown"
