"""What a config says of the cluster: network, channel, maintenance, disks, further flags, an old operator."""

import json
import re
from typing import Any

import pytest
from pydantic import ValidationError

from kuberay.check import check
from kuberay.node_pools import commands, pools, terraform
from kuberay.render import render
from ray_configs.capacity import Reservation
from ray_configs.cloud import GoogleCloud, Identity, MaintenanceWindow, SecretKey
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import ConfigError
from ray_configs.service import Application, Service


def a_service(**cloud: Any) -> Service:
    app = Application(config=LLMConfig(slice="v6e:4x4", min_replicas=1))
    return Service(name="chat", applications=(app,), cloud=GoogleCloud(**{"location": "us-east5-b"} | cloud))


def cluster_flags(run, config: Service | Job) -> dict[str, str | bool]:
    return run(commands(config)).one("container clusters create").flags


def cluster_body(config: Service | Job) -> dict[str, Any]:
    return json.loads(terraform(config))["resource"]["google_container_cluster"]["cluster"]


def test_ray_logs_are_collected(run) -> None:
    """Oracle: GKE's page on logs of Ray clusters (--enable-ray-cluster-logging with the add-on); Terraform's field."""
    flags = cluster_flags(run, a_service())
    assert flags["enable-ray-cluster-logging"] is True and "RayOperator" in flags["addons"]
    operator = cluster_body(a_service())["addons_config"]["ray_operator_config"]
    assert operator == {"enabled": True, "ray_cluster_logging_config": {"enabled": True}}


def test_networks_channels_and_disks_are_what_the_config_says(run) -> None:
    config = a_service(
        network="vpc",
        subnetwork="projects/p/regions/us-east5/subnetworks/s",
        pod_range="pods",
        service_range="services",
        private=True,
        release_channel="regular",
        cluster_version="1.35.1",
        maintenance=MaintenanceWindow(start="22:30", hours=4, days=("MO", "TU", "WE")),
        disk_type="hyperdisk-balanced",
    )
    flags, body = cluster_flags(run, config), cluster_body(config)
    wanted = {
        "network": "vpc",
        "subnetwork": "projects/p/regions/us-east5/subnetworks/s",
        "cluster-secondary-range-name": "pods",
        "services-secondary-range-name": "services",
        "enable-private-nodes": True,
        "enable-ip-alias": True,
        "release-channel": "regular",
        "cluster-version": "1.35.1",
        "maintenance-window-start": "2024-01-06T22:30:00Z",
        "maintenance-window-end": "2024-01-07T02:30:00Z",
        "maintenance-window-recurrence": "FREQ=WEEKLY;BYDAY=MO,TU,WE",
        "disk-type": "hyperdisk-balanced",
    }
    assert wanted.items() <= flags.items()
    assert run(commands(config)).one("container node-pools create").flags["disk-type"] == "hyperdisk-balanced"
    assert run(commands(config)).one("container clusters get-credentials").flags["dns-endpoint"] is True
    assert body["network"] == "vpc" and body["release_channel"] == {"channel": "REGULAR"}
    assert body["ip_allocation_policy"] == {
        "cluster_secondary_range_name": "pods",
        "services_secondary_range_name": "services",
    }
    assert body["private_cluster_config"] == {"enable_private_nodes": True}
    assert body["maintenance_policy"]["recurring_window"] == {
        "start_time": "2024-01-06T22:30:00Z",
        "end_time": "2024-01-07T02:30:00Z",
        "recurrence": "FREQ=WEEKLY;BYDAY=MO,TU,WE",
    }


def test_without_a_word_upgrades_wait_for_the_weekend(run) -> None:
    flags = cluster_flags(run, a_service())
    assert flags["release-channel"] == "rapid"
    assert flags["maintenance-window-recurrence"] == "FREQ=WEEKLY;BYDAY=SA,SU"
    assert not {"network", "subnetwork", "enable-private-nodes", "disk-type"} & flags.keys()
    never = cluster_flags(run, a_service(maintenance=None))
    assert not any(name.startswith("maintenance") for name in never)


def test_a_window_that_gke_would_refuse_is_refused() -> None:
    """Oracle: GKE wants 48 hours of windows of at least four hours in any 32 days."""
    for window in ({"hours": 4, "days": ("SA",)}, {"hours": 3}, {"start": "24:00"}, {"days": ()}, {"days": ("XX",)}):
        with pytest.raises(ValidationError):
            MaintenanceWindow(**window)
    for hours, days in ((12, ("SA",)), (4, ("MO", "TU", "WE"))):
        MaintenanceWindow(hours=hours, days=days)


