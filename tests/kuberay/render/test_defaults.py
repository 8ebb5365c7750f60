"""What every rendered manifest does without being asked, and what a config can ask for."""

from typing import Any

import pytest

from kuberay.render import render
from ray_configs.capacity import FlexStart, Queued, Reservation, Spot
from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket, GoogleCloud, Identity, SecretKey
from ray_configs.exposure import Gateway, LoadBalancer
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.loading import catalog, load
from ray_configs.observability import Observability
from ray_configs.service import Application, Service


def service(
    slice: str | None = "v6e:4x4", capacity: Any = None, replicas: tuple[int, int] = (1, 2), **more: Any
) -> Service:
    config = LLMConfig(model="model", slice=slice, min_replicas=replicas[0], max_replicas=replicas[1])
    application = Application(config=config) if capacity is None else Application(config=config, capacity=capacity)
    return Service(name="example", applications=(application,), **more)


def of_kind(config: Service | Job, kind: str) -> list[dict[str, Any]]:
    return [item for item in render(config) if item["kind"] == kind]


def cluster(config: Service) -> dict[str, Any]:
    (ray_service,) = of_kind(config, "RayService")
    return ray_service["spec"]["rayClusterConfig"]


def worker_pod(config: Service) -> dict[str, Any]:
    return cluster(config)["workerGroupSpecs"][0]["template"]["spec"]


def pod_templates(config: Service | Job) -> list[dict[str, Any]]:
    found = []

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            if "containers" in value:
                found.append(value)
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(render(config))
    return found


@pytest.mark.parametrize("name", catalog())
def test_every_pod_of_the_catalog(name: str) -> None:
    for pod in pod_templates(load(name)):
        (container,) = pod["containers"]
        assert container["resources"]["limits"] == container["resources"]["requests"]
        assert "securityContext" not in container and "securityContext" not in pod, "nothing is privileged"
        assert {"name": "dshm", "mountPath": "/dev/shm"} in container["volumeMounts"]
        assert "affinity" not in pod, "the TPU webhook would overwrite it"
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
    (group,) = cluster(service())["workerGroupSpecs"]
    assert group["labels"] == {
        "ray.io/accelerator-type": "TPU-V6E",
        "ray.io/tpu-pod-type": "v6e-16",
        "ray.io/tpu-topology": "4x4",
    }


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
    assert [variable for variable in worker if variable["name"].startswith("RAY_SERVE")] == head


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
    pod = worker_pod(service(capacity=capacity))
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v6e-slice",
        "cloud.google.com/gke-tpu-topology": "4x4",
        **selector,
    }
    assert {toleration["key"] for toleration in pod["tolerations"]} == {"google.com/tpu", *taints}


def test_a_queued_service_brings_its_queue() -> None:
    config = service(capacity=Queued(queue="night", max_run_hours=2))
    (ray_service,) = of_kind(config, "RayService")
    assert ray_service["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "night"
    annotations = ray_service["metadata"]["annotations"]
    assert annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"] == "7200"
    assert annotations["kueue.x-k8s.io/elastic-job"] == "true", "Kueue refuses autoscaling workloads without it"
    (local,) = of_kind(config, "LocalQueue")
    (queue,) = of_kind(config, "ClusterQueue")
    (check,) = of_kind(config, "AdmissionCheck")
    (request,) = of_kind(config, "ProvisioningRequestConfig")
    flavors = {flavor["metadata"]["name"] for flavor in of_kind(config, "ResourceFlavor")}
    assert local["metadata"]["name"] == "night" and local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    (group,) = queue["spec"]["resourceGroups"]
    assert {flavor["name"] for flavor in group["flavors"]} == flavors
    (used,) = queue["spec"]["admissionChecksStrategy"]["admissionChecks"]
    assert used["name"] == check["metadata"]["name"] and set(used["onFlavors"]) < flavors
    assert check["spec"]["parameters"]["name"] == request["metadata"]["name"]
    assert request["spec"]["provisioningClassName"] == "queued-provisioning.gke.io"
    kinds = [item["kind"] for item in render(config)]
    assert kinds.index("LocalQueue") < kinds.index("RayService")


def test_a_queue_that_exists_is_not_made_again() -> None:
    kinds = {item["kind"] for item in render(service(capacity=Queued(create_queue=False)))}
    assert kinds == {"RayService", "PodMonitoring"}


def test_two_configs_render_the_same_queue() -> None:
    queued = Queued(queue="shared")
    job = Job(name="job", command=("true",), slice="v6e:2x2", capacity=queued)
    kueue = [[o for o in render(c) if "kueue" in o["apiVersion"]] for c in (service(capacity=queued), job)]
    assert kueue[0] == kueue[1] and kueue[0]


def test_a_bucket_is_mounted_and_readable_by_a_service_account() -> None:
    config = service(bucket=Bucket(name="weights"), cloud=GoogleCloud(project="p1"))
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


def test_secrets_reach_the_workers_alone() -> None:
    spec = cluster(
        service(api_keys=SecretKey(secret="keys", key="all"), hugging_face_token=SecretKey(secret="h", key="t"))
    )
    worker = {v["name"]: v for v in spec["workerGroupSpecs"][0]["template"]["spec"]["containers"][0]["env"]}
    assert worker["PODSLICE_API_KEYS"]["valueFrom"]["secretKeyRef"] == {"name": "keys", "key": "all"}
    assert worker["HF_TOKEN"]["valueFrom"]["secretKeyRef"] == {"name": "h", "key": "t"}
    assert "valueFrom" not in str(spec["headGroupSpec"])


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


def test_a_ray_job_goes_when_it_is_done() -> None:
    job = Job(name="job", command=("python", "-c", "print('a b')"), slice="v4:2x2x2", slices=3, ray=True, retries=2)
    (ray_job,) = of_kind(job, "RayJob")
    spec = ray_job["spec"]
    assert spec["entrypoint"] == """python -c 'print('"'"'a b'"'"')'"""
    assert spec["shutdownAfterJobFinishes"] is True and spec["backoffLimit"] == 2
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["replicas"], group["numOfHosts"]) == (3, 2)
    assert "readinessProbe" not in group["template"]["spec"]["containers"][0], "there is no Serve proxy to wait for"


