"""Manifests as other people write them: what Kubernetes, GKE and Ray take must pass, and what they ignore must not."""

from typing import Any

import pytest
from ruamel.yaml import YAML

from kuberay.check import check
from tests.kuberay.check import good_manifests as good
from tests.kuberay.check.good_manifests import REMOVED, Change, changed, expect

SLICE_TOPOLOGY = {"annotations": {"cloud.google.com/gke-tpu-slice-topology": "2x4"}}
GROUP = "spec workerGroupSpecs 0"
SERVE_GROUP = "spec rayClusterConfig workerGroupSpecs 0"
POD = f"{GROUP} template spec"
SELECTOR = f"{POD} nodeSelector"
CSI = {"name": "weights", "csi": {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": {"bucketName": "b"}}}
FUSE = {"annotations": {"gke-gcsfuse/volumes": "true"}}


def env(name: str, value: str) -> dict[str, str]:
    return {"name": name, "value": value}


# Ray's guide of TPU sub-slices and GKE's of dynamic slicing: the Pod's annotation says the slice, not its selector.
@pytest.mark.parametrize(
    "changes",
    [
        [(f"{SELECTOR} cloud.google.com/gke-tpu-topology", "4x4"), (f"{GROUP} numOfHosts", 2)],
        [(f"{SELECTOR} cloud.google.com/gke-tpu-topology", REMOVED), (f"{GROUP} numOfHosts", 2)],
    ],
)
def test_a_slice_formed_within_a_larger_one(changes: list[Change]) -> None:
    objects = changed(good.cluster(), (f"{GROUP} template metadata", SLICE_TOPOLOGY), *changes)
    assert [(f.rule, f.severity) for f in good.check(objects)] == [("tpu-formed-slice", "note")]
    expect(changed(objects, (f"{GROUP} numOfHosts", 4)), "tpu-hosts", "error", "numOfHosts", "2")


@pytest.mark.parametrize(
    ("name", "severity"),
    [("tpu8i", "warning"), ("tpu8t-slice", "warning"), ("tpu-v9-slice", "warning"), ("tpu-v5-slice", "error")],
)
def test_an_accelerator_newer_than_the_tables(name: str, severity: str) -> None:
    objects = changed(good.deployment(), ("spec template spec nodeSelector cloud.google.com/gke-tpu-accelerator", name))
    expect(objects, "tpu-accelerator", severity, "nodeSelector[cloud.google.com/gke-tpu-accelerator]", name)


def pathways(**changes: Any) -> list[dict[str, Any]]:
    """Pathways workers as its JobSets have them: one controller runs the program, so a worker restarts alone."""
    (job_set,) = good.job_set()
    spec = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    spec["backoffLimit"], spec["template"]["spec"]["restartPolicy"] = 320, "OnFailure"
    spec["template"]["spec"]["containers"][0] |= changes
    return [job_set]


def test_pathways_workers_restart_alone() -> None:
    assert good.grave(pathways(image="registry.example/pathways/server:1.2")) == []
    assert good.grave(pathways(args=["--server_port=1", "--resource_manager_address=head:1"])) == []
    assert {finding.rule for finding in good.grave(pathways())} == {"job-restart", "job-retries"}


@pytest.mark.parametrize("written", ["{your_image}", "registry.example/{project}/server:1"])
def test_a_blank_in_braces(written: str) -> None:
    objects = changed(good.deployment(), ("spec template spec containers 0 image", YAML().load(f"a: {written}")["a"]))
    assert [(f.rule, f.severity) for f in good.check(objects)] == [("placeholder", "note")]


def test_a_mapping_in_braces_is_no_blank() -> None:
    objects = changed(good.deployment(), ("spec template metadata labels", YAML().load("{app: server}")))
    assert good.check(objects) == []


def test_a_project_that_is_still_to_be_filled_in() -> None:
    image = ("spec template spec containers 0 image", "us-docker.pkg.dev/PROJECT_ID/llm/server:1")
    (finding,) = good.check(changed(good.deployment(), image))
    assert (finding.rule, finding.severity) == ("image", "note")
    assert "PROJECT_ID" in finding.why


# GKE's webhook looks for the annotation on the Pod; of a RayService, on each template.
def test_a_bucket_without_its_sidecar() -> None:
    objects = changed(good.cluster(), (f"{POD} volumes", [CSI]))
    expect(objects, "gcsfuse-annotation", "error", "volumes[0]", "gke-gcsfuse/volumes")
    expect(
        changed(objects, ("metadata annotations", FUSE["annotations"])),
        "gcsfuse-annotation",
        "error",
        "volumes[0]",
        "RayCluster",
    )
    assert good.grave(changed(objects, (f"{GROUP} template metadata", FUSE))) == []


@pytest.mark.parametrize(("policy", "fine"), [(None, False), ("Default", False), ("ClusterFirstWithHostNet", True)])
def test_hosts_in_the_nodes_network(policy: str | None, fine: bool) -> None:
    pod = "spec template spec"
    policies: list[Change] = [(f"{pod} dnsPolicy", policy)] if policy else []
    objects = changed(good.indexed_job(), (f"{pod} hostNetwork", True), *policies)
    assert [finding.rule for finding in good.grave(objects)] == ([] if fine else ["host-network"])
    lone = changed(good.deployment(), (f"{pod} hostNetwork", True))
    assert good.grave(lone) == [], "a host that looks up nobody"


@pytest.mark.parametrize(
    ("strategy", "fine"),
    [
        (None, False),
        ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}, False),
        ({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, True),
        ({"type": "Recreate"}, True),
    ],
)
def test_an_update_that_needs_one_more_slice(strategy: Any, fine: bool) -> None:
    objects = changed(good.deployment(), ("spec strategy", strategy))
    assert [finding.rule for finding in good.grave(objects)] == ([] if fine else ["rolling-update"])


# Kubernetes' reference of the field `value` of EnvVar: $(NAME) is expanded, $$ escapes, everything else stays.
@pytest.mark.parametrize(
    ("variables", "fine"),
    [
        ([env("PYTHONPATH", "/apps:$PYTHONPATH")], False),
        ([env("LD_LIBRARY_PATH", "/lib:${LD_LIBRARY_PATH}")], False),
        ([env("ROOT", "/data"), env("CACHE", "$ROOT/cache")], False),
        ([env("ROOT", "/data"), env("CACHE", "$(ROOT)/cache")], True),
        ([env("PRICE", "$$PATH")], True),
        ([env("PROJECT", "$PROJECT_ID")], True),
    ],
)
def test_variables_in_variables(variables: list[dict[str, str]], fine: bool) -> None:
    objects = changed(good.deployment(), ("spec template spec containers 0 env", variables))
    assert [finding.rule for finding in good.grave(objects)] == ([] if fine else ["env-expansion"])


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "PODSLICE_API_KEYS", "DB_PASSWORD", "aws_secret_key"])
def test_a_secret_in_clear(name: str) -> None:
    box = "spec template spec containers 0"
    objects = changed(good.deployment(), (f"{box} env 0", env(name, "hf_abcdefgh")))
    expect(objects, "clear-secret", "warning", "env[0].value", name)
    harmless = ["", "true", "/etc/secrets/token", "<token>", "https://vault.example/v1"]
    for value in harmless:
        assert good.grave(changed(good.deployment(), (f"{box} env 0", env(name, value)))) == [], value
    for other in ("MAX_TOKENS", "TOKENIZERS_PARALLELISM", "RAY_AUTH_MODE", "KEYBOARD"):
        assert good.grave(changed(good.deployment(), (f"{box} env 0", env(other, "abcdefgh")))) == [], other