def test_further_flags_are_passed_as_they_are(run) -> None:
    nasty = "--labels=a=$(touch pwned),b=c d"
    config = a_service(cluster_flags=(nasty, "--enable-shielded-nodes"), pool_flags=("--tags=tpu",))
    ran = run(commands(config))
    assert ran.status == 0, ran.said
    assert nasty in ran.one("container clusters create").arguments
    assert "--enable-shielded-nodes" in ran.one("container clusters create").arguments
    assert "--tags=tpu" in ran.one("container node-pools create").arguments
    with pytest.raises(ConfigError, match=r"cluster_flags are gcloud's.*override.tf.json"):
        terraform(config)
    with pytest.raises(ValidationError, match="is no flag of gcloud"):
        GoogleCloud(pool_flags=("tags=tpu",))


def test_a_range_needs_its_subnetwork() -> None:
    with pytest.raises(ValidationError, match="pod_range is a range of a subnetwork"):
        GoogleCloud(pod_range="pods")


def test_an_operator_that_is_too_old_is_found_before_slices_are_bought(run) -> None:
    ran = run(commands(a_service()), OPERATOR_MARKS="")
    assert ran.status == 1 and "KubeRay is older than 1.5.1" in ran.said
    assert not ran.made("container node-pools create")
    batch = Job(name="j", command=("a",), slice="v6e:4x4", cloud=GoogleCloud(location="us-east5-b"))
    assert run(commands(batch), OPERATOR_MARKS="").status == 0, "a Job needs no operator"


@pytest.mark.parametrize(
    ("cloud", "rules"),
    [
        ({}, set()),
        ({"cluster_version": "1.32.9-gke.1"}, {"operator-version"}),
        ({"cluster_version": "1.36"}, set()),
        ({"maintenance": None}, {"maintenance-window"}),
        ({"maintenance": None, "release_channel": "stable"}, {"maintenance-window"}),
        ({"maintenance": None, "cluster_version": "1.36"}, {"maintenance-window"}),
    ],
)
def test_what_check_says_of_a_cluster(cloud: dict[str, Any], rules: set[str]) -> None:
    config = a_service(**cloud)
    found = {one.rule: one.severity for one in check(render(config), config) if "cloud" in one.where}
    assert found.keys() == rules
    rapid = not cloud.get("release_channel") and not cloud.get("cluster_version")
    assert found.get("maintenance-window") in (None, "warning" if rapid else "note")


def test_zones_may_differ_by_application(run) -> None:
    def app(slice: str, zone: str, **more: Any) -> Application:
        config = LLMConfig(slice=slice, min_replicas=1)
        return Application(config=config, name=zone, route_prefix=f"/{zone}", zones=(zone,), **more)

    apps = (app("v6e:4x4", "us-east5-a", capacity=Reservation(name="r")), app("v6e:2x2", "us-east5-b"))
    cloud = GoogleCloud(location="us-east5", zones=("us-east5-b", "us-east5-c"))
    config = Service(name="s", applications=apps, cloud=cloud)
    assert [(str(pool.slice), pool.zone) for pool in pools(config)] == [
        ("v6e:4x4", "us-east5-a"),
        ("v6e:2x2", "us-east5-b"),
    ]
    assert not {"reservation-zone", "zone-region"} & {found.rule for found in check(render(config), config)}
    wrong = Service(name="s", applications=(app("v6e:4x4", "us-west4-a"),), cloud=cloud)
    assert "zone-region" in {found.rule for found in check(render(wrong), wrong)}
    alone = Service(name="s", applications=apps, cloud=GoogleCloud(location="us-east5"))
    assert len(pools(alone)) == 2, "each says where its chips are"


def test_an_account_of_the_administrators_is_used_and_not_made(run) -> None:
    config = Service(
        name="s",
        applications=(Application(config=LLMConfig(slice="v6e:2x2", max_replicas=1)),),
        cloud=GoogleCloud(location="us-east5-b"),
        identity=Identity(service_account="search-models", create=False),
    )
    ran = run(commands(config))
    assert not ran.made("iam service-accounts")
    assert "google_service_account" not in json.loads(terraform(config))["resource"]
    objects = render(config)
    assert not [item for item in objects if item["kind"] == "ServiceAccount"]
    (service,) = (item for item in objects if item["kind"] == "RayService")
    pod = service["spec"]["rayClusterConfig"]["workerGroupSpecs"][0]["template"]["spec"]
    assert pod["serviceAccountName"] == "search-models"


def test_secrets_of_the_environment_are_asked_for(run) -> None:
    config = Service(
        name="s",
        applications=(Application(config=LLMConfig(slice="v6e:2x2")),),
        cloud=GoogleCloud(location="us-east5-b"),
        env={"AWS_KEY": SecretKey(secret="aws", key="id")},
    )
    ran = run(commands(config), AWS_KEY="k1")
    assert ran.one("create secret generic").arguments[3] == "aws" and ran.secrets == ["k1"]
    assert re.search(r'AWS_KEY: "', commands(config))
