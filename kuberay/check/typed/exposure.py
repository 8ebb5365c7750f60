"""How a service is reached from outside: by whom, and whether its keys cross networks in clear."""

from collections.abc import Iterator

from kuberay.check.findings import Location
from kuberay.check.rules import Problem, error, note, rule, warning
from kuberay.check.typed.subjects import cells_of
from ray_configs.exposure import ClusterIP, Gateway
from ray_configs.service import Service

_KEYS = "PODSLICE_API_KEYS"


@rule(Service, "no-api-keys", "the typed config: exposure and api_keys")
def no_api_keys(service: Service) -> Iterator[Problem]:
    """An exposed service asks for API keys. Otherwise everyone who reaches it may use it, and publish in its cells."""
    if isinstance(service.exposure, ClusterIP) or service.api_keys is not None or _KEYS in service.env:
        return
    exposure = service.exposure
    if isinstance(exposure, Gateway) and exposure.iap:
        return  # callers sign in with Google
    public, cells = not exposure.internal, cells_of(service)
    reach = "it has an address on the internet" if public else "the whole VPC can"
    if getattr(exposure, "existing", None):
        reach = "it is shared, and may be on the internet"
    does, instead = "use the models", "api_keys=SecretKey(secret=..., key=...)"
    if cells:  # more severe: whoever publishes decides what runs on the slices
        named = ", ".join(f"/sax/{cell.name}" for cell in cells)
        does = f"publish, change and unpublish the models of {named}, and use them all"
        instead = f"Service({instead}) with entries NAME=KEY in the Secret, and CellConfig(admins=(NAME,))"
    say = (error if cells else warning) if public else (warning if cells else note)
    why = f"everyone who reaches the {service.exposure.kind} ({reach}) may {does}"
    yield say(Location(f"Service/{service.name} exposure"), why, instead)


@rule(Service, "clear-keys", "HTTP without TLS: whoever is on the way reads the headers")
def clear_keys(service: Service) -> Iterator[Problem]:
    """API keys do not cross the internet in clear."""
    exposure = service.exposure
    keys = service.api_keys is not None or _KEYS in service.env
    if not keys or isinstance(exposure, ClusterIP) or getattr(exposure, "encrypted", False):
        return
    if isinstance(exposure, Gateway) and exposure.existing:
        why = f"whether Gateway {exposure.existing.name} speaks HTTPS is not known here: without it API keys cross the "
        why += "network in clear"
        yield note(
            Location(f"Service/{service.name} exposure"), why, "the name of an HTTPS listener: existing.listener"
        )
        return
    clear = f"the {exposure.kind} speaks plain HTTP: API keys and all that is said cross "
    place = Location(f"Service/{service.name} exposure")
    instead = "Gateway(gateway_class='gke-l7-global-external-managed', hostname=..., certificate=...)"
    if exposure.internal:
        yield note(place, clear + "the VPC in clear", instead.replace("gke-l7-global-external-managed", "gke-l7-rilb"))
    else:
        yield warning(place, clear + "the internet in clear", instead)


@rule(Service, "clear-secret", "Kubernetes: whoever may read the object reads its env")
def keys_in_clear(service: Service) -> Iterator[Problem]:
    """API keys come from a Secret, not from `env`, which the manifest shows."""
    if isinstance(service.env.get(_KEYS), str):
        why = f"{_KEYS} is in clear in the manifest: everyone who may read it, or the config in Git, has the keys"
        yield error(Location(f"Service/{service.name} env"), why, "api_keys=SecretKey(secret=..., key=...)")


@rule(Service, "proxy-only-subnet", "GKE: gke-l7-rilb's proxies get their addresses from a proxy-only subnet")
def proxy_only_subnet(service: Service) -> Iterator[Problem]:
    """An internal Gateway needs a proxy-only subnet in its region, without which it never gets an address."""
    exposure = service.exposure
    if isinstance(exposure, Gateway) and not exposure.existing and exposure.internal:
        why = "the VPC needs a proxy-only subnet in this region, which nothing here makes: the Gateway waits for one"
        instead = (
            "if there is none yet: gcloud compute networks subnets create proxy-only --purpose=REGIONAL_MANAGED_PROXY "
            "--role=ACTIVE --region=REGION --network=NETWORK --range=10.129.0.0/23"
        )
        yield note(Location(f"Service/{service.name} exposure"), why, instead)
