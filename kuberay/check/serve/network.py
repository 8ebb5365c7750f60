"""How requests reach Ray Serve: the port that it listens on, and the probes and Services that name it."""

from collections.abc import Iterator

from kuberay.check.manifests import Group, RayCluster
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, note, rule, warning
from kuberay.check.subjects import ServeConfig

_SERVICE = "KubeRay 1.7: BuildServeService"
_DEFAULT = 8000
_HA_PROXY = "RAY_SERVE_ENABLE_HA_PROXY"
_PARAMS = {"dashboard-agent-listen-port": 52365, "metrics-export-port": 8080}
_HEAD_PARAMS = {**_PARAMS, "dashboard-port": 8265, "ray-client-server-port": 10001, "port": 6379}
"""Ports that Ray itself opens, by the rayStartParams that change them."""


def _serving(name: str) -> bool:
    """Whether the operator treats a port of this name as Ray Serve's."""
    return name == "serve" or name.startswith("serve-")


def _incremental(cluster: RayCluster) -> bool:
    return cluster.upgrade["type"].value == "NewClusterWithIncrementalUpgrade"


@rule(ServeConfig, "serve-port", _SERVICE + ", FindContainerPort")
def head_port(config: ServeConfig) -> Iterator[Problem]:
    """The head names a port for Serve; otherwise the operator creates no Service."""
    ray = config.cluster.head.ray
    if ray is None or not ray.ports or any(map(_serving, ray.ports)):
        return  # without ports the operator uses Ray's defaults, 8000 for Serve
    custom = config.cluster.manifest.spec["serveService"].present and not _incremental(config.cluster)
    if not custom and not any(port["name"].placeholder for port in ray["ports"]):
        why = "the head names ports, but no port serve: no Service is created, and the RayService never becomes Ready"
        yield error(ray["ports"], why, f"add containerPort: {config.http_port or _DEFAULT}, name: serve")


@rule(ServeConfig, "serve-port", "KubeRay 1.7: initLivenessAndReadinessProbe, updateHeadPodServeLabel; Ray Serve 2.60")
def listens_there(config: ServeConfig) -> Iterator[Problem]:
    """Ports named serve, probes and the Service agree with http_options.port, on which Serve listens."""
    listens, said = config.http_port, config.node["http_options"]["port"]
    for group in config.cluster.all_groups if listens else ():
        if group.ray is None:
            continue
        named, probe = group.ray.ports.get("serve"), group.ray["readinessProbe"]
        asked = _DEFAULT if named is None else named.number  # the operator's default
        if asked not in (None, listens) and (group.is_head or not probe.present):
            has = "has no port serve, which means 8000" if named is None else f"has its port serve on {asked}"
            end = "leaves it out of the Service" if group.is_head else "KubeRay's readiness probe never succeeds"
            why = f"Serve listens on {listens}, but {group.title} {has}: the operator probes that port, and {end}"
            instead = f"write containerPort: {listens}, name: serve, or http_options.port: {asked}"
            yield error(said if said.present or named is None else named, why, instead)
        elif not group.is_head and "-/healthz" in str(probe["httpGet"]["path"].value):
            port = probe["httpGet"]["port"]
            number = group.ray.ports.get(port.text or "", port).number
            if number not in (None, listens):
                why = f"probes Serve on {number}, but Serve listens on {listens}: the host is never Ready"
                yield error(port, why, f"write port: {listens}")


@rule(ServeConfig, "serve-host", "Ray Serve 2.60: http_options.host")
def reachable(config: ServeConfig) -> Iterator[Problem]:
    """Serve listens on all addresses of its Pod, not only on loopback."""
    host = config.node["http_options"]["host"]
    if host.text in ("127.0.0.1", "localhost", "::1") and not _proxied(config.cluster.head):
        yield error(host, f"{host.text} refuses every request from outside the Pod", "write 0.0.0.0")


