"""RayServices: upgrades, readiness, and the Serve config inside of them."""

from typing import Any

import pytest

from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed, expect

CLUSTER = "spec rayClusterConfig"
GROUP = f"{CLUSTER} workerGroupSpecs 0"
BOX = f"{GROUP} template spec containers 0"
STRATEGY = "spec upgradeStrategy"
OPTIONS = {"stepSizePercent": 10, "intervalSeconds": 30, "gatewayClassName": "gke-l7-rilb"}
SERVE = good.service()[0]["spec"]["serveConfigV2"]


def incremental(**options: Any) -> Change:
    kept = {key: value for key, value in {**OPTIONS, **options}.items() if value is not None}
    return (STRATEGY, {"type": "NewClusterWithIncrementalUpgrade", "clusterUpgradeOptions": kept})


def serve(old: str, new: str) -> list[Change]:
    assert old in SERVE
    return [("spec serveConfigV2", SERVE.replace(old, new))]


@pytest.mark.parametrize(
    ("changes", "rule", "severity", "expected"),
    [
        ([(STRATEGY, REMOVED)], "upgrade-capacity", "warning", ["upgradeStrategy.type", "kuberay#1476", "None"]),
        ([(f"{STRATEGY} type", "NewCluster")], "upgrade-capacity", "warning", ["upgradeStrategy.type"]),
        ([incremental(stepSizePercent=None)], "missing-field", "error", ["stepSizePercent"]),
        ([("spec serveConfigV2", "")], "serve-config", "error", ["serveConfigV2", "400"]),
        ([("spec serveConfigV2", REMOVED)], "serve-config", "error", ["serveConfigV2"]),
        ([("spec serveConfigV2", "applications: [")], "serve-config", "error", ["serveConfigV2"]),
        ([("spec serveConfigV2", "- name: llm")], "serve-config", "error", ["serveConfigV2"]),
        ([("spec serveConfigV2", "target_capacity: 50")], "serve-config", "error", ["serveConfigV2", "400"]),
        ([("spec serveConfigV2", "applications: []")], "serve-config", "error", ["serveConfigV2"]),
        (serve("EveryNode", "Everynode"), "wrong-value", "error", ["proxy_location", "EveryNode"]),
        (serve("  route_prefix: /", "  args: none"), "wrong-type", "error", ["applications[0].args"]),
        (serve("proxy_location", "proxy_loc"), "serve-keys", "error", ["proxy_loc", "proxy_location"]),
        (serve("  import_path", "  num_replicas: 2\n  import_path"), "serve-keys", "error", ["num_replicas"]),
        (serve("num_cpus: 1", "num_tpus: 4"), "serve-keys", "warning", ["num_tpus"]),
        (serve("num_cpus: 1", "num_cpu: 1"), "serve-keys", "error", ["num_cpu", "num_cpus"]),
        (
            serve("num_replicas: 2", "max_concurrent_queries: 2"),
            "serve-keys", "warning", ["max_concurrent_queries", "max_ongoing_requests"],
        ),
        (serve("  route_prefix: /", "  port: 80"), "serve-keys", "error", ["applications[0].port", "http_options"]),
        (serve("route_prefix: /", "route_prefix: llm"), "serve-application", "error", ["route_prefix"]),
        (serve("apps.llm:build", "apps/llm.py:build"), "serve-application", "error", ["import_path"]),
        (serve("apps.llm:build", "apps.llm.py:build"), "serve-application", "error", ["import_path", ".py"]),
        (serve("  import_path: apps.llm:build\n", ""), "missing-field", "error", ["import_path"]),
        (
            serve("applications:\n", "applications:\n- {name: other, import_path: 'a:b'}\n"),
            "serve-application",
            "error",
            ["route_prefix"],
        ),
        (
            serve("applications:\n", "applications:\n- {name: llm, import_path: 'a:b', route_prefix: /b}\n"),
            "serve-application",
            "error",
            ["applications[1].name"],
        ),
        (
            serve("num_replicas: 2", "num_replicas: 2\n    autoscaling_config: {max_replicas: 2}"),
            "serve-deployment",
            "error",
            ["num_replicas", "autoscaling_config"],
        ),
        (
            serve("num_replicas: 2", "autoscaling_config: {min_replicas: 3, max_replicas: 2}"),
            "serve-deployment",
            "error",
            ["min_replicas", "3"],
        ),
        (serve("num_replicas: 2", "num_replicas: many"), "serve-deployment", "error", ["num_replicas", "auto"]),
        (
            serve("  deployments:", "  runtime_env: {working_dir: ./src}\n  deployments:"),
            "serve-runtime-env",
            "error",
            ["working_dir", "./src", "local://"],
        ),
        (
            serve("  deployments:", "  runtime_env: {working_dir: 'https://github.com/a/b'}\n  deployments:"),
            "serve-runtime-env",
            "warning",
            ["working_dir", ".zip"],
        ),
        (
            serve("num_replicas: 2", "num_replicas: 2\n    gang_scheduling_config: {gang_size: 4}"),
            "serve-deployment",
            "error",
            ["num_replicas", "4"],
        ),
        (serve("TPU: 8", "TPU: 3"), "serve-tpu", "error", ["resources.TPU", "1", "2", "4", "8"]),
        ([*serve("num_replicas: 2", "num_replicas: 3")], "serve-capacity", "error", ["num_replicas", "24", "16"]),
        (
            serve("num_replicas: 2", "autoscaling_config: {min_replicas: 1, max_replicas: 5}"),
            "serve-capacity",
            "warning",
            ["max_replicas", "40"],
        ),
    ],
)  # fmt: skip
def test_a_spoilt_service(changes: list[Change], rule: str, severity: str, expected: list[str]) -> None:
    expect(changed(good.service(), *changes), rule, severity, *expected)


