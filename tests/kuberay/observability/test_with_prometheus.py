"""A whole service on this machine, a real Prometheus beside it: every expression finds data, every alert can fire."""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kuberay.local.folder import RunFolder
from kuberay.local.ports import address_of
from kuberay.observability import alert_groups, boards
from ray_configs.loading import load
from ray_configs.service import Service
from tests.http_servers import StandInHandler, StandInServer
from tests.kuberay.local.local_runs import LocalRun, serving_port, wait_until
from tests.kuberay.observability.prometheus import PERIOD_S, Prometheus, missing

SERVICE = """
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.observability import Observability
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig

# A KV cache that four sequences overflow, and a queue that ten requests do.
llm = LLMConfig(
    model="nobody/tiny", slice="v5e:2x4:4t", max_replicas=2, max_waiting=2,
    max_batch_size=4, max_step_tokens=8, max_model_len=64, page_size=8, pages=12,
)
service = Service(
    name="shop",
    applications=(
        Application(config=llm),
        Application(config=StableDiffusionConfig(slice="v5e:1x1"), route_prefix="/pictures"),
        Application(config=CellConfig(state_uri="{state}"), route_prefix="/cell"),
    ),
    observability=Observability(dashboards=True, alerts=True),
)
"""
NEVER = {
    "ray_cluster_pending_nodes": "Ray's autoscaler alone has nodes that are yet to come, and none runs here",
    "ray_podslice_drafted_tokens_total": "no model here speculates, and what was never counted is not there",
    "ray_podslice_accepted_tokens_total": "likewise",
    "ray_podslice_pictures_failed_total": "no picture of the demo model fails, and what was never counted is not there",
}
"""Metrics that cannot be here, and why."""
FOR_A_MOMENT = {
    "ray_cluster_idle_nodes": "a new slice is idle between two reports at most: a replica waits for it",
    "ray_podslice_host_hit_tokens_total": "no host memory is asked for, so there is nothing to divide by",
    "ray_podslice_host_pages_total": "likewise",
}
"""Metrics that can be here, and that nobody can count on."""
AFTER_A_LOSS = {"ray_cluster_failed_nodes", "ray_serve_health_check_failures_total"} | {
    f"ray_podslice_pause{part}_s_bucket" for part in ("", "_noticed", "_placed", "_computed")
}
"""Metrics that are there once a host has died."""
FOR_A_LOSS = {"PodsliceNoAnswers"}
"""Alerts that even with another bound need one."""
CELL_MODEL = {"max_batch_size": 4, "max_step_tokens": 8, "max_model_len": 64}
PATIENCE_S = 300


def expressions(service: Any, applications: list[str]) -> dict[str, str]:
    """Where each stands -> PromQL as Grafana would send it with everything chosen."""
    chosen = {"$__rate_interval": "1m", "$cluster": ".*", "$application": "|".join(applications)}
    found = {}
    for board, text in boards(service).items():
        for panel in json.loads(text)["panels"]:
            for target in panel["targets"]:
                expression = re.sub(r"\$\w+", lambda name: chosen[name[0]], target["expr"])
                found[f"{board}: {panel['title']}: {target['legendFormat']}"] = expression
    return found


def trial(group: dict[str, Any]) -> dict[str, Any]:
    """The rules with bounds that every value passes at once, told apart by a label."""
    rules = []
    for rule in group["rules"]:
        value = rule["expr"].rpartition(" > ")[0]
        if rule["alert"] == "PodsliceHeadUnseen":
            value = value.replace('job="shop"', 'job="nobody"')  # this service's head is seen
        rules.append(rule | {"expr": f"{value} > -1", "for": "0s", "labels": rule["labels"] | {"trial": "yes"}})
    return group | {"name": "trial", "rules": rules}


@contextmanager
def device_plugin(address: str) -> Iterator[None]:
    """In the place of GKE's, which has the chips' own metrics on port 2112 of every TPU machine; Ray reads them."""
    about = 'accelerator_id="4804690994094478883-0",make="cloud-tpu",model="tpu-v5-lite-podslice",tpu_topology="2x4"'
    values = {
        "duty_cycle": 71.0,
        "tensorcore_utilization": 42.0,
        "memory_bandwidth_utilization": 12.0,
        "memory_used": 8e9,
        "memory_total": 16e9,
    }
    page = "".join(f"# TYPE {name} gauge\n{name}{{{about}}} {value}\n" for name, value in values.items())

    class Page(StandInHandler):
        def do_GET(self) -> None:
            self.answer(page)

    with StandInServer(Page, (address, 2112)):
        yield


@contextmanager
def ending(thing: Any, end: Callable[[], object]) -> Iterator[Any]:
    try:
        yield thing
    finally:
        if thing.process.poll() is None:
            end()


