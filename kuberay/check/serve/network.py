"""The way of a request to Ray Serve: the port that Serve listens on, and who else is told of it."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Group
from kuberay.check.nodes import Node
from kuberay.check.rules import Problem, error, note, rule, warning
from kuberay.check.serve_documents import ServeConfig

_SERVICE = "KubeRay 1.7: BuildServeService"
_DEFAULT = 8000
_HA_PROXY = "RAY_SERVE_ENABLE_HA_PROXY"
_PARAMS = {
    "dashboard-agent-listen-port": 52365,
    "metrics-export-port": 8080,
    "dashboard-port": 8265,
    "ray-client-server-port": 10001,
    "port": 6379,
}
"""Ports that Ray itself opens, by the rayStartParams that change them."""
_HEAD_ONLY = {"dashboard-port", "ray-client-server-port", "port"}


def _serving(name: str) -> bool:
    """Whether the operator takes a port of this name for one of Ray Serve."""
    return name == "serve" or name.startswith("serve-")


def _incremental(cluster: Cluster) -> bool:
    return cluster.upgrade["type"].value == "NewClusterWithIncrementalUpgrade"


@rule(ServeConfig, "serve-port", _SERVICE + ", FindContainerPort")
def head_port(config: ServeConfig) -> Iterator[Problem]:
    """The head names a port for Serve, or the operator makes no Service."""
    cluster, ray = config.cluster, config.cluster.head.ray
    if ray is None or not list(ray["ports"]):
        return  # without any port the operator takes Ray's own, 8000 for Serve
    custom = cluster.manifest.spec["serveService"].present and not _incremental(cluster)
    unnamed = not any(_serving(name) for name in ray.ports)
    if unnamed and not custom and not any(port["name"].placeholder for port in ray["ports"]):
        yield error(
            ray["ports"],
            "the head names ports, and none of them serve: the KubeRay operator makes no Service for Ray Serve, and "
            "the RayService never becomes Ready",
            f"add containerPort: {config.http_port or _DEFAULT}, name: serve",
        )


@rule(ServeConfig, "serve-port", "KubeRay 1.7: initLivenessAndReadinessProbe, updateHeadPodServeLabel; Ray Serve 2.60")
def listens_there(config: ServeConfig) -> Iterator[Problem]:
    """Serve listens on http_options.port: ports named serve, probes and the Service must say the same."""
    listens = config.http_port
    if listens is None or not config.node:
        return
    said = config.node["http_options"]["port"]
    for group in config.cluster.all_groups:
        named = group.ray.ports.get("serve") if group.ray else None  # without it, the operator takes 8000
        if group.ray is None or (named is not None and named.number is None):
            continue
        asked, probe = _DEFAULT if named is None else named.number, group.ray["readinessProbe"]
        if asked != listens and (group.is_head or not probe.present):
            has = "names no port serve, which means 8000" if named is None else f"has its port serve on {asked}"
            end = (
                f"the operator asks the head for Serve on {asked} and leaves it out of the Service"
                if group.is_head
                else f"KubeRay's readiness probe asks {asked}, and no worker of it becomes Ready"
            )
            yield error(
                said if said.present else (named or said),
                f"Serve listens on {listens}, and {group.title} {has}: {end}",
                f"write containerPort: {listens}, name: serve, or http_options.port: {asked}",
            )
        elif not group.is_head and "-/healthz" in str(probe["httpGet"]["path"].value):
            port = probe["httpGet"]["port"]
            number = group.ray.ports.get(port.text or "", port).number
            if number not in (None, listens):
                why = f"asks for Serve's health on {number}, and Serve listens on {listens}: "
                yield error(port, f"{why}the host never becomes Ready", f"write port: {listens}")


@rule(ServeConfig, "serve-host", "Ray Serve 2.60: http_options.host")
def reachable(config: ServeConfig) -> Iterator[Problem]:
    """Serve listens on all addresses of a Pod, not on its loopback alone."""
    host = config.node["http_options"]["host"] if config.node else None
    if host and host.text in ("127.0.0.1", "localhost", "::1") and not _proxied(config.cluster.head):
        yield error(host, f"{host.text} is inside of the Pod: every request from outside is refused", "write 0.0.0.0")


@rule(ServeConfig, "serve-service", _SERVICE)
def service(config: ServeConfig) -> Iterator[Problem]:
    """serveService changes the operator's own Service: ports of other names are dropped, a selector is ignored."""
    cluster, ray = config.cluster, config.cluster.head.ray
    custom = cluster.manifest.spec["serveService"]
    if not custom.present or ray is None:
        return
    if _incremental(cluster):
        yield note(custom, "is ignored with NewClusterWithIncrementalUpgrade", "take it out")
        return
    if custom["spec"]["selector"].present:
        yield note(custom["spec"]["selector"], "the KubeRay operator writes its own selector over it", "take it out")
    ports = {name: port.value for name, port in ray.ports.items()} or {"serve": _DEFAULT}
    known = sorted(name for name in ports if _serving(name))
    for port in custom["spec"]["ports"]:
        name = port["name"]
        if known and (name.text or "") not in known and not name.placeholder:
            yield warning(
                name if name.present else port,
                f"the head has no port of this name: the KubeRay operator drops {port['port'].value}, and the Service "
                f"has {', '.join(f'{ports[each]} ({each})' for each in known)} alone",
                f"write name: {known[0]}",
            )
        else:
            yield from _target(config, port)