def test_a_good_incremental_upgrade() -> None:
    assert good.grave(changed(good.service(), incremental())) == []


@pytest.mark.parametrize("timeout", ["30m", "1h30m", "90", "1.5h"])
def test_good_timeouts(timeout: str) -> None:
    assert good.grave(changed(good.service(), ("metadata annotations", {"ray.io/initializing-timeout": timeout}))) == []


def test_a_replica_that_no_host_has_room_for() -> None:
    selectors = [
        (f"{GROUP} template spec nodeSelector cloud.google.com/gke-tpu-topology", "2x2"),
        (f"{GROUP} labels", {"ray.io/accelerator-type": "TPU-V5LITEPOD"}),
        *[(f"{BOX} resources {part} google.com/tpu", 4) for part in ("limits", "requests")],
        ("spec serveConfigV2", SERVE.replace("num_replicas: 2", "num_replicas: 1")),
    ]
    expect(changed(good.service(), *selectors), "serve-tpu", "error", "resources.TPU", "4")


def test_tpus_without_a_group_that_has_them() -> None:
    objects = good.service()
    pod = objects[0]["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    del pod["nodeSelector"]
    for part in pod["containers"][0]["resources"].values():
        del part["google.com/tpu"]
    expect(objects, "serve-tpu", "error", "resources.TPU")


def test_tpus_that_ray_is_told_of_by_hand_are_not_counted() -> None:
    objects = good.service()
    group = objects[0]["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]
    group["resources"] = {"TPU": "8"}
    pod = group["template"]["spec"]
    del pod["nodeSelector"], pod["tolerations"]
    for part in pod["containers"][0]["resources"].values():
        del part["google.com/tpu"]
    assert good.grave(objects) == []


def test_bundles_of_one_replica_and_slices() -> None:
    bundles = "placement_group_bundles: [" + ", ".join(["{CPU: 1, TPU: 4}"] * 4) + "]"
    objects = changed(
        good.wide_service(),
        ("spec serveConfigV2", SERVE.replace("ray_actor_options:\n      num_cpus: 1\n      resources:\n        TPU: 8",
                                            bundles)),
    )  # fmt: skip
    expect(objects, "serve-slices", "warning", "placement_group_bundles", "ray#63101")
    selected = "placement_group_bundle_label_selector: [{ray.io/tpu-slice-name: a}]\n    placement_group_bundles:"
    objects[0]["spec"]["serveConfigV2"] = objects[0]["spec"]["serveConfigV2"].replace(
        "placement_group_bundles:", selected
    )
    assert good.grave(objects) == []
    objects[0]["spec"]["serveConfigV2"] = objects[0]["spec"]["serveConfigV2"].replace("TPU: 4", "TPU: 8")
    expect(
        changed(objects, ("spec rayClusterConfig workerGroupSpecs 0 maxReplicas", 9)),
        "serve-tpu",
        "error",
        "placement_group_bundles[0].TPU",
        "4",
    )


RAYLET_PROBE = {"httpGet": {"path": "/api/healthz", "port": 52365}}
PROXY_PROBES = (
    {"httpGet": {"path": "/-/healthz", "port": 8000}},
    {"exec": {"command": ["bash", "-c", "wget -T 2 -q -O- http://localhost:8000/-/healthz | grep success"]}},
)


def test_a_probe_of_the_raylet_makes_every_host_of_a_slice_an_endpoint() -> None:
    objects = changed(good.wide_service(), (f"{BOX} readinessProbe", RAYLET_PROBE))
    finding = expect(objects, "serve-readiness", "warning", "readinessProbe", "kuberay#1808")
    assert "readinessProbe" in finding.instead
    for probe in PROXY_PROBES:
        assert good.grave(changed(good.wide_service(), (f"{BOX} readinessProbe", probe))) == []
    one_host = changed(good.service(), (f"{BOX} readinessProbe", RAYLET_PROBE))
    assert good.grave(one_host) == [], "a proxy runs on each"


def test_head_only_proxies() -> None:
    objects = changed(good.service(), *serve("EveryNode", "HeadOnly"))
    probed = changed(objects, (f"{BOX} readinessProbe", RAYLET_PROBE))
    expect(probed, "serve-readiness", "warning", "readinessProbe", "HeadOnly")
    excluded = ("spec excludeHeadPodFromServeSvc", True)
    expect(changed(objects, excluded), "service-endpoints", "error", "excludeHeadPodFromServeSvc")


def test_a_config_that_is_no_text() -> None:
    finding = expect(
        changed(good.service(), ("spec serveConfigV2", {"applications": []})), "wrong-type", "error", "serveConfigV2"
    )
    assert finding.where == "RayService/llama spec.serveConfigV2"


def test_places_inside_of_a_config() -> None:
    finding = expect(changed(good.service(), *serve("num_cpus: 1", "num_cpu: 1")), "serve-keys", "error", "num_cpu")
    assert finding.where == (
        "RayService/llama spec.serveConfigV2 -> applications[0].deployments[0].ray_actor_options.num_cpu"
    )
