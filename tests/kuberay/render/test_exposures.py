"""Ways into a service. Oracles: the fields of Gateway API and of GKE's policies, as GKE's documents write them."""

from typing import Any

import pytest
from pydantic import ValidationError

from kuberay.check import check
from kuberay.render import render
from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket, SecretKey
from ray_configs.exposure import Gateway, GatewayRef, IdentityAwareProxy, LoadBalancer
from ray_configs.service import Application, GcsFaultTolerance, Service
from tests.kuberay.render.rendered import cluster, of_kind, service, worker_pod

KEYS = SecretKey(secret="keys", key="KEYS")
PUBLIC = "gke-l7-global-external-managed"


def spec(exposure: Any, kind: str) -> dict[str, Any]:
    (found,) = of_kind(service(exposure=exposure), kind)
    return found["spec"]


def test_an_existing_gateway_gets_a_route_and_no_rival() -> None:
    exposure = Gateway(
        existing=GatewayRef(name="shared", namespace="infra", listener="https"), hostname="a.example.com"
    )
    assert not of_kind(service(exposure=exposure), "Gateway")
    route = spec(exposure, "HTTPRoute")
    assert route["parentRefs"] == [{"name": "shared", "namespace": "infra", "sectionName": "https"}]
    assert spec(exposure, "HealthCheckPolicy")["targetRef"]["name"] == "example-serve-svc"
    for own in ({"certificate": "c"}, {"address": "a"}, {"gateway_class": PUBLIC}):
        with pytest.raises(ValidationError, match="existing Gateway's own affair"):
            Gateway(existing=GatewayRef(name="shared"), **own)


def test_several_host_names() -> None:
    exposure = Gateway(hostname="a.example.com", hostnames=("b.example.com", "*.c.example.com"))
    assert spec(exposure, "HTTPRoute")["hostnames"] == ["a.example.com", "b.example.com", "*.c.example.com"]
    for wrong in ("https://a.example.com", "A.example.com", "a.example.com:80", "a_b.example.com"):
        with pytest.raises(ValidationError, match="is no host name"):
            Gateway(hostnames=(wrong,))


def test_addresses_policies_and_sign_in() -> None:
    exposure = Gateway(
        gateway_class=PUBLIC,
        certificate_map="certs",
        address="llm-ip",
        security_policy="armor",
        iap=IdentityAwareProxy(client_id="id", client_secret="oauth"),
    )
    (gateway,) = of_kind(service(exposure=exposure), "Gateway")
    assert gateway["metadata"]["annotations"] == {"networking.gke.io/certmap": "certs"}
    assert gateway["spec"]["addresses"] == [{"type": "NamedAddress", "value": "llm-ip"}]
    assert gateway["spec"]["listeners"] == [{"name": "https", "protocol": "HTTPS", "port": 443}]
    assert spec(exposure, "GCPBackendPolicy")["default"] == {
        "timeoutSec": 3600,
        "securityPolicy": "armor",
        "iap": {"enabled": True, "clientID": "id", "oauth2ClientSecret": {"name": "oauth"}},
    }
    with pytest.raises(ValidationError, match="iap needs HTTPS"):
        Gateway(iap=IdentityAwareProxy())
    with pytest.raises(ValidationError, match="go together"):
        IdentityAwareProxy(client_id="id")


def test_a_load_balancer_with_an_address_of_its_own_and_few_callers() -> None:
    exposure = LoadBalancer(address="llm-ip", source_ranges=("10.0.0.0/8",))
    (ray_service,) = of_kind(service(exposure=exposure), "RayService")
    balancer = ray_service["spec"]["serveService"]
    assert balancer["metadata"]["annotations"] == {
        "networking.gke.io/load-balancer-type": "Internal",
        "networking.gke.io/load-balancer-ip-addresses": "llm-ip",
    }
    assert balancer["spec"]["loadBalancerSourceRanges"] == ["10.0.0.0/8"]
    with pytest.raises(ValidationError, match="host bits"):
        LoadBalancer(source_ranges=("10.0.0.1/8",))