@rule(ServeConfig, "serve-service", _SERVICE)
def service(config: ServeConfig) -> Iterator[Problem]:
    """serveService customizes the operator's Service, which drops ports of other names and ignores a selector."""
    cluster, ray = config.cluster, config.cluster.head.ray
    custom = cluster.manifest.spec["serveService"]
    if not custom.present or ray is None:
        return
    if _incremental(cluster):
        yield note(custom, "is ignored with NewClusterWithIncrementalUpgrade", "remove it")
        return
    if custom["spec"]["selector"].present:
        yield note(custom["spec"]["selector"], "the KubeRay operator overwrites it with its own selector", "remove it")
    ports = {name: port.value for name, port in ray.ports.items()} or {"serve": _DEFAULT}
    known = {name: number for name, number in sorted(ports.items()) if _serving(name)}
    for port in custom["spec"]["ports"]:
        name = port["name"]
        if known and (name.text or "") not in known and not name.placeholder:
            has = ", ".join(f"{number} ({each})" for each, number in known.items())
            why = f"the head has no port of this name: the KubeRay operator drops {port['port'].value} and keeps {has}"
            yield warning(name if name.present else port, why, f"write name: {next(iter(known))}")
        else:
            yield from _target(config, port)


def _target(config: ServeConfig, port: Node) -> Iterator[Problem]:
    """Checks where a port of the Service leads."""
    groups, target, listens = config.cluster.all_groups, port["targetPort"], config.http_port
    node = target if target.present else port["port"]
    if node.text is not None and not node.text.isdigit():
        for group in groups:
            if group.ray and not any(node.text in container.ports for container in group.pod.containers):
                why = f"{group.title} names no port {node.text}: its Pods get no requests from the Service"
                yield error(node, why, f"add the name to its port, or write targetPort: {listens or _DEFAULT}")
        return
    sidecars = {each.number for group in groups for box in group.pod.containers[1:] for each in box.ports.values()}
    if None not in (node.number, listens) and node.number not in {listens, config.grpc_port, *sidecars}:
        without = "" if target.present else ", as it has no targetPort"
        why = f"leads to {node.number}{without}, but Serve listens on {listens}: every request to it is refused"
        yield error(node, why, f"write targetPort: {listens}")


def _proxied(group: Group) -> bool:
    return _HA_PROXY in group.env and group.env[_HA_PROXY].value == "1"


@rule(Group, "serve-ha-proxy", "Ray Serve 2.60: RAY_SERVE_ENABLE_HA_PROXY, read by every process")
def ha_proxy(group: Group) -> Iterator[Problem]:
    """HAProxy is on for all nodes or none: the controller on the head and replicas on workers read it separately."""
    if not group.cluster.service or group.ray is None:
        return
    place, on, head_on = group.env.get(_HA_PROXY, group.ray["env"]), _proxied(group), _proxied(group.cluster.head)
    if on and not head_on:
        why = "is not set on the head, whose Serve controller decides: no HAProxy starts to use the replicas' ports"
        yield warning(place, why, f"set {_HA_PROXY} on the head too, or remove it here")
    elif head_on and not on:
        why = f"{_HA_PROXY} is set on the head but not here: HAProxy connects to ports that replicas here never open"
        yield warning(place, why, f"set {_HA_PROXY} here too, or remove it from the head")


@rule(Group, "probe-port", "KubeRay 1.7: the operator keeps a container's own probes")
def probes(group: Group) -> Iterator[Problem]:
    """A custom probe asks a port that Ray, Serve or a container of the Pod is known to listen on."""
    if group.ray is None:
        return
    opened = (_HEAD_PARAMS if group.is_head else _PARAMS).items()
    known = {_DEFAULT, *(str(group.params[param].value or default) for param, default in opened)}
    known |= {port.number for box in group.pod.containers for port in box.ports.values()}
    ports = sorted({str(each) for each in known if each}, key=lambda port: (len(port), port))
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        for port in (group.ray[kind][handler]["port"] for handler in ("httpGet", "tcpSocket", "grpc")):
            if 1 <= (port.number or 0) <= 65535 and str(port.number) not in ports:
                so = (
                    "the Pod never becomes Ready"
                    if kind == "readinessProbe"
                    else "the container is killed again and again"
                )
                why = f"neither Ray nor a port of the Pod's containers is on {port.number}: if nothing listens, {so}"
                yield warning(port, why, f"ask one of {', '.join(ports)}, or list the port under ports")