def test_time_for_a_job_does_not_run_while_it_waits_for_machines() -> None:
    flexible = {"slice": "v6e:2x2", "capacity": FlexStart(), "command": ("true",), "max_run_hours": 0.5}
    (job,) = of_kind(Job(name="job", **flexible), "Job")
    assert "activeDeadlineSeconds" not in job["spec"]
    assert job["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 1800
    (ray_job,) = of_kind(Job(name="job", ray=True, **flexible), "RayJob")
    assert "activeDeadlineSeconds" not in ray_job["spec"]


def test_several_applications_share_groups_of_the_same_slice() -> None:
    def app(name: str, slice: str, most: int) -> Application:
        return Application(config=LLMConfig(slice=slice, max_replicas=most), name=name, route_prefix=f"/{name}")

    three = Service(name="three", applications=(app("a", "v6e:2x2", 1), app("b", "v6e:1x1", 2), app("c", "v6e:2x2", 4)))
    groups = {group["groupName"]: group for group in cluster(three)["workerGroupSpecs"]}
    assert list(groups) == ["tpu-v6e-2x2", "tpu-v6e-1x1"]
    assert (groups["tpu-v6e-2x2"]["minReplicas"], groups["tpu-v6e-2x2"]["maxReplicas"]) == (2, 5)


def test_a_cells_slices_are_there_before_anything_is_published() -> None:
    cell = CellConfig(slice="v5e:4x8", min_replicas=1, max_replicas=3)
    chat = LLMConfig(slice="v5e:4x8", max_replicas=2)
    both = Service(name="s", applications=(Application(config=cell), Application(config=chat, route_prefix="/chat")))
    spec = cluster(both)
    (group,) = spec["workerGroupSpecs"]
    assert (group["replicas"], group["minReplicas"], group["maxReplicas"]) == (2, 2, 5)
    assert group["rayStartParams"] == {}, "KubeRay tells Ray of as many CPUs as the container may use"
    assert int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]) > 8, "for the cell's own too"
    assert spec["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"


@pytest.mark.parametrize(("model", "pod"), [(1, "2"), (2, "3"), (8, "9")])
def test_on_cpus_a_cell_leaves_room_for_a_model(model: int, pod: str) -> None:
    config = Service(name="s", applications=(Application(config=CellConfig(num_cpus=model)),))
    assert worker_pod(config)["containers"][0]["resources"]["limits"]["cpu"] == pod


def test_the_catalogs_cell_keeps_both_slices_and_needs_no_autoscaler() -> None:
    spec = cluster(load("ray_configs.catalog.cell_v5e_4x8"))
    (group,) = spec["workerGroupSpecs"]
    assert (group["minReplicas"], group["maxReplicas"], group["numOfHosts"]) == (2, 2, 8)
    assert spec["enableInTreeAutoscaling"] is False
    (ray_service,) = of_kind(load("ray_configs.catalog.cell_v5e_4x8"), "RayService")
    assert ray_service["spec"]["serveService"]["spec"]["ports"] == [
        {"name": "serve", "port": 8888, "targetPort": 8000, "protocol": "TCP"}
    ]
