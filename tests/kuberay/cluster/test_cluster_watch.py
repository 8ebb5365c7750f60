"""Watches that survive what happens to connections, and following a service until it is ready."""

import threading

import pytest
from manifests_of_a_service import ACCOUNT, service
from night import Night, unscheduled

from kuberay.cluster import follow, watch_stream
from kuberay.cluster.errors import ClusterError
from kuberay.cluster.follow import watch
from kuberay.cluster.status import describe


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_stream, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(follow, "SETTLE_S", 0.01)


def account(name: str):
    return ACCOUNT | {"metadata": {"name": name}}


def told(changes, count: int) -> list[tuple[str, str]]:
    """The next changes."""
    return [
        (change.type, change.object["metadata"]["name"] if change.object else "")
        for _, change in zip(range(count), changes)
    ]


def test_what_there_is_and_then_what_changes(server, cluster):
    server.store.put(account("a"))
    stream = cluster.watch("v1", "ServiceAccount")
    changes = iter(stream)
    assert told(changes, 2) == [("ADDED", "a"), ("SYNCED", "")]
    server.store.put(account("b"))
    server.store.put(account("b") | {"secrets": []})
    server.store.remove(account("a"))
    assert told(changes, 3) == [("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]
    stream.stop()
    assert told(changes, 1) == []


def test_goes_on_after_the_server_hangs_up(server, cluster):
    stream = cluster.watch("v1", "ServiceAccount")
    changes = iter(stream)
    assert told(changes, 1) == [("SYNCED", "")]
    server.store.put(account("a"))
    assert told(changes, 1) == [("ADDED", "a")]
    server.hang_up()
    server.trouble("reset", path="watch=")
    server.store.put(account("b"))  # while nobody watches
    assert told(changes, 1) == [("ADDED", "b")]
    assert server.calls("GET", "serviceaccounts?limit") == 1  # nothing was listed again
    stream.stop()


def test_lists_again_when_the_server_has_forgotten(server, cluster):
    stream = cluster.watch("v1", "ServiceAccount")
    changes = iter(stream)
    server.store.put(account("a"))
    assert told(changes, 2) == [("ADDED", "a"), ("SYNCED", "")]
    server.store.forget()
    server.hang_up()
    server.store.put(account("b"))
    assert told(changes, 3) == [("ADDED", "a"), ("ADDED", "b"), ("SYNCED", "")]
    stream.stop()


def test_gives_up_on_what_does_not_pass(server, cluster):
    changes = iter(cluster.watch("v1", "ServiceAccount"))
    assert told(changes, 1) == [("SYNCED", "")]
    server.forbidden.add("serviceaccounts")
    with pytest.raises(ClusterError, match="not allowed"):
        next(changes)


def test_gives_up_on_a_server_that_stays_broken(server, cluster):
    changes = iter(cluster.watch("v1", "ServiceAccount"))
    assert told(changes, 1) == [("SYNCED", "")]
    server.trouble("status", times=999, path="watch=")
    with pytest.raises(ClusterError, match="again and again"):
        next(changes)


def test_stop_from_another_thread(cluster):
    stream = cluster.watch("v1", "ServiceAccount")
    synced = threading.Event()
    ended = threading.Event()

    def follow_it() -> None:
        for _ in stream:
            synced.set()
        ended.set()

    threading.Thread(target=follow_it, daemon=True).start()
    assert synced.wait(10)
    stream.stop()
    assert ended.wait(10)


def test_follows_until_ready(server, cluster):
    night = Night(server)
    night.head()
    night.worker(**unscheduled("no room"))
    shown: list[str] = []

    def show(state) -> None:
        """Each look at the status lets the cluster take its next step."""
        shown.append(describe(state)[0])
        if len(shown) == 1:
            night.worker()
            night.status(False, "DEPLOYING", "UPDATING", "loading")
        elif "DEPLOYING" in shown[-1]:
            night.status(True, "RUNNING")

    state = watch(cluster, [service()], show, until_ready=True, timeout_s=20)
    assert state.ready
    assert "waits for capacity" in shown[0]
    assert any("DEPLOYING" in line for line in shown)
    assert shown[-1] == "llama is ready: 1 of 1 slices serve."


def test_nothing_new_is_not_shown(server, cluster):
    night = Night(server)
    shown = []

    def show(state) -> None:
        shown.append(state)
        if len(shown) == 1:
            server.event(night.service, "Normal", "nothing")  # wakes it, changes no word
            threading.Timer(0.3, night.status, (True, "RUNNING")).start()

    night.head()
    night.worker()
    watch(cluster, [service()], show, until_ready=True, timeout_s=20)
    assert len(shown) == 2


def test_stops_when_it_has_failed_for_good(server, cluster):
    Night(server).status(False, reason="ValidationFailed", said="bad")
    assert watch(cluster, [service()], lambda state: None, until_ready=True, timeout_s=20).failed


def test_time_runs_out(server, cluster):
    Night(server)
    with pytest.raises(ClusterError, match=r"Not ready after 0 s: llama is starting"):
        watch(cluster, [service()], lambda state: None, until_ready=True, timeout_s=0)
    assert not watch(cluster, [service()], lambda state: None, timeout_s=0).ready


def test_a_watch_that_dies_is_an_error(server, cluster):
    Night(server)

    def show(state) -> None:
        server.forbidden.add("pods")
        server.hang_up()

    with pytest.raises(ClusterError, match="pods is forbidden"):
        watch(cluster, [service()], show, until_ready=True, timeout_s=20)


def test_interrupt_shuts_the_watches(server, cluster):
    Night(server)

    def interrupt(state) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        watch(cluster, [service()], interrupt)
    for thread in threading.enumerate():
        if thread.name.endswith("(_report)"):
            thread.join(10)
            assert not thread.is_alive()
