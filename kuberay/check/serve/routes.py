"""What leads from outside to a Service: routes, Ingresses and GKE's policies, and whether that Service exists."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Manifest
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, meant, rule, warning
from kuberay.check.subjects import ServeConfig, subjects_of

_POLICIES = ("HealthCheckPolicy", "GCPBackendPolicy", "GCPTrafficExtension", "BackendTLSPolicy")
_GENERATED = r"(?:-raycluster)?-[a-z0-9]{5}-(?:head-svc|headless|headless-worker-svc)"
"""End of the names of Services that belong to one RayCluster of a RayService, which the next upgrade replaces."""


def _named(manifest: Manifest) -> Iterator[tuple[Node, Node]]:
    """(name, port) of each Service that an object sends requests to, or that its policy is about."""
    spec = manifest.spec
    if manifest.kind in ("HTTPRoute", "GRPCRoute", "TCPRoute", "TLSRoute"):
        for rule_ in spec["rules"]:
            for backend in rule_["backendRefs"]:
                if backend["kind"].value in (None, "Service") and backend["namespace"].value in (
                    None,
                    manifest.namespace,
                ):
                    yield backend["name"], backend["port"]
    elif manifest.kind == "Ingress":
        services = [spec["defaultBackend"]["service"]]
        services += [path["backend"]["service"] for each in spec["rules"] for path in each["http"]["paths"]]
        yield from ((each["name"], each["port"]["number"]) for each in services if each.present)
    elif manifest.kind in _POLICIES:
        targets = [spec["targetRef"], *spec["targetRefs"]]
        for target in targets:
            if target["kind"].value == "Service":
                yield target["name"], Node(spec.document, (), None)


def _services(manifest: Manifest) -> dict[str, set[int] | None]:
    """Services of the object's namespace, among the objects or made by the operator, and their ports, if known."""
    found: dict[str, set[int] | None] = {}
    for other in manifest.others:
        if other.namespace != manifest.namespace or not other.name:
            continue
        if other.kind == "Service":
            found[other.name] = {port["port"].number or 0 for port in other.spec["ports"]}
        elif other.ray and other.kind in ("RayService", "RayCluster"):
            found[f"{other.name}-head-svc"] = None
            if other.kind == "RayService":
                custom = other.spec["serveService"]
                found[custom["metadata"]["name"].text or f"{other.name}-serve-svc"] = (
                    None
                    if custom.present
                    else {
                        port
                        for config in _serve_configs(other)
                        for port in (config.http_port, config.grpc_port)
                        if port
                    }
                )
    return found


def _serve_configs(manifest: Manifest) -> Iterator[ServeConfig]:
    yield from (each for each in subjects_of(manifest) if isinstance(each, ServeConfig))


@rule(Manifest, "service-reference", "Gateway API, GKE's policies, Ingress: what names no Service does nothing")
def service_reference(manifest: Manifest) -> Iterator[Problem]:
    """A route, an Ingress or a policy names a Service that exists, stays, and has the port.

    A Service of one RayCluster ends with it: an upgrade of the RayService makes another cluster with other names.
    """
    named = list(_named(manifest))
    services = _services(manifest) if named else {}
    does = "has no effect" if manifest.kind in _POLICIES else "answers 500 or 503 to every request"
    if not services:
        return  # they are in other files
    rays = [other.name for other in manifest.others if other.kind == "RayService" and other.name]
    for node, port in named:
        name = node.text
        if name is None:
            continue
        ports = services.get(name)
        ray = next((ray for ray in rays if re.fullmatch(re.escape(ray) + _GENERATED, name)), None)
        if ray is not None:
            why = f"{name} belongs to one RayCluster of {ray}: an upgrade replaces it, and this {manifest.kind} {does}"
            yield warning(node, why, f"write {ray}-serve-svc (or {ray}-head-svc), which follow the current cluster")
        elif name not in services:
            why = f"there is no Service {name} among these objects: unless it exists, this {manifest.kind} {does}"
            yield warning(node, why, meant(name, services, f"write one of {', '.join(sorted(services))}"))
        elif ports and port.number is not None and port.number not in ports:
            has = ", ".join(map(str, sorted(ports)))
            yield warning(port, f"{name} has no port {port.number}: this {manifest.kind} {does}", f"write {has}")


@rule(Manifest, "health-check-port", "GKE: HealthCheckPolicy asks each Pod of the Service on this port")
def health_check(manifest: Manifest) -> Iterator[Problem]:
    """A health check of a RayService asks where Serve listens; the dashboard's port is open on the head alone."""
    if manifest.kind != "HealthCheckPolicy":
        return
    config, target = manifest.spec["default"]["config"], manifest.spec["targetRef"]["name"].text
    for other in manifest.others:
        if other.kind != "RayService" or not other.name or other.namespace != manifest.namespace:
            continue
        if target not in (f"{other.name}-serve-svc", other.spec["serveService"]["metadata"]["name"].text):
            continue
        configs = list(_serve_configs(other))
        ports = {port for each in configs for port in (each.http_port, each.grpc_port) if port}
        for kind in ("httpHealthCheck", "httpsHealthCheck", "http2HealthCheck", "tcpHealthCheck", "grpcHealthCheck"):
            port = config[kind]["port"]
            if port.number is not None and all(each.http_port for each in configs) and port.number not in ports:
                listens = ", ".join(map(str, sorted(ports)))
                why = f"asks port {port.number}, but Serve listens on {listens}: Pods count as unhealthy"
                yield warning(port, why, f"write port: {listens}")