@pytest.mark.parametrize(
    ("exposure", "keys", "rule", "severity"),
    [
        (LoadBalancer(internal=False), KEYS, "clear-keys", "warning"),
        (Gateway(gateway_class=PUBLIC), KEYS, "clear-keys", "warning"),
        (Gateway(), KEYS, "clear-keys", "note"),
        (Gateway(existing=GatewayRef(name="g")), KEYS, "clear-keys", "note"),
        (Gateway(existing=GatewayRef(name="g")), None, "no-api-keys", "warning"),
        (Gateway(gateway_class=PUBLIC, certificate_map="m"), None, "no-api-keys", "warning"),
        (Gateway(gateway_class=PUBLIC, certificate_map="m"), KEYS, None, None),
        (Gateway(gateway_class=PUBLIC, certificate="c", iap=IdentityAwareProxy()), None, None, None),
    ],
)
def test_what_check_says_of_a_way_in(exposure: Any, keys: Any, rule: str | None, severity: str | None) -> None:
    config = service(exposure=exposure, api_keys=keys)
    found = {finding.rule: finding.severity for finding in check(render(config), config)}
    named = {name: found[name] for name in ("clear-keys", "no-api-keys") if name in found}
    assert named == ({rule: severity} if rule else {})


def test_keys_from_a_secret_in_env_are_not_in_clear() -> None:
    config = service(env={"PODSLICE_API_KEYS": KEYS}, exposure=LoadBalancer())
    assert not {"clear-secret", "no-api-keys"} & {found.rule for found in check(render(config), config)}
    clear = service(env={"PODSLICE_API_KEYS": "k"})
    assert "clear-secret" in {found.rule for found in check(render(clear), clear)}


def test_options_of_a_mount_replace_ours_of_the_same_name() -> None:
    bucket = Bucket(name="weights", mount_options=("uid=0", "file-cache:max-size-mb:-1", "only-dir=models"))
    (volume,) = (one for one in worker_pod(service(bucket=bucket))["volumes"] if one["name"] == "bucket")
    options = volume["csi"]["volumeAttributes"]["mountOptions"].split(",")
    assert options == ["implicit-dirs", "uid=0", "gid=100", "file-cache:max-size-mb:-1", "only-dir=models"]
    for wrong in ({"mount_options": ("a,b",)}, {"mount_options": ("a",), "mount": None}):
        with pytest.raises(ValidationError):
            Bucket(name="weights", **wrong)


def test_a_redis_with_a_user_and_an_authority_of_its_own() -> None:
    """Oracles: KubeRay's gcsFaultToleranceOptions, and the variable that Ray's GCS reads."""
    redis = GcsFaultTolerance(
        redis_address="rediss://10.0.0.3:6378",
        redis_user="ray",
        redis_password=SecretKey(secret="r", key="p"),
        redis_ca=SecretKey(secret="r", key="ca.pem"),
    )
    ray = cluster(service(gcs_fault_tolerance=redis))
    assert ray["gcsFaultToleranceOptions"]["redisUsername"] == {"value": "ray"}
    pod = ray["headGroupSpec"]["template"]["spec"]
    (volume,) = (one for one in pod["volumes"] if one["name"] == "redis-ca")
    assert volume["secret"] == {"secretName": "r", "items": [{"key": "ca.pem", "path": "ca.crt"}]}
    (mount,) = (one for one in pod["containers"][0]["volumeMounts"] if one["name"] == "redis-ca")
    env = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert env["RAY_REDIS_CA_CERT"] == f"{mount['mountPath']}/ca.crt"
    by_secret = redis.model_copy(update={"redis_user": SecretKey(secret="r", key="u")})
    assert cluster(service(gcs_fault_tolerance=by_secret))["gcsFaultToleranceOptions"]["redisUsername"] == {
        "valueFrom": {"secretKeyRef": {"name": "r", "key": "u"}}
    }
    for wrong in ({"redis_user": "ray"}, {"redis_ca": KEYS}):
        with pytest.raises(ValidationError):
            GcsFaultTolerance(redis_address="redis:6379", **wrong)
    assert not [found for found in check(render(service(gcs_fault_tolerance=redis))) if found.severity == "error"]


def test_a_cell_behind_a_shared_gateway_without_keys() -> None:
    app = Application(config=CellConfig(name="c", slice="v6e:2x2", state_uri="gs://b/c", min_replicas=1))
    config = Service(name="s", applications=(app,), exposure=Gateway(existing=GatewayRef(name="g")))
    assert ("no-api-keys", "error") in {(found.rule, found.severity) for found in check(render(config), config)}
