"""What is in front of the engines is killed: HAProxy, a router, the head's GCS. What each costs its clients is counted.

The oracle is the undisturbed answer: an answer that looks whole is that one. Run with -s, the counts are printed as a
table. A head with GCS fault tolerance is killed under traffic in tests/kubernetes/running_pods/test_small_service.py.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kuberay.local.drill.streams import STREAMS, DrillCounts, Streams
from tests.kuberay.local.drill.harm import processes_named
from tests.kuberay.local.local_runs import LocalRun, wait_until

CONFIG = """
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
llm = LLMConfig(model="meta-llama/Meta-Llama-3-8B", slice="v5e:2x4:8t", routers=2, min_replicas=2, max_replicas=2)
service = Service(name="fronted", applications=(Application(config=llm),))
"""
BACK_S = 600
REFUSED = ("lost: 503", "lost: [Errno 111]", "lost: All connection attempts failed")


class Noted(Streams):
    """Also says how streams were lost, and when one was answered last."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.ends = Counter[str]()
        self.whole: list[float] = []

    def _note(self, kind: str, failure: str, **counted: Any) -> None:
        super()._note(kind, failure, **counted)
        self.ends["refused" if failure.startswith(REFUSED) else failure.partition(":")[0] or "whole"] += 1
        if not failure:
            self.whole.append(time.monotonic())


def haproxy(run: LocalRun) -> int:
    """The one that clients are connected to."""
    ours = [process for pid in run.processes() if (process := psutil.Process(pid)).name() == "haproxy"]
    connected = Counter[int]()
    for process in ours:
        found = process.net_connections("inet")
        connected[process.pid] = sum(each.laddr.port == run.port and each.status == "ESTABLISHED" for each in found)
    return connected.most_common(1)[0][0]


def router(run: LocalRun) -> int:
    return processes_named(run.process.pid, "ServeReplica:llm:LLMRouter")[0]


def gcs(run: LocalRun) -> int:
    return next(pid for pid in run.processes() if psutil.Process(pid).name() == "gcs_server")


def engines(run: LocalRun) -> set[int]:
    return set(processes_named(run.process.pid, "ServeReplica:llm:LLMEngine"))


def struck(run: LocalRun, streams: Noted, victim: Callable[[LocalRun], int]) -> Counter[str]:
    """What becomes of the streams from a kill until all of them are answered again, by their ends."""
    time.sleep(4)  # all of them are somewhere within their answers
    streams.ends.clear()
    killed, struck_at = victim(run), time.monotonic()
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: len([at for at in streams.whole if at > struck_at + 5]) >= 2 * STREAMS, BACK_S, run=run)
    back_s = next(at for at in streams.whole if at > struck_at) - struck_at
    found = Counter(streams.ends)
    print(f"{victim.__name__:10}{dict(found)}, first whole answer after {back_s:.1f} s", flush=True)
    return found


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_what_a_lost_front_costs(local_run, tmp_path: Path) -> None:
    config = tmp_path / "fronted.py"
    config.write_text(CONFIG)
    run = local_run(str(config), "--tiny")
    run.wait_for(r"ready after \d+ s", 900)
    streams = Noted(run.url, "Meta-Llama-3-8B", None, DrillCounts())
    streams.record()
    streams.start()
    replicas = engines(run)
    try:
        lost = struck(run, streams, haproxy)
        assert 0 < lost["lost"] <= STREAMS, "connections through it, once"
        lost = struck(run, streams, router)
        assert 0 < lost["lost"] < STREAMS and not lost["refused"], (
            "its own clients' connections; the other has the rest"
        )
        assert engines(run) == replicas, "engines go on"
        run.wait_for("ready after")
        lost = struck(run, streams, gcs)
        assert lost["lost"] <= STREAMS and lost["refused"], "everything is recreated: without GCS fault tolerance"
    finally:
        streams.stop()
        wait_until(lambda: not streams.running, BACK_S, run=run)
    assert not streams.counts.wrong, streams.failures
    wait_until(lambda: not streams.pages_used(), 120, run=run)
    processes = run.processes()
    assert run.interrupt() == 0, run.output
    run.leaves_nothing(processes)
