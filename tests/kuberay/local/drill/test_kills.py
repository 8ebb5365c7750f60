"""The course of a drill and its verdict, with the emulated cluster's part played by the test.

`test_a_drill_strikes_and_ends` is the real thing: raylets, Serve, routers and engines.
"""

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kuberay.local.cluster import SlicePhase
from kuberay.local.dashboard import App
from kuberay.local.drill.blows import DrillOptions, blow_of
from kuberay.local.drill.kills import Drill, StreamsHarmed
from kuberay.local.hosts import HostsPlan, plan_of
from kuberay.render import render
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from tests.http_servers import StandInServer
from tests.kuberay.local.drill.test_streams import Answering


def service(**fields: Any) -> Service:
    llm = LLMConfig(model="meta-llama/Meta-Llama-3-8B", model_id="m", slice="v5e:2x4:8t", **fields)
    return Service(name="drilled", applications=(Application(config=llm),))


def plan(of: Service) -> HostsPlan:
    manifest = next(item for item in render(of) if item["kind"] == "RayService")
    return plan_of(manifest, address="127.0.0.2")


class Played:
    """A cluster whose slice is gone for a second after each kill, while the server does harm."""

    def __init__(self, server: Any, harm: str | None):
        self.slices = [SimpleNamespace(phase=SlicePhase.up)]
        self._server, self._harm, self.killed, self._told_until = server, harm, 0, math.inf

    def kill_slice(self, number: int) -> None:
        self.killed += 1
        self.slices[number].phase, self._until = SlicePhase.going, time.monotonic() + 1
        self._server.harm = self._harm

    def preempt_slice(self, number: int) -> None:
        self._told_until = time.monotonic() + 0.5

    def tick(self) -> None:
        if time.monotonic() > self._told_until:
            self._told_until = math.inf
            self.kill_slice(0)
        if self.slices[0].phase is SlicePhase.going and time.monotonic() > self._until:
            self.slices[0].phase, self._server.harm = SlicePhase.up, None


def drilled(
    monkeypatch: pytest.MonkeyPatch, counts: Path, harm: str | None, of: Service, kills: int, preempt: bool = False
) -> tuple[Drill, int]:
    monkeypatch.setattr("kuberay.local.drill.kills.ANSWERING_S", (0.1, 0.2))
    monkeypatch.setattr("kuberay.local.drill.kills.PAGES_S", 0.0)
    monkeypatch.setattr(Answering, "do_GET", lambda self: self.answer("vllm:kv_cache_usage_perc{} 0.0\n"))
    app = App("llm", "RUNNING", "", {"RUNNING": 1}, 1, True)
    with StandInServer(Answering) as server:
        server.asked, server.harm = 0, None
        options = DrillOptions("preempt" if preempt else "kill", 0, kills, counts)
        blow = blow_of(options, plan(of), server.server_port)
        drill, cluster = Drill(of, blow, options, server.server_port), Played(server, harm)
        while drill.step(cluster, None, [app], ready=True):  # type: ignore[arg-type]
            cluster.tick()
            time.sleep(0.005)
        return drill, cluster.killed


