"""What a service can ask for beside its slices: upgrades, a head that may be lost, budgets, priority, locked memory."""

import os
import subprocess
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from kuberay.node_pools import pools
from kuberay.render import to_yaml
from ray_configs.capacity import Spot
from ray_configs.cell import CellConfig
from ray_configs.cloud import GoogleCloud, SecretKey
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, GcsFaultTolerance, Service
from ray_configs.upgrade import Incremental, NewCluster
from tests.kuberay.render.rendered import cluster, of_kind, pod_templates, service

ISTIO = Incremental(gateway_class="istio")


def strategy(config: Service) -> dict[str, Any]:
    (ray_service,) = of_kind(config, "RayService")
    return ray_service["spec"]["upgradeStrategy"]


def test_an_upgrade_is_what_the_config_says() -> None:
    assert strategy(service()) == {"type": "None"}
    assert strategy(service(upgrade=NewCluster())) == {"type": "NewCluster"}
    incremental = Incremental(gateway_class="istio", step_percent=10, interval_s=5, max_surge_percent=50)
    assert strategy(service(upgrade=incremental)) == {
        "type": "NewClusterWithIncrementalUpgrade",
        "clusterUpgradeOptions": {
            "gatewayClassName": "istio",
            "intervalSeconds": 5,
            "maxSurgePercent": 50,
            "stepSizePercent": 10,
        },
    }


def test_without_an_upgrade_the_manifest_says_how_a_change_is_rolled_out() -> None:
    comment = to_yaml(of_kind(service(), "RayService")).partition("type: None")[0].splitlines()[-4:]
    assert "apply --recreate" in " ".join(comment) and "`upgrade`" in " ".join(comment)


def test_an_incremental_upgrade_has_the_autoscaler_that_kuberay_requires() -> None:
    assert cluster(service(replicas=(2, 2), upgrade=ISTIO))["enableInTreeAutoscaling"] is True
    assert cluster(service(replicas=(2, 2), upgrade=NewCluster()))["enableInTreeAutoscaling"] is False


@pytest.mark.parametrize("exposure", [LoadBalancer(), Gateway()])
def test_an_incremental_upgrade_has_one_way_in(exposure: Any) -> None:
    with pytest.raises(ValidationError, match=r"example-gateway.*leave exposure out"):
        service(upgrade=ISTIO, exposure=exposure)


def test_steps_are_within_the_surge() -> None:
    with pytest.raises(ValidationError, match=r"step_percent \(50\) is above max_surge_percent \(20\)"):
        Incremental(gateway_class="istio", step_percent=50, max_surge_percent=20)


@pytest.mark.parametrize(("slice", "before"), [("v5e:4x4", 3), ("v5e:2x2", 3)])
def test_node_pools_have_room_for_both_clusters(slice: str, before: int) -> None:
    def most(**more: Any) -> tuple[int, int]:
        planned = pools(service(slice, replicas=(2, 3), cloud=GoogleCloud(location="us-west4-a"), **more))
        hosts = planned[0].slice.hosts
        return sum(pool.nodes for pool in planned) // hosts, sum(pool.max_nodes for pool in planned) // hosts

    assert (most(), most(upgrade=NewCluster())) == ((2, before), (2, 2 * before))


def test_what_the_head_knows_is_kept_in_redis() -> None:
    assert "gcsFaultToleranceOptions" not in cluster(service())
    redis = GcsFaultTolerance(redis_address="redis.default:6379", redis_password=SecretKey(secret="r", key="p"))
    assert cluster(service(gcs_fault_tolerance=redis))["gcsFaultToleranceOptions"] == {
        "redisAddress": "redis.default:6379",
        "redisPassword": {"valueFrom": {"secretKeyRef": {"name": "r", "key": "p"}}},
    }
    open_redis = GcsFaultTolerance(redis_address="rediss://10.0.0.3:6378")
    options = cluster(service(gcs_fault_tolerance=open_redis))["gcsFaultToleranceOptions"]
    assert options == {"redisAddress": "rediss://10.0.0.3:6378"}


@pytest.mark.parametrize("address", ["redis", "http://redis:6379", "redis:port", "redis.default:6379/0"])
def test_an_address_that_redis_cannot_have(address: str) -> None:
    with pytest.raises(ValidationError, match="redis_address"):
        GcsFaultTolerance(redis_address=address)


def groups_of(budget: dict[str, Any]) -> list[str]:
    (expression,) = budget["spec"]["selector"]["matchExpressions"]
    assert (expression["key"], expression["operator"]) == ("ray.io/group", "In")
    return expression["values"]


def budgets(config: Service) -> dict[str, tuple[int, list[str]]]:
    found = of_kind(config, "PodDisruptionBudget")
    return {item["metadata"]["name"]: (item["spec"]["minAvailable"], groups_of(item)) for item in found}


def test_drains_leave_the_head_and_all_slices_but_one() -> None:
    assert budgets(service("v6e:2x2", replicas=(3, 5))) == {}
    assert budgets(service("v6e:2x2", replicas=(3, 5), disruption_budget=1)) == {
        "example-head": (1, ["headgroup"]),
        "example-tpu-v6e-2x2": (2, ["tpu-v6e-2x2"]),
        "example-routers": (1, ["routers"]),
    }
    alone = service("v6e:2x2", replicas=(1, 5), disruption_budget=1)
    assert list(budgets(alone)) == ["example-head", "example-routers"], "one slice of which one may go"
    kept = GcsFaultTolerance(redis_address="redis:6379")
    kept_head = service("v6e:2x2", replicas=(1, 5), disruption_budget=1, gcs_fault_tolerance=kept)
    assert list(budgets(kept_head)) == ["example-routers"]


