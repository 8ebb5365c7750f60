"""Hosts that do not start: Ray may time out on a busy machine, so each gets a few attempts."""

import pytest

from kuberay.local import ServiceFailed, cluster
from kuberay.local.hosts import plan_of
from kuberay.render import render
from ray_configs.loading import load


class FakeRaylet:
    """A raylet that fails as often as `failures` says for its host, and is up the next time."""

    failures: dict[str, int]
    pid = 0
    why_it_ended = "Ray's gcs_server ended with status -9"

    def __init__(self, host, site, ports, head):
        self.host = host
        self.failed = self.failures.get(host.name, 0) > 0
        self.up = False
        if self.failed:
            self.failures[host.name] -= 1

    def look(self):
        self.up = self.up or not self.failed
        return not self.failed

    def stop(self):
        self.failed = True

    def wait(self, timeout_s):
        pass

    def last_words(self, lines=0):
        return "timed out"


def started(monkeypatch, failures: dict[str, int]) -> tuple[cluster.EmulatedCluster, list[str]]:
    monkeypatch.setattr(FakeRaylet, "failures", failures, raising=False)
    monkeypatch.setattr(cluster, "Raylet", FakeRaylet)
    monkeypatch.setattr(cluster.container, "become_subreaper", lambda: None)
    monkeypatch.setattr(cluster.container, "descendants", lambda root, besides: iter(()))
    manifest = next(item for item in render(load("ray_configs.catalog.local")) if item["kind"] == "RayService")
    said: list[str] = []
    return cluster.EmulatedCluster(plan_of(manifest, address="127.0.0.2"), None, iter(()), said.append), said


@pytest.mark.parametrize("host", ["head", "cpu-0-0"])
@pytest.mark.parametrize(("failures", "comes_up"), [(0, True), (2, True), (3, False)])
def test_a_host_has_three_attempts(monkeypatch, host, failures, comes_up):
    emulated, said = started(monkeypatch, {host: failures})

    def ticks() -> None:
        for _ in range(10):
            emulated.tick(set)

    if comes_up:
        ticks()
        assert emulated.ready
    else:
        with pytest.raises(ServiceFailed, match=f"host {host} did not start in 3 attempts:\ntimed out"):
            ticks()
    assert said == [f"host {host} did not start; retrying: timed out"] * min(failures, 2)


def test_attempts_are_counted_again_once_the_slice_was_up(monkeypatch):
    failures = {"cpu-0-0": 2}
    emulated, said = started(monkeypatch, failures)
    for _ in range(5):
        emulated.tick(set)
    (running,) = emulated.slices
    failures["cpu-0-0"] = 2
    running.raylets.clear()
    running.phase = cluster.SlicePhase.starting
    for _ in range(5):
        emulated.tick(set)
    assert emulated.ready and len(said) == 4


def test_a_head_that_ends_takes_every_host_with_it_and_comes_back(monkeypatch):
    """KubeRay does that too: a host that knows a dead head cannot join another."""
    monkeypatch.setattr(cluster, "RECREATE_DELAY_S", 0)
    emulated, said = started(monkeypatch, {})
    for _ in range(3):
        emulated.tick(set)
    emulated.note_ready()
    for heads in range(2, 2 + cluster.ATTEMPTS):
        before = [emulated.head, *(raylet for running in emulated.slices for raylet in running.raylets.values())]
        assert emulated.ready and len(before) == 2
        emulated.head.stop()
        for _ in range(9):
            emulated.tick(set)
        after = [emulated.head, *(raylet for running in emulated.slices for raylet in running.raylets.values())]
        assert emulated.ready and emulated.heads == heads and not {*before} & {*after}
        assert all(raylet.failed for raylet in before)
        emulated.note_ready()
    assert [line for line in said if "gcs_server ended with status -9" in line] == [said[0]] * cluster.ATTEMPTS


def test_a_head_that_ends_before_the_service_is_ready_has_three_attempts(monkeypatch):
    emulated, _ = started(monkeypatch, {})
    with pytest.raises(ServiceFailed, match=r"head ended 3 times .* gcs_server ended with status -9:\ntimed out"):
        for _ in range(9):
            emulated.tick(set)
            emulated.tick(set)
            emulated.head.stop()
