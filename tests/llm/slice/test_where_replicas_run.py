"""Which nodes Serve's processes ask Ray for: CPU Pods of their own beside slices of several hosts, where there are."""

from typing import Any

import pytest

from apps.cell.server import build
from apps.llm.routed import bound_routers
from apps.llm.served.scaling import ByLoad
from apps.serving.replica_options import options
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig


@pytest.fixture
def labelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in every Pod of a rendered service."""
    monkeypatch.setenv("PODSLICE_GROUPS_LABELLED", "1")


def actor(slice: str | None) -> dict[str, Any]:
    return options(LLMConfig(slice=slice))["ray_actor_options"]


def test_a_replica_of_several_hosts_runs_on_its_groups_cpu_pods(labelled: None) -> None:
    asked = actor("v5e:4x8")
    assert asked["label_selector"] == {"podslice/group": "cpu-v5e-4x8"}
    assert "fallback_strategy" not in asked and "resources" not in asked
    assert options(LLMConfig(slice="v5e:4x8"))["max_replicas_per_node"] == 1, "a lost Pod is one replica's end"


def test_others_keep_off_those_pods(labelled: None) -> None:
    assert actor(None)["label_selector"] == {"podslice/group": "cpu"}
    assert actor("v5e:2x2")["label_selector"] == {"ray.io/tpu-pod-type": "v5litepod-4"}


def test_elsewhere_a_process_runs_wherever_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PODSLICE_GROUPS_LABELLED", raising=False)
    assert "label_selector" not in actor(None)
    assert actor("v5e:4x8")["fallback_strategy"] == [{"label_selector": {}}]


@pytest.mark.parametrize("slice", [None, "v5e:2x2", "v5e:4x8"])
def test_routers_run_on_pods_of_their_own(labelled: None, slice: str | None) -> None:
    router = bound_routers(LLMConfig(slice=slice, routers=3, max_replicas=2))._bound_deployment
    assert (router.num_replicas, router.ray_actor_options["label_selector"]) == (3, {"podslice/group": "routers"})
    assert router._replica_config.max_replicas_per_node == 1, "a lost Pod is one router's end"
    engine = router.init_args[2]._bound_deployment
    assert engine.ray_actor_options.get("label_selector") == actor(slice).get("label_selector")
    scaled = engine._deployment_config.autoscaling_config
    assert (scaled.min_replicas, scaled.max_replicas) == (1, 2)
    assert scaled.policy.policy_function.endswith(ByLoad.__name__)


@pytest.mark.parametrize(
    ("slice", "selector"),
    [("v5e:4x8", {"podslice/group": "cpu-v5e-4x8"}), (None, {"podslice/group": "cpu"}), ("v5e:2x2", None)],
)
def test_a_cells_own_processes_run_beside_its_models(labelled: None, slice: str | None, selector: Any) -> None:
    front = build(CellConfig(slice=slice))._bound_deployment
    admin = front.init_args[1]._bound_deployment
    for own in (front, admin):
        assert own.ray_actor_options["num_cpus"] == 0.1
        assert own.ray_actor_options.get("label_selector") == selector
