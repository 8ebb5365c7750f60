"""The way of a request: the port that Serve listens on, the operator's Service, probes, HAProxy."""

from typing import Any

import pytest

from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed, expect

CLUSTER = "spec rayClusterConfig"
HEAD = f"{CLUSTER} headGroupSpec template spec containers 0"
BOX = f"{CLUSTER} workerGroupSpecs 0 template spec containers 0"
SERVE = good.service()[0]["spec"]["serveConfigV2"]


def options(line: str) -> Change:
    return ("spec serveConfigV2", SERVE.replace("  host: 0.0.0.0\n", f"  {line}\n"))


def own_service(**port: Any) -> Change:
    return ("spec serveService", {"spec": {"type": "LoadBalancer", "ports": [port]}})


def on(box: str) -> Change:
    return (f"{box} env 0", {"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "1"})


def asks(port: int | str, path: str = "/-/healthz") -> Change:
    return (f"{BOX} readinessProbe", {"httpGet": {"path": path, "port": port}})


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        ([(f"{HEAD} ports 1 name", "http")], "serve-port", "error", ["containers[0].ports", "8000", "serve"]),
        ([options("port: 9000")], "serve-port", "error", ["http_options.port", "9000", "serve", "8000"]),
        (
            [options("port: 9000"), (f"{HEAD} ports 1 containerPort", 9000)],
            "serve-port",
            "error",
            ["http_options.port", "tpu", "serve", "8000"],
        ),
        (
            [(f"{HEAD} ports 1 containerPort", 8001)],
            "serve-port",
            "error",
            ["ports[1].containerPort", "8000", "serve", "8001"],
        ),
        (
            [options("port: 9000"), *[(f"{box} ports 1 containerPort", 9000) for box in (HEAD, BOX)], asks(8000)],
            "serve-port",
            "error",
            ["httpGet.port", "8000", "9000"],
        ),
        ([options("host: 127.0.0.1")], "serve-host", "error", ["host", "0.0.0.0"]),
        ([own_service(name="http", port=8888)], "serve-service", "warning", ["ports[0].name", "8888", "8000", "serve"]),
        ([own_service(port=8888)], "serve-service", "warning", ["spec.ports[0]", "8888", "serve"]),
        ([own_service(name="serve", port=8888)], "serve-service", "error", ["ports[0].port", "8888", "targetPort"]),
        (
            [own_service(name="serve", port=8888, targetPort=8080)],
            "serve-service",
            "error",
            ["targetPort", "8080", "8000"],
        ),
        (
            [own_service(name="serve", port=8888, targetPort="http")],
            "serve-service",
            "error",
            ["targetPort", "http"],
        ),
        ([on(BOX)], "serve-ha-proxy", "warning", ["env[0].value"]),
        ([on(HEAD)], "serve-ha-proxy", "warning", ["containers[0].env"]),
        (
            [(f"{BOX} livenessProbe", {"httpGet": {"path": "/healthz", "port": 9999}})],
            "probe-port",
            "warning",
            ["httpGet.port", "9999"],
        ),
        ([asks(9999, "/ready")], "probe-port", "warning", ["httpGet.port", "9999"]),
    ],
)  # fmt: skip
def test_a_way_that_ends(changes: list[Change], rule: str, severity: str, expected: list[str]) -> None:
    expect(changed(good.service(), *changes), rule, severity, *expected)


@pytest.mark.parametrize(
    "changes",
    [
        [(f"{HEAD} ports", REMOVED)],  # the operator takes its own, serve among them
        [(f"{HEAD} ports 1 name", "http"), own_service(name="any", port=8888, targetPort=8000)],
        [options("port: 9000"), *[(f"{box} ports 1 containerPort", 9000) for box in (HEAD, BOX)]],
        [options("port: 9000"), *[(f"{box} ports 1 containerPort", 9000) for box in (HEAD, BOX)], asks("serve")],
        [own_service(name="serve", port=8888, targetPort=8000)],
        [own_service(name="serve", port=8888, targetPort="serve")],
        [on(BOX), on(HEAD)],
        [asks(52365, "/api/healthz")],
        [
            (f"{CLUSTER} workerGroupSpecs 0 rayStartParams", {"dashboard-agent-listen-port": "50000"}),
            asks(50000, "/api/healthz"),
        ],
    ],
)
def test_a_way_that_leads_there(changes: list[Change]) -> None:
    assert good.grave(changed(good.service(), *changes)) == []


def test_grpc_has_a_port_of_its_own() -> None:
    config = f"grpc_options: {{port: 9100, grpc_servicer_functions: [a.b]}}\n{SERVE}"
    named = (f"{HEAD} ports 2", {"name": "serve-grpc", "containerPort": 9100})
    own = own_service(name="serve-grpc", port=443, targetPort=9100)
    assert good.grave(changed(good.service(), ("spec serveConfigV2", config), named, own)) == []
    expect(changed(good.service(), named, own), "serve-service", "error", "targetPort", "9100")