def _target(config: ServeConfig, port: Node) -> Iterator[Problem]:
    """Where a port of the Service leads to."""
    groups, target = config.cluster.all_groups, port["targetPort"]
    node = target if target.present else port["port"]
    if node.text is not None and not node.text.isdigit():
        for group in groups:
            if group.ray and not any(node.text in container.ports for container in group.pod.containers):
                why = f"{group.title} names no port {node.text}: the Service sends nothing to its Pods"
                yield error(node, why, f"add the name to its port, or write targetPort: {config.http_port or _DEFAULT}")
        return
    number = node.number
    sidecars = {each.number for group in groups for box in group.pod.containers[1:] for each in box.ports.values()}
    if number is None or config.http_port is None or number in {config.http_port, config.grpc_port, *sidecars}:
        return
    without = "" if target.present else ", for it has no targetPort"
    why = f"leads to {number}{without}, and Serve listens on {config.http_port}: every request over it is refused"
    yield error(node, why, f"write targetPort: {config.http_port}")


def _proxied(group: Group) -> bool:
    variable = group.env.get(_HA_PROXY)
    return variable is not None and variable.value.value == "1"


@rule(Group, "serve-ha-proxy", "Ray Serve 2.60: RAY_SERVE_ENABLE_HA_PROXY, read by each process")
def ha_proxy(group: Group) -> Iterator[Problem]:
    """HAProxy is on for all nodes or none: the controller on the head and the replicas on workers each read it."""
    if not group.cluster.service or group.ray is None:
        return
    here, on, head_on = group.env.get(_HA_PROXY), _proxied(group), _proxied(group.cluster.head)
    if on and not head_on and here is not None:
        yield warning(
            here.node,
            "is not set on the head, where Serve's controller decides by it: no HAProxy starts, and replicas open "
            "ports that nobody asks",
            f"set {_HA_PROXY} on the head too, or take it out here",
        )
    elif head_on and not on:
        yield warning(
            here.node if here else group.ray["env"],
            f"{_HA_PROXY} is set on the head and not on this group: HAProxy sends requests to ports that replicas here "
            "never open",
            f"set {_HA_PROXY} here too, or take it out of the head",
        )


@rule(Group, "probe-port", "KubeRay 1.7: the operator keeps a container's own probes")
def probes(group: Group) -> Iterator[Problem]:
    """A probe of one's own asks a port that Ray, Serve or a container of the Pod is known to listen on."""
    if group.ray is None:
        return
    known = {_DEFAULT, *(port.number for box in group.pod.containers for port in box.ports.values())}
    for param, default in _PARAMS.items():
        if group.is_head or param not in _HEAD_ONLY:
            text = str(group.params[param].value or default)
            known.add(int(text) if text.isdigit() else None)
    for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
        for handler in ("httpGet", "tcpSocket", "grpc"):
            port = group.ray[kind][handler]["port"]
            if port.number not in known and 1 <= (port.number or 0) <= 65535:
                shown = ", ".join(str(each) for each in sorted(filter(None, known)))
                ready = kind == "readinessProbe"
                so = "the Pod never becomes Ready" if ready else "the container is killed again and again"
                why = f"neither Ray nor a port of the Pod's containers is on {port.number}: if nobody listens, {so}"
                yield warning(port, why, f"ask one of {shown}, or list the port under ports")
