"""What every rendered manifest does without being asked, and what a config can ask for."""

from typing import Any

import pytest
from kubernetes.utils.quantity import parse_quantity
from ray._private.utils import resolve_object_store_memory

from ray_configs.capacity import FlexStart, OnDemand, Queued, Reservation, Spot
from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket, GoogleCloud, Identity, SecretKey
from ray_configs.cluster.deployed import Head
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.observability import Observability
from ray_configs.service import Application, Service
from tests.kuberay.render.rendered import cluster, of_kind, pod_templates, service, worker_pod


@pytest.mark.parametrize("name", catalog())
def test_every_pod_of_the_catalog(name: str) -> None:
    for pod in pod_templates(load(name)):
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert "securityContext" not in container and "securityContext" not in pod, "nothing is privileged"
        assert {"name": "dshm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        ray = load(name).ray if isinstance(load(name), Job) else True
        assert not (ray and "affinity" in pod), "the TPU webhook would overwrite it"
        if "google.com/tpu" in container["resources"]["limits"]:
            assert {"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"} in pod["tolerations"]
            assert len([key for key in pod["nodeSelector"] if "gke-tpu-" in key]) == 2


def test_an_elastic_service_says_autoscaler_v2() -> None:
    spec = cluster(service())
    assert spec["enableInTreeAutoscaling"] is True and spec["autoscalerOptions"]["version"] == "v2"


def test_a_service_of_fixed_size_needs_no_autoscaler() -> None:
    spec = cluster(service(replicas=(2, 2)))
    assert spec["enableInTreeAutoscaling"] is False and "autoscalerOptions" not in spec


def test_group_labels_are_those_that_all_hosts_share() -> None:
    group, *_ = cluster(service())["workerGroupSpecs"]
    assert group["labels"] == {
        "ray.io/accelerator-type": "TPU-V6E",
        "ray.io/tpu-pod-type": "v6e-16",
        "ray.io/tpu-topology": "4x4",
    }


def test_processes_of_slices_of_several_hosts_have_cpu_pods_of_their_own() -> None:
    slices, processes, _routers = cluster(service())["workerGroupSpecs"]
    assert slices["rayStartParams"] == {"num-cpus": "0"}, "nothing but the slice's own actors lands on its hosts"
    assert processes["groupName"] == "cpu-v6e-4x4" and processes["labels"] == {"podslice/group": "cpu-v6e-4x4"}
    assert (processes["minReplicas"], processes["maxReplicas"], processes["rayStartParams"]) == (1, 2, {})
    (container,) = processes["template"]["spec"]["containers"]
    assert "google.com/tpu" not in container["resources"]["limits"]
    assert "nodeSelector" not in processes["template"]["spec"], "an ordinary node"
    for name in ("headGroupSpec", 0, 1, 2):
        group = cluster(service())[name] if name == "headGroupSpec" else cluster(service())["workerGroupSpecs"][name]
        env = group["template"]["spec"]["containers"][0]["env"]
        assert {"name": "PODSLICE_GROUPS_LABELLED", "value": "1"} in env


@pytest.mark.parametrize("slice", [None, "v6e:2x2", "v6e:4x4"])
def test_routers_have_cpu_pods_of_their_own(slice: str | None) -> None:
    config = LLMConfig(slice=slice, routers=2, max_replicas=2)
    spec = cluster(Service(name="routed", applications=(Application(config=config, capacity=Spot()),)))
    *_, routers = spec["workerGroupSpecs"]
    assert (routers["groupName"], routers["labels"]) == ("routers", {"podslice/group": "routers"})
    assert [routers[name] for name in ("replicas", "minReplicas", "maxReplicas")] == [2, 2, 2]
    (container,) = routers["template"]["spec"]["containers"]
    assert "google.com/tpu" not in container["resources"]["limits"]
    assert "spot" not in str(routers["template"]["spec"]).lower(), "machines that stay"
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        env = group["template"]["spec"]["containers"][0]["env"]
        assert {"name": "PODSLICE_GROUPS_LABELLED", "value": "1"} in env


@pytest.mark.parametrize(
    ("fields", "capacity", "routers"),
    [
        ({"max_replicas": 1}, OnDemand(), 0),
        ({"max_replicas": 1}, Reservation(name="r"), 0),
        ({"max_replicas": 1}, Spot(), 1),
        ({"max_replicas": 1}, FlexStart(), 1),
        ({"max_replicas": 1}, Queued(), 1),
        ({"max_replicas": 2}, OnDemand(), 2),
        ({"max_replicas": 2}, Spot(), 2),
        ({"max_replicas": 2, "routers": 0}, Spot(), 0),
        ({"max_replicas": 1, "routers": 3}, OnDemand(), 3),
    ],
)
def test_routers_stand_where_a_replica_may_be_lost(fields: dict[str, int], capacity: Any, routers: int) -> None:
    app = Application(config=LLMConfig(slice="v6e:2x2", **fields), capacity=capacity)
    groups = cluster(Service(name="routed", applications=(app,)))["workerGroupSpecs"]
    assert sum(group["replicas"] for group in groups if group["groupName"] == "routers") == routers
    assert isinstance(app.config, LLMConfig) and app.config.router_count == routers, "and so in Serve's arguments"


def test_slices_of_one_host_run_their_own_processes() -> None:
    spec = cluster(service("v6e:2x2", replicas=(1, 1)))
    (group,) = spec["workerGroupSpecs"]
    assert group["rayStartParams"] == {}


def test_two_applications_on_one_kind_of_slice_share_its_processes_group() -> None:
    first = LLMConfig(model="one", slice="v6e:4x4", min_replicas=2, max_replicas=2, routers=0)
    second = LLMConfig(model="two", slice="v6e:4x4", num_cpus=6)
    applications = (
        Application(config=first, name="one"),
        Application(config=second, name="two", route_prefix="/two"),
        Application(config=LLMConfig(model="three"), name="three", route_prefix="/three"),
    )
    groups = cluster(Service(name="example", applications=applications))["workerGroupSpecs"]
    assert [(group["groupName"], group["replicas"]) for group in groups] == [
        ("tpu-v6e-4x4", 3),
        ("cpu-v6e-4x4", 3),
        ("cpu", 1),
    ]
    assert groups[2]["labels"] == {"podslice/group": "cpu"}, "a process without a slice keeps off the others' Pods"
    assert int(groups[1]["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]) >= 6


def env_of(group: dict[str, Any]) -> dict[str, str]:
    return {entry["name"]: entry.get("value", "") for entry in group["template"]["spec"]["containers"][0]["env"]}


def test_the_autoscaler_meets_no_bound_of_slices_of_several_hosts() -> None:
    """One bound below and one above: see kuberay.render.ray.ray_cluster._bounds, and tests/kuberay/autoscaler."""
    slices, processes, _ = cluster(service(replicas=(1, 3)))["workerGroupSpecs"]
    assert (slices["replicas"], slices["minReplicas"], slices["maxReplicas"]) == (1, 0, 6)
    assert "idleTimeoutSeconds" not in slices and "PODSLICE_SLICES_KEPT" not in env_of(processes)
    fixed, processes, _ = cluster(service(replicas=(2, 2)))["workerGroupSpecs"]
    assert (fixed["replicas"], fixed["minReplicas"], fixed["maxReplicas"]) == (2, 2, 2), "there is no autoscaler"
    assert "idleTimeoutSeconds" not in fixed and env_of(processes)["PODSLICE_SLICES_KEPT"] == "1"


def test_slices_of_a_fixed_number_are_never_idle_beside_others_that_scale() -> None:
    groups = {
        group["groupName"]: group for group in cluster(load("ray_configs.catalog.whole_graph"))["workerGroupSpecs"]
    }
    cell, processes, single = groups["tpu-v5e-4x8"], groups["cpu-v5e-4x8"], groups["tpu-v5e-2x4-8t"]
    assert (cell["replicas"], cell["minReplicas"], cell["maxReplicas"]) == (1, 0, 2)
    assert cell["idleTimeoutSeconds"] > 9 * 365 * 86400 and env_of(processes)["PODSLICE_SLICES_KEPT"] == "1"
    assert (single["minReplicas"], single["maxReplicas"]) == (1, 2) and "idleTimeoutSeconds" not in single


def test_a_cell_of_several_hosts_keeps_a_pod_for_its_own_processes() -> None:
    cell = CellConfig(slice="v6e:4x4", min_replicas=0, max_replicas=3)
    slices, processes = cluster(Service(name="example", applications=(Application(config=cell),)))["workerGroupSpecs"]
    assert (slices["replicas"], processes["replicas"], processes["maxReplicas"]) == (0, 1, 3)


def test_the_autoscaler_waits_for_capacity_and_asks_for_whole_slices() -> None:
    env = {entry["name"]: entry["value"] for entry in cluster(service())["autoscalerOptions"]["env"]}
    assert int(env["RAY_AUTOSCALER_RECONCILE_ALLOCATE_STATUS_TIMEOUT_S"]) >= 7 * 86400
    assert int(env["AUTOSCALER_MAX_CONCURRENT_LAUNCHES"]) >= 1000


@pytest.mark.parametrize("slice", ["v6e:4x4", "v6e:2x2", None])
def test_kuberays_own_probes_keep_hosts_without_a_proxy_out_of_the_service(slice: str | None) -> None:
    """A readiness probe of ours would replace KubeRay's, which asks for the Serve proxy."""
    (container,) = worker_pod(service(slice))["containers"]
    assert not [key for key in container if key.endswith("Probe")]


def test_upgrades_ask_for_no_second_set_of_slices() -> None:
    (ray_service,) = of_kind(service(), "RayService")
    assert ray_service["spec"]["upgradeStrategy"] == {"type": "None"}


def test_the_dashboard_asks_for_a_token_unless_told_not_to() -> None:
    assert cluster(service())["authOptions"] == {"mode": "token"}
    assert "authOptions" not in cluster(service(observability=Observability(dashboard_auth="disabled")))


def test_direct_ingress_is_asked_for_alike_on_head_and_workers() -> None:
    spec = cluster(service())
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    worker = worker_pod(service())["containers"][0]["env"]
    assert {"name": "RAY_SERVE_ENABLE_HA_PROXY", "value": "1"} in head
    assert [
        variable for variable in worker if variable["name"].startswith(("RAY_SERVE", "RAY_GRACEFUL", "PODSLICE"))
    ] == head


@pytest.mark.parametrize(
    ("capacity", "selector", "taints"),
    [
        (Spot(), {"cloud.google.com/gke-spot": "true"}, {"cloud.google.com/gke-spot"}),
        (Reservation(name="r1"), {"cloud.google.com/reservation-name": "r1"}, set()),
        (
            Reservation(name="r1", project="p1"),
            {"cloud.google.com/reservation-name": "r1", "cloud.google.com/reservation-project": "p1"},
            set(),
        ),
        (FlexStart(), {"cloud.google.com/gke-flex-start": "true"}, set()),
        (Queued(), {}, {"cloud.google.com/gke-queued"}),
    ],
)
def test_capacity_says_where_pods_go(capacity: Any, selector: dict[str, str], taints: set[str]) -> None:
    pod = worker_pod(service(capacity=capacity, replicas=(1, 1)))
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        **selector,
    }
    own = {"podslice-owner", "podslice-capacity"}
    assert {toleration["key"] for toleration in pod["tolerations"]} - own == {"google.com/tpu", *taints}


def test_a_bucket_is_mounted_and_readable_by_a_service_account() -> None:
    config = service(bucket=Bucket(name="weights"), cloud=GoogleCloud(project="p1"), replicas=(2, 2))
    pod = worker_pod(config)
    (volume,) = [volume for volume in pod["volumes"] if "csi" in volume]
    assert volume["csi"]["volumeAttributes"]["bucketName"] == "weights" and volume["csi"]["readOnly"] is True
    (mount,) = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] == volume["name"]]
    assert mount == {"name": "bucket", "mountPath": "/gcs", "readOnly": True}
    (account,) = of_kind(config, "ServiceAccount")
    assert pod["serviceAccountName"] == account["metadata"]["name"] == "podslice"
    assert account["metadata"]["annotations"] == {
        "iam.gke.io/gcp-service-account": "podslice@p1.iam.gserviceaccount.com"
    }
    template = cluster(config)["workerGroupSpecs"][0]["template"]
    assert template["metadata"]["annotations"]["gke-gcsfuse/volumes"] == "true"


