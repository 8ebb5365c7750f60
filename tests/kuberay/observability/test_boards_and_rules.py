"""Boards and rules without a cluster: what is rendered for whom, and names held against the applications' own."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from apps.llm.served.metrics import LanguageMetrics, PauseMetrics
from apps.stable_diffusion.metrics import PictureMetrics
from kuberay.check import check
from kuberay.observability import alert_groups, boards
from kuberay.render import render
from ray_configs.cell import CellConfig
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import load
from ray_configs.observability import Observability
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig
from tests.kuberay.observability.prometheus import missing
from tests.kuberay.render.rendered import of_kind, service

WHOLE = load("ray_configs.catalog.whole_graph")
OF_GOOGLE, OF_THE_OPERATOR = {"PodMonitoring", "Rules"}, {"PodMonitor", "PrometheusRule"}


def of(*configs: LLMConfig | StableDiffusionConfig | CellConfig, **more: Any) -> Service:
    applications = [Application(config=c, name=f"a{i}", route_prefix=f"/{i}") for i, c in enumerate(configs)]
    return Service(name="s", applications=tuple(applications), **more)


def rules_of(config: Service) -> list[dict[str, Any]]:
    (group,) = alert_groups(config)
    return group["rules"]


def expressions(config: Service) -> str:
    charts = [chart for text in boards(config).values() for chart in json.loads(text)["panels"]]
    asked = [target["expr"] for chart in charts for target in chart["targets"]]
    return "\n".join([*asked, *(rule["expr"] for rule in rules_of(config))])


def test_nothing_of_it_is_rendered_unasked() -> None:
    kinds = {item["kind"] for item in render(WHOLE)}
    assert not kinds & {"ConfigMap", "Rules", *OF_THE_OPERATOR}


@pytest.mark.parametrize(("prometheus", "kinds"), [("google", OF_GOOGLE), ("prometheus-operator", OF_THE_OPERATOR)])
def test_what_is_asked_for_is_rendered_and_passes_the_check(prometheus: Any, kinds: set[str]) -> None:
    config = service(observability=Observability(dashboards=True, alerts=True, prometheus=prometheus))
    objects = render(config)
    found = {item["kind"]: item for item in objects}
    assert found.keys() & (OF_GOOGLE | OF_THE_OPERATOR) == kinds
    assert {finding.rule for finding in check(objects)} <= {"image"}, "but for PROJECT_ID"
    for item in objects:
        if item["kind"] == "ConfigMap":
            assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
            ((name, board),) = item["data"].items()
            assert name.endswith(".json") and json.loads(board)["panels"]
    rules = found[(kinds - {"PodMonitoring", "PodMonitor"}).pop()]
    assert rules["spec"]["groups"][0]["interval"] == "30s" and rules["metadata"]["name"] == "example"


def test_the_operators_monitor_names_kuberays_port_and_the_job() -> None:
    config = service(observability=Observability(prometheus="prometheus-operator"))
    (monitor,) = of_kind(config, "PodMonitor")
    (label,) = monitor["spec"]["selector"]["matchLabels"].items()
    assert (monitor["spec"]["jobLabel"], "example") == label and 'job="example"' in expressions(config)
    recorded = json.loads(Path("tests/kubernetes/recorded/1.7.0/llama3_8b_v5e.json").read_text())
    ports = set(re.findall(r"'containerPort': 8080, 'name': '(\w+)'", str(recorded)))
    assert {monitor["spec"]["podMetricsEndpoints"][0]["port"]} == ports


@pytest.mark.parametrize(
    ("config", "names"),
    [
        (of(LLMConfig()), ["language-models", "slices"]),
        (of(StableDiffusionConfig()), ["pictures", "slices"]),
        (of(CellConfig()), ["language-models", "cell", "slices"]),
        (WHOLE, ["language-models", "pictures", "cell", "slices"]),
    ],
)
def test_boards_are_of_what_the_service_has(config: Service, names: list[str]) -> None:
    assert list(boards(config)) == names
    told = expressions(config)
    assert ("pictures" in told) == ("pictures" in names) and ("sax[.]" in told) == ("cell" in names)


def test_panels_of_chips_and_of_the_autoscaler_need_one() -> None:
    assert "ray_tpu" not in expressions(of(LLMConfig())) and "ray_cluster" not in expressions(of(LLMConfig()))
    assert "ray_tpu" in expressions(of(LLMConfig(slice="v5e:1x1")))
    assert "ray_cluster" in expressions(of(LLMConfig(max_replicas=2)))
    assert "podslice_pause" in expressions(of(LLMConfig(routers=2)))
    assert "podslice_pause" not in expressions(of(LLMConfig(routers=0)))


def test_boards_of_two_services_do_not_replace_each_other() -> None:
    pair = [of(LLMConfig(), namespace=name) for name in ("a", "b")]
    uids = [json.loads(text)["uid"] for config in pair for text in boards(config).values()]
    assert len(set(uids)) == len(uids) and max(map(len, uids)) <= 40


def test_every_metric_of_the_applications_is_shown_and_no_other() -> None:
    """As Ray exports them: prefixed, a counter with _total, a histogram by its parts."""
    exported: dict[str, set[str]] = {}
    for metrics in (LanguageMetrics, PauseMetrics, PictureMetrics):
        exported |= {f"ray_{name}": {""} for name, _ in metrics.GAUGES.values()}
        exported |= {f"ray_{name}": {"_total"} for name, _ in metrics.COUNTERS.values()}
        exported |= {f"ray_{name}": {"_bucket", "_sum", "_count"} for name, *_ in metrics.HISTOGRAMS.values()}
    everything = expressions(WHOLE) + expressions(of(LLMConfig(routers=1)))
    shown = set(re.findall(r"ray_podslice_\w+", everything))
    assert shown <= {name + part for name, parts in exported.items() for part in parts}
    assert {name for name, parts in exported.items() if not shown & {name + part for part in parts}} == set()


def test_a_job_has_neither() -> None:
    for field in ("dashboards", "alerts"):
        with pytest.raises(ValidationError, match=rf"observability.{field} is for services"):
            Job(name="j", command=("a",), ray=True, observability=Observability(**{field: True}))


def test_the_bound_of_the_first_token_is_the_configs() -> None:
    (rule,) = [
        rule
        for rule in rules_of(of(LLMConfig(), observability=Observability(ttft_p95_s=1.5)))
        if rule["alert"] == "PodsliceSlowFirstToken"
    ]
    assert rule["expr"].endswith("> 1.5") and "1.5 s" in rule["annotations"]["description"]


def test_every_alert_says_what_and_what_to_look_at() -> None:
    for rule in rules_of(WHOLE):
        assert "podslice" in rule["annotations"]["summary"], "the service's name"
        assert len(rule["annotations"]["description"]) > 100 and "NAME" not in str(rule)


def series(metric: str, values: str, **labels: str) -> dict[str, str]:
    inside = ",".join(f'{name}="{value}"' for name, value in {"namespace": "default", "job": "s", **labels}.items())
    return {"series": f"{metric}{{{inside}}}", "values": values}


@pytest.mark.skipif(missing is not None, reason=f"{missing}: apt-get install prometheus")
class TestByPromtool:
    """Rules as Prometheus itself reads and evaluates them."""

    CONFIG = of(LLMConfig(slice="v5e:4x8"), StableDiffusionConfig(slice="v5e:2x2"))

    def promtool(self, *arguments: object) -> None:
        done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr

    def rules(self, folder: Path, config: Service) -> Path:
        path = folder / "rules.yaml"
        path.write_text(yaml.safe_dump({"groups": alert_groups(config)}))
        return path

    def fires(self, folder: Path, alert: str, input: list[dict[str, str]], expected: dict[str, int]) -> None:
        """At each time so many alerts of that name fire."""
        rules = self.rules(folder, self.CONFIG)
        samples = [
            {
                "expr": f'count(ALERTS{{alertname="{alert}",alertstate="firing"}}) or vector(0)',
                "eval_time": when,
                "exp_samples": [{"labels": "{}", "value": count}],
            }
            for when, count in expected.items()
        ]
        test = {"interval": "1m", "input_series": input, "promql_expr_test": samples}
        path = folder / "test.yaml"
        path.write_text(yaml.safe_dump({"rule_files": [rules.name], "evaluation_interval": "1m", "tests": [test]}))
        self.promtool("test", "rules", path)

    @pytest.mark.parametrize("config", [WHOLE, CONFIG, of(CellConfig())], ids=["whole", "slices", "cell"])
    def test_the_rules_load(self, config: Service, tmp_path: Path) -> None:
        self.promtool("check", "rules", self.rules(tmp_path, config))

    def test_the_first_pause_of_a_router_is_on_its_board(self, tmp_path: Path) -> None:
        """There is nothing before it to increase from, and rate() shows nothing; five minutes later it is over."""
        (board,) = (text for name, text in boards(of(LLMConfig(max_replicas=2))).items() if "language" in name)
        (panel,) = (panel for panel in json.loads(board)["panels"] if panel["title"].startswith("Pauses"))
        whole = next(target["expr"] for target in panel["targets"] if target["legendFormat"].startswith("whole"))
        whole = whole.replace("$cluster", ".*").replace("$application", ".*")
        input = [
            series("ray_podslice_pause_s_bucket", f"_x2 {count}x30", le=le, application="llm", ray_io_cluster="c")
            for le, count in (("0.1", 0), ("1", 4), ("+Inf", 4))
        ]
        samples = [
            {"expr": f"({whole}) >= 0", "eval_time": when, "exp_samples": found}
            for when, found in (
                ("1m", []),
                ("3m", [{"labels": '{application="llm"}', "value": 0.955}]),
                ("10m", []),
            )
        ]
        path = tmp_path / "test.yaml"
        test = {"interval": "1m", "input_series": input, "promql_expr_test": samples}
        path.write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
        self.promtool("test", "rules", path)

    def test_a_lost_host(self, tmp_path: Path) -> None:
        whole = [
            series("ray_resources", "1x90", Name=f"tpu-v5e-{shape}-0", State="AVAILABLE", instance=f"{shape}{n}")
            for shape, hosts in (("4x8", 8), ("2x2", 1))
            for n in range(hosts)
        ]
        whole[0]["values"] = "1x20 _x30 1x40"
        self.fires(tmp_path, "PodsliceSliceHostsMissing", whole, {"19m": 0, "28m": 0, "40m": 1, "70m": 0})

    def test_a_replica_that_is_gone_and_one_of_two(self, tmp_path: Path) -> None:
        told = {"application": "a0", "deployment": "LLMServer"}
        wanted = series("ray_serve_autoscaling_target_replicas", "2x90", **told)
        healthy = series("ray_serve_deployment_replica_healthy", "2x10 1x30 _x40", **told)
        self.fires(tmp_path, "PodsliceReplicasMissing", [wanted, healthy], {"9m": 0, "20m": 0, "35m": 1, "60m": 0})
        self.fires(tmp_path, "PodsliceNoAnswers", [wanted, healthy], {"9m": 0, "35m": 0, "60m": 1})

    def test_the_only_replica_has_stopped(self, tmp_path: Path) -> None:
        """Serve sets a stopped replica's gauge to 0; Ray drops the series some time later."""
        told = {"application": "a0", "deployment": "LLMServer"}
        wanted = series("ray_serve_autoscaling_target_replicas", "1x90", **told)
        healthy = series("ray_serve_deployment_replica_healthy", "1x10 0x80", **told)
        self.fires(tmp_path, "PodsliceNoAnswers", [wanted, healthy], {"9m": 0, "20m": 1, "60m": 1})

    def test_errors_that_are_few_and_many(self, tmp_path: Path) -> None:
        fine = series("ray_serve_num_http_requests_total", "0+60x90", application="a0", status_code="200")
        wrong = series("ray_serve_num_http_requests_total", "0+1x30 90+60x60", application="a0", status_code="503")
        self.fires(tmp_path, "PodsliceServerErrors", [fine, wrong], {"29m": 0, "45m": 1})

    def test_a_kv_cache_is_full_only_with_preemptions(self, tmp_path: Path) -> None:
        told = {"application": "a0", "replica": "r", "model": "m"}
        used, total = (series(f"ray_podslice_kv_pages_{what}", "100x90", **told) for what in ("used", "total"))
        preempted = series("ray_podslice_preemptions_total", "0x30 0+5x60", **told)
        self.fires(tmp_path, "PodsliceKVCacheFull", [used, total, preempted], {"29m": 0, "45m": 1})