def test_of_slices_of_several_hosts_the_ready_pods_are_counted() -> None:
    """One Pod of each is Ready. A drain may take any other while so many are."""
    config = service("v6e:4x4", replicas=(3, 3), disruption_budget=1)
    least, groups = budgets(config)["example-tpu-v6e-4x4"]
    assert least == 3 and groups[0] == "tpu-v6e-4x4"
    assert budgets(service("v6e:4x4", replicas=(3, 3), disruption_budget=2))["example-tpu-v6e-4x4"][0] == 2


def test_no_pod_is_in_two_budgets_and_none_is_forgotten() -> None:
    """Kubernetes evicts no Pod that two budgets select."""

    def app(slice: str | None, route: str) -> Application:
        config = LLMConfig(slice=slice, min_replicas=3, max_replicas=3)
        return Application(config=config, name="app-" + route.strip("/"), route_prefix=route)

    config = Service(
        name="example",
        applications=(app("v6e:4x4", "/a"), app("v6e:2x2", "/b"), app(None, "/c")),
        disruption_budget=1,
    )
    selected = [name for item in of_kind(config, "PodDisruptionBudget") for name in groups_of(item)]
    assert sorted(selected) == sorted(
        ["headgroup", *(group["groupName"] for group in cluster(config)["workerGroupSpecs"])]
    )
    for item in of_kind(config, "PodDisruptionBudget"):
        labels = cluster(config)["headGroupSpec"]["template"]["metadata"]["labels"]
        assert item["spec"]["selector"]["matchLabels"].items() <= labels.items()


@pytest.mark.parametrize(("seconds", "drain", "grace"), [(120, "125", 150), (0.5, "6", 31), (900, "905", 930)])
def test_a_pod_that_stops_gives_its_replicas_their_time(seconds: float, drain: str, grace: int) -> None:
    """Ray begins to drain when Kubernetes tells the Pod to stop, and ends before Kubernetes kills it."""
    config = Service(
        name="example",
        applications=(
            Application(config=LLMConfig(slice="v6e:4x4", drain_timeout_s=seconds)),
            Application(config=LLMConfig(drain_timeout_s=0), name="b", route_prefix="/b"),
        ),
    )
    for pod in pod_templates(config):
        (container,) = pod["containers"]
        env = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"] == drain
        assert int(env["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) >= max(600, seconds), "streams outlive a reload"
        assert pod["terminationGracePeriodSeconds"] == grace and "lifecycle" not in container


@pytest.mark.parametrize(("shutdown_s", "drain", "grace"), [(30, "10", 15), (120, "100", 105)])
def test_a_preempted_machine_is_not_given_time_that_it_has_not(shutdown_s: int, drain: str, grace: int) -> None:
    """GKE's page on Spot VMs: Pods have all but the last 15 s, whatever their grace period says."""
    config = LLMConfig(slice="v6e:4x4", max_replicas=2)
    application = Application(config=config, capacity=Spot(shutdown_s=shutdown_s))
    groups = cluster(Service(name="s", applications=(application,)))["workerGroupSpecs"]
    assert [group["groupName"] for group in groups] == ["tpu-v6e-4x4", "cpu-v6e-4x4", "routers"]
    given = {group["groupName"]: _time_to_stop(group["template"]["spec"]) for group in groups}
    assert given == {"tpu-v6e-4x4": (drain, grace), "cpu-v6e-4x4": ("125", 150), "routers": ("125", 150)}


def _time_to_stop(pod: dict[str, Any]) -> tuple[str, int]:
    env = {variable["name"]: variable.get("value") for variable in pod["containers"][0]["env"]}
    return env["RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"], pod["terminationGracePeriodSeconds"]


def test_what_a_cell_publishes_has_its_time_too() -> None:
    (ray_service,) = of_kind(Service(name="c", applications=(Application(config=CellConfig()),)), "RayService")
    pod = ray_service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] == 150


def test_ray_reads_the_variable_that_is_rendered() -> None:
    """Of the version that is installed: it waits so long between SIGTERM and the end of its processes."""
    code = "from ray._private import ray_constants as c; print(c.RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S)"
    environment = os.environ | {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "125"}
    ran = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "125.0"


def test_a_priority_class_is_that_of_every_pod() -> None:
    assert {pod.get("priorityClassName") for pod in pod_templates(service(priority_class="high"))} == {"high"}
    assert {pod.get("priorityClassName") for pod in pod_templates(service())} == {None}


def test_only_workers_with_tpus_may_lock_memory() -> None:
    config = service("v6e:4x4", lock_memory=True)
    with_chips = [pod for pod in pod_templates(config) if "google.com/tpu" in str(pod)]
    assert with_chips
    for pod in pod_templates(config):
        context = pod["containers"][0].get("securityContext")
        expected = {"capabilities": {"add": ["IPC_LOCK"]}, "runAsUser": 0}
        assert context == (expected if pod in with_chips else None)