class Traffic:
    """Requests of every kind that a panel shows."""

    def __init__(self, url: str):
        self.http = httpx.Client(base_url=url, timeout=PATIENCE_S, trust_env=False)
        self.count = 0

    def publish(self) -> None:
        """A model into the cell; until it is loaded, requests for it are answered with 503."""
        body = {"model": "/sax/test/demo", "model_path": "catalog.local", "replicas": 1, "overrides": CELL_MODEL}
        assert self.http.post("/cell/publish", json=body).is_success
        statuses = [503]
        deadline = time.monotonic() + PATIENCE_S
        while statuses[-1] != 200:
            assert time.monotonic() < deadline and statuses[-1] == 503, statuses
            time.sleep(PERIOD_S)
            statuses.append(self.cell())
        assert len(statuses) > 3, "too few to have a rate"

    def cell(self) -> int:
        return self.http.post(
            "/cell/v1/completions", json={"model": "demo", "prompt": "How", "max_tokens": 4}
        ).status_code

    def ask(self, prompt: str, tokens: int) -> int:
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        return self.http.post("/v1/completions", json=body).status_code

    def send(self) -> None:
        self.count += 1
        with ThreadPoolExecutor(10) as pool:
            statuses = set(pool.map(lambda number: self.ask(f"{self.count} {number}", 40), range(10)))
        assert statuses <= {200, 429}
        for _ in range(2):
            assert self.ask("The days of the week are seven", 2) == 200
        assert self.http.post("/v1/embeddings", json={"input": "a word"}).is_success
        assert self.http.post("/score", json={"prefix": "a", "suffix": ["b"]}).is_success
        assert self.http.get("/pictures/imagine", params={"prompt": "a circle"}).is_success
        with self.http.stream("GET", "/pictures/imagine", params={"prompt": "a circle", "stream": True}) as reply:
            next(reply.iter_text())  # begun, and the client leaves
        assert self.cell() == 200

    @contextmanager
    def never_quiet(self) -> Iterator[None]:
        """Within the block an answer is always on its way. Routers keep it through the loss of its only replica."""
        over, ended = threading.Event(), list[int]()

        def ask_on() -> None:
            while not over.is_set():
                ended.append(self.ask("An answer that survives", 40))

        with ThreadPoolExecutor(1) as pool:
            asking = pool.submit(ask_on)
            try:
                yield
            finally:
                over.set()
            asking.result()
        assert set(ended) == {200}


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.skipif(missing is not None, reason=f"{missing}: apt-get install prometheus")
def test_every_panel_has_data_and_every_alert_fires(tmp_path: Path) -> None:
    config = tmp_path / "shop.py"
    config.write_text(SERVICE.replace("{state}", str(tmp_path / "cell")))
    service, port = load(str(config)), serving_port()
    assert isinstance(service, Service)
    (group,) = alert_groups(service)
    group |= {"interval": f"{PERIOD_S}s"}
    nodes = RunFolder(port).path / "prom_metrics_service_discovery.json"  # Ray's list of those that it knows
    labels = {"namespace": service.namespace, "job": service.name}

    run = LocalRun(str(config), "--tiny", port=port)
    with device_plugin(address_of(port)), ending(run, run.interrupt):
        run.wait_for(r"ready after \d+ s", 900)
        prometheus = Prometheus(tmp_path, nodes, labels, [group, trial(group)])
        with ending(prometheus, prometheus.stop):
            wait_until(prometheus.ready, 60)
            traffic = Traffic(run.url)
            traffic.publish()

            def without_data(later: bool) -> list[str]:
                applications = [
                    series["application"] for series in prometheus.history("ray_podslice_compiles_after_ready")
                ]
                return [
                    place
                    for place, expression in expressions(service, applications).items()
                    if (later or not AFTER_A_LOSS & metrics(expression))
                    and not (NEVER | FOR_A_MOMENT).keys() & metrics(expression)
                    and not prometheus.history(expression)
                ]

            tried: dict[str, Any] = {}

            def without_alert() -> set[str]:
                tried.update(alerts_of(prometheus, "trial"))
                return {rule["alert"] for rule in group["rules"]} - tried.keys()

            def not_noticed() -> set[str]:
                alerts = prometheus.history('ALERTS{trial=""}', since=killed)
                noticed = {alert["alertname"] for alert in alerts if alert.get("application") in (None, "llm")}
                return ({"PodsliceSliceHostsMissing", "PodsliceNoAnswers"} - noticed) | without_alert()

            wait_for_nothing(traffic.send, lambda: [*without_data(later=False), *(without_alert() - FOR_A_LOSS)])
            assert not {"PodsliceSliceHostsMissing", "PodsliceNoAnswers"} & alerts_of(prometheus, service.name).keys()

            killed = time.time()
            with traffic.never_quiet():
                killer = LocalRun(str(config), "--kill-host", "0:1", port=port)
                assert killer.process.wait(120) == 0, killer.output
                wait_for_nothing(lambda: None, not_noticed)
                run.wait_for("slice tpu-v5e-2x4-4t-0 is up again")
            wait_for_nothing(lambda: None, lambda: without_data(later=True))
            known = {series["__name__"] for series in prometheus.history('{__name__=~"ray_.+"}')}
            assert not NEVER.keys() & known, "it can be here: take it out of NEVER"


def metrics(expression: str) -> set[str]:
    return set(re.findall(r"ray_\w+", expression))


def alerts_of(prometheus: Prometheus, group: str) -> dict[str, dict[str, Any]]:
    """Alerts of a group that are pending or fire, by name. Each must have filled in its text."""
    groups = {found["name"]: found["rules"] for found in prometheus.get("rules")["groups"]}
    active = {}
    for rule in groups[group]:
        assert rule["health"] != "err", rule
        for alert in rule["alerts"]:
            text = " ".join(alert["annotations"].values())
            assert not re.search(r"<no value>|<error|NAME|%!|\{\{", text), text
            assert "shop" in alert["annotations"]["summary"] and math.isfinite(float(alert["value"]))
            active[rule["name"]] = alert
    return active


def wait_for_nothing(act: Callable[[], None], left: Callable[[], Collection[str]]) -> None:
    """Acts until nothing is left; fails with what is."""
    deadline = time.monotonic() + PATIENCE_S
    while names := left():
        assert time.monotonic() < deadline, names
        act()
        time.sleep(PERIOD_S)