def test_a_bucket_that_is_read_directly_is_not_mounted() -> None:
    pod = worker_pod(service(bucket=Bucket(name="weights", mount=None), identity=Identity(service_account="reader")))
    assert not [volume for volume in pod["volumes"] if "csi" in volume] and pod["serviceAccountName"] == "reader"


def test_what_the_autoscaler_may_change_the_workers_may_not() -> None:
    """KubeRay gives the head's service account the right to change Pods and RayClusters."""
    config = service(bucket=Bucket(name="weights"), replicas=(1, 2))
    head = cluster(config)["headGroupSpec"]["template"]["spec"]["serviceAccountName"]
    assert (head, worker_pod(config)["serviceAccountName"]) == ("example-head", "podslice")
    accounts = {item["metadata"]["name"]: item["metadata"] for item in of_kind(config, "ServiceAccount")}
    assert accounts.keys() == {"example-head", "podslice"}
    assert accounts["example-head"]["annotations"] == accounts["podslice"]["annotations"], "both read the bucket"
    fixed = service(bucket=Bucket(name="weights"), replicas=(2, 2))
    assert cluster(fixed)["headGroupSpec"]["template"]["spec"]["serviceAccountName"] == "podslice"


def test_secrets_reach_the_workers_and_keys_the_proxies() -> None:
    """The head's proxy takes the requests of a service that has no replica."""
    spec = cluster(
        service(api_keys=SecretKey(secret="keys", key="all"), hugging_face_token=SecretKey(secret="h", key="t"))
    )
    worker = {v["name"]: v for v in spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["env"]}
    assert worker["PODSLICE_API_KEYS"]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "all"}
    assert worker["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "h", "key": "t"}
    head = spec["headGroupSpec"]["template"]["spec"]["containers"][0]["env"]
    assert [v for v in head if "valueFrom" in v] == [worker["PODSLICE_API_KEYS"]]


def test_load_balancers_are_internal_unless_told_otherwise() -> None:
    inside, outside = (
        of_kind(service(exposure=LoadBalancer(port=80, internal=internal)), "RayService")[0]["spec"]["serveService"]
        for internal in (True, False)
    )
    assert inside["metadata"]["annotations"] == {"networking.gke.io/load-balancer-type": "Internal"}
    assert "metadata" not in outside and outside["spec"] == inside["spec"]


def test_a_gateway_routes_to_serve_and_asks_serve_for_its_health() -> None:
    config = service(exposure=Gateway(hostname="llm.example.com", certificate="tls"))
    (gateway,), (route,) = of_kind(config, "Gateway"), of_kind(config, "HTTPRoute")
    (health,) = of_kind(config, "HealthCheckPolicy")
    assert gateway["spec"]["listeners"][0]["port"] == 443
    assert route["spec"]["parentRefs"] == [{"name": gateway["metadata"]["name"]}]
    assert route["spec"]["hostnames"] == ["llm.example.com"]
    assert route["spec"]["rules"] == [{"backendRefs": [{"name": "example-serve-svc", "port": 8000}]}]
    assert health["spec"]["targetRef"]["name"] == "example-serve-svc"
    assert health["spec"]["default"]["config"]["httpHealthCheck"] == {"port": 8000, "requestPath": "/-/healthz"}


def test_monitoring_finds_the_pods_by_their_label() -> None:
    (monitoring,) = of_kind(service(), "PodMonitoring")
    labels = cluster(service())["workerGroupSpecs"][0]["template"]["metadata"]["labels"]
    assert monitoring["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert not of_kind(service(observability=Observability(pod_monitoring=False)), "PodMonitoring")


def test_a_worker_leaves_room_for_the_nodes_own_pods() -> None:
    limits = worker_pod(service("v5e:1x1", replicas=(1, 1)))["containers"][0]["resources"]["limits"]
    assert limits["cpu"] == "19" and limits["memory"] == "38G", "of 24 CPUs and 48 GB"


@pytest.mark.parametrize("memory_gb", [4, 8, 13, 64, 300])
def test_rays_object_store_fits_into_shared_memory(memory_gb: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it does not, Ray puts it on disk."""
    config = service(head=Head(memory_gb=memory_gb))
    (volume,) = cluster(config)["headGroupSpec"]["template"]["spec"]["volumes"]
    size = int(parse_quantity(volume["emptyDir"]["sizeLimit"]))
    monkeypatch.setattr("ray._private.utils.get_shared_memory_bytes", lambda: size)
    store = resolve_object_store_memory(memory_gb * 10**9)
    assert 0.25 * memory_gb * 10**9 < store < size < 0.4 * memory_gb * 10**9


def test_several_applications_share_groups_of_the_same_slice() -> None:
    def app(name: str, slice: str, most: int) -> Application:
        return Application(config=LLMConfig(slice=slice, max_replicas=most), name=name, route_prefix=f"/{name}")

    three = Service(name="three", applications=(app("a", "v6e:2x2", 1), app("b", "v6e:1x1", 2), app("c", "v6e:2x2", 4)))
    groups = {group["groupName"]: group for group in cluster(three)["workerGroupSpecs"]}
    assert list(groups) == ["tpu-v6e-2x2", "tpu-v6e-1x1", "routers"]
    assert groups["routers"]["replicas"] == 4, "two for each application of several replicas"
    assert (groups["tpu-v6e-2x2"]["minReplicas"], groups["tpu-v6e-2x2"]["maxReplicas"]) == (2, 5)


def test_a_cells_slices_are_there_before_anything_is_published() -> None:
    cell = CellConfig(slice="v5e:4x8", min_replicas=3, max_replicas=3)
    chat = LLMConfig(slice="v5e:4x8", max_replicas=2, routers=0)
    both = Service(name="s", applications=(Application(config=cell), Application(config=chat, route_prefix="/chat")))
    spec = cluster(both)
    slices, processes = spec["workerGroupSpecs"]
    assert slices["replicas"] == processes["replicas"] == 4 and processes["maxReplicas"] == 5
    assert processes["rayStartParams"] == {}, "KubeRay tells Ray of as many CPUs as the container may use"
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize(("model", "pod"), [(1, "2"), (2, "3"), (8, "9")])
def test_on_cpus_a_cell_leaves_room_for_a_model(model: int, pod: str) -> None:
    config = Service(name="s", applications=(Application(config=CellConfig(num_cpus=model)),))
    assert worker_pod(config)["containers"][0]["resources"]["limits"]["cpu"] == pod


def test_the_catalogs_cell_keeps_both_slices_and_needs_no_autoscaler() -> None:
    spec = cluster(load("ray_configs.catalog.cell_v5e_4x8"))
    slices, processes = spec["workerGroupSpecs"]
    assert (slices["minReplicas"], slices["maxReplicas"], slices["numOfHosts"]) == (2, 2, 8)
    assert (processes["minReplicas"], processes["maxReplicas"], processes["numOfHosts"]) == (2, 2, 1)
    assert spec["enableInTreeAutoscaling"] is False
    (ray_service,) = of_kind(load("ray_configs.catalog.cell_v5e_4x8"), "RayService")
    assert ray_service["spec"]["serveService"]["spec"]["ports"] == [
        {"name": "serve", "port": 8888, "targetPort": 8000, "protocol": "TCP"}
    ]