@pytest.mark.slow
def test_harm_is_the_verdict(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drill, killed = drilled(monkeypatch, tmp_path / "counts.json", "cut", service(), 2)
    assert killed == 2
    with pytest.raises(StreamsHarmed, match=r"verdict: 2 kills of slice 0, \d+ answers, [1-9]") as harmed:
        drill.verdict()
    assert "ended before its [DONE]" in str(harmed.value) and "routers=0" in str(harmed.value)
    assert harmed.value.status == 1


@pytest.mark.slow
def test_a_run_goes_on_from_the_counts_of_another(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    first, _ = drilled(monkeypatch, counts, None, service(routers=1), 1)
    assert first.verdict().startswith("verdict: 1 kill of slice 0, ")
    answers = json.loads(counts.read_text())["answers"]
    second, killed = drilled(monkeypatch, counts, None, service(routers=1), 3)
    assert killed == 2, "the first run's kill counts"
    assert "(earlier runs have 1 of them)" in second.verdict()
    assert json.loads(counts.read_text())["answers"] > answers


@pytest.mark.slow
def test_a_preempted_slice_goes_only_after_its_notice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    drill, gone = drilled(monkeypatch, tmp_path / "counts.json", None, service(routers=1), 2, preempt=True)
    assert gone == 2, "the second not before the first has gone and come again"
    assert drill.verdict().startswith("verdict: 2 preemptions of slice 0, ")
    assert drill.counts.longest_recovery_s >= 1.5


@pytest.mark.slow
def test_nobody_asks_until_the_last_slice_is_given_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("kuberay.local.drill.kills.ANSWERING_S", (0.1, 0.2))
    monkeypatch.setattr(Answering, "do_GET", lambda self: self.answer("vllm:kv_cache_usage_perc{} 0.0\n"))
    up = SimpleNamespace(phase=SlicePhase.up, slice=SimpleNamespace(chips=8))
    cluster, quiet_since, asked, returns = SimpleNamespace(slices=[up]), 0.0, 0, 0
    gone_at = longest = away = 0.0
    with StandInServer(Answering) as server:
        server.asked, server.harm = 0, None
        options = DrillOptions("zero", times=2, counts=tmp_path / "counts.json")
        drill = Drill(service(routers=1), blow_of(options, plan(service()), 0), options, server.server_port)
        app = App("llm", "RUNNING", "", {"RUNNING": 1}, 1, True)
        while drill.step(cluster, None, [app], ready=True):  # type: ignore[arg-type]
            now = time.monotonic()
            if server.asked > asked:
                if not cluster.slices:
                    cluster.slices, returns = [up], returns + 1  # whoever asks brings it back
                quiet_since, asked = now, server.asked
            elif cluster.slices and asked and now - quiet_since > 1 and drill.counts.kills > returns:
                cluster.slices, gone_at = [], now
            if drill.counts.longest_recovery_s != longest:
                longest, away = drill.counts.longest_recovery_s, now - gone_at
            time.sleep(0.005)
    assert returns == 2, "and the second only after the first slice came back"
    assert drill.verdict().startswith("verdict: 2 starts from zero, ")
    assert 0 < longest <= away, "it counts from when the slice had gone, not from when nobody asked any more"


@pytest.mark.slow
def test_an_interrupted_drill_asks_for_nothing_more_and_keeps_its_counts(tmp_path: Path) -> None:
    counts, app = tmp_path / "counts.json", App("llm", "RUNNING", "", {"RUNNING": 1}, 1, True)
    with StandInServer(Answering) as server:
        server.asked, server.harm = 0, None
        options = DrillOptions("kill", 0, 3, counts)
        blow = blow_of(options, plan(service()), server.server_port)
        drill, cluster = Drill(service(), blow, options, server.server_port), Played(server, None)
        while drill.counts.answers < 20:
            assert drill.step(cluster, None, [app], ready=True)  # type: ignore[arg-type]
            time.sleep(0.005)
        assert " answers, 0 lost, 0 wrong" in drill.interrupted()
        assert json.loads(counts.read_text())["answers"] >= 20
        time.sleep(1)
        asked = server.asked
        time.sleep(1)
        assert server.asked == asked


CONFIG = """
from ray_configs.capacity import Spot
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
llm = LLMConfig(model="meta-llama/Meta-Llama-3-8B", slice="v5e:2x4:8t", routers=1, min_replicas=2, max_replicas=2)
service = Service(name="drilled", applications=(Application(config=llm, capacity=Spot()),))
"""


@pytest.mark.slow
@pytest.mark.parametrize("drill", [("--kill-slice", "0"), ("--preempt-slice", "0"), ("--upgrade",), ("--from-zero",)])
def test_a_drill_strikes_and_ends(local_run, tmp_path: Path, drill: tuple[str, ...]) -> None:
    config, counts = tmp_path / "drilled.py", tmp_path / "counts.json"
    config.write_text(CONFIG.replace("min_replicas=2", "min_replicas=0") if drill == ("--from-zero",) else CONFIG)
    run = local_run(str(config), "--tiny", *drill, "--counts", str(counts))
    run.wait_for("verdict", 1200)
    assert run.process.wait(60) == 0, run.output
    found = json.loads(counts.read_text())
    assert (found["kills"], found["lost"], found["wrong"]) == (1, 0, 0) and found["answers"] >= 16, run.output