# Ray's scheduler places a request on one node; KubeRay tells it of the container's CPU limit.
@pytest.mark.parametrize(
    ("changes", "fine"),
    [
        ([], True),
        ([(f"{SERVE_GROUP} template spec containers 0 resources limits cpu", "500m")], True),
        ([(f"{SERVE_GROUP} rayStartParams num-cpus", "0")], False),
        ([(f"{SERVE_GROUP} rayStartParams num-cpus", "8")], True),
    ],
)
def test_cpus_that_a_replica_asks_for(changes: list[Change], fine: bool) -> None:
    objects = changed(good.service(), *changes)
    assert [finding.rule for finding in good.grave(objects)] == ([] if fine else ["serve-cpu"])
    config = objects[0]["spec"]["serveConfigV2"].replace("num_cpus: 1", "num_cpus: 30")
    assert "serve-cpu" in {f.rule for f in good.grave(changed(objects, ("spec serveConfigV2", config)))}


def route(kind: str, name: str, port: int | None = 8000) -> dict[str, Any]:
    backend = {"name": name} | ({"port": port} if port else {})
    spec: dict[str, Any] = {"rules": [{"backendRefs": [backend]}]}
    if kind == "Ingress":
        spec = {"defaultBackend": {"service": {"name": name, "port": {"number": port}}}}
    elif kind == "HealthCheckPolicy":
        check = {"type": "HTTP", "httpHealthCheck": {"port": port, "requestPath": "/-/healthz"}}
        spec = {"default": {"config": check}, "targetRef": {"group": "", "kind": "Service", "name": name}}
    version = {"HTTPRoute": "gateway.networking.k8s.io/v1", "Ingress": "networking.k8s.io/v1"}
    return {
        "apiVersion": version.get(kind, "networking.gke.io/v1"),
        "kind": kind,
        "metadata": {"name": "front"},
        "spec": spec,
    }


KINDS = ("HTTPRoute", "Ingress", "HealthCheckPolicy")


# The names are those of KubeRay's GenerateServeServiceName and GenerateHeadServiceName.
@pytest.mark.parametrize("kind", KINDS)
def test_what_leads_to_a_service(kind: str) -> None:
    def found(name: str, port: int = 8000) -> list[str]:
        return [finding.rule for finding in check([*good.service(), route(kind, name, port)]) if finding.why]

    assert found("llama-serve-svc") == []
    assert found("llama-serve-service") == ["service-reference"]
    assert found("llama-x7k2p-head-svc") == ["service-reference"], "ends with its cluster"
    assert found("llama-raycluster-x7k2p-head-svc") == ["service-reference"]
    wrong = found("llama-serve-svc", 8265)
    assert wrong == (["health-check-port"] if kind == "HealthCheckPolicy" else ["service-reference"])
    assert check([route(kind, "elsewhere")]) == [], "its Service is in another file"
