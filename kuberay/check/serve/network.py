"""The way of a request to Ray Serve: the port that Serve listens on, and who else is told of it."""

from collections.abc import Iterator

from kuberay.check.manifests import Cluster, Group
from kuberay.check.nodes import Node
from kuberay.check.pods import Pod
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


def _ports(container: Node) -> dict[str, Node]:
    """Ports by name, as the operator sees them."""
    return {port["name"].text or "": port["containerPort"] for port in container["ports"]}


def _serve_port(pod: Pod) -> Node | None:
    """The port `serve` of Ray's container; None: the operator takes 8000."""
    return _ports(pod.containers[0]).get("serve") if pod.containers else None


def _incremental(cluster: Cluster) -> bool:
    return cluster.manifest.spec["upgradeStrategy"]["type"].value == "NewClusterWithIncrementalUpgrade"


@rule(ServeConfig, "serve-port", _SERVICE + ", FindContainerPort")
def head_port(config: ServeConfig) -> Iterator[Problem]:
    """The head names a port for Serve, or the operator makes no Service."""
    cluster = config.cluster
    if not cluster.head_pod.containers or not list(cluster.head_pod.containers[0]["ports"]):
        return  # without any port the operator takes Ray's own, 8000 for Serve
    ports = cluster.head_pod.containers[0]["ports"]
    named = any(_serving(name) for name in _ports(cluster.head_pod.containers[0]))
    custom = cluster.manifest.spec["serveService"].present and not _incremental(cluster)
    if not named and not custom and not any(port["name"].placeholder for port in ports):
        yield error(
            ports,
            "the head names ports, and none of them serve: the KubeRay operator makes no Service for Ray Serve, and "
            "the RayService never becomes Ready",
            f"add containerPort: {config.http_port or _DEFAULT}, name: serve",
        )


@rule(ServeConfig, "serve-port", "KubeRay 1.7: initLivenessAndReadinessProbe, updateHeadPodServeLabel; Ray Serve 2.60")
def listens_there(config: ServeConfig) -> Iterator[Problem]:
    """Serve listens on http_options.port: ports named serve, probes and the Service must say the same."""
    listens, cluster = config.http_port, config.cluster
    if listens is None or not config.node:
        return
    said = config.node["http_options"]["port"]
    for pod, group in [(cluster.head_pod, None), *((group.pod, group) for group in cluster.groups)]:
        if not pod.containers:
            continue
        named = _serve_port(pod)
        if named is not None and named.number is None:
            continue
        asked = _DEFAULT if named is None else named.number
        probe = pod.containers[0]["readinessProbe"]
        if asked != listens and (group is None or not probe.present):
            who = "the head" if group is None else f"group {group.name}"
            port = "names no port serve, which means 8000" if named is None else f"has its port serve on {asked}"
            end = (
                f"the operator asks the head for Serve on {asked} and leaves it out of the Service"
                if group is None
                else f"KubeRay's readiness probe asks {asked}, and no worker of it becomes Ready"
            )
            yield error(
                said if said.present else (named or said),
                f"Serve listens on {listens}, and {who} {port}: {end}",
                f"write containerPort: {listens}, name: serve, or http_options.port: {asked}",
            )
        elif group is not None and "-/healthz" in str(probe["httpGet"]["path"].value):
            port = probe["httpGet"]["port"]
            number = (
                _ports(pod.containers[0])[port.text].number if port.text in _ports(pod.containers[0]) else port.number
            )
            if number not in (None, listens):
                why = (
                    f"asks for Serve's health on {number}, and Serve listens on {listens}: the host never becomes Ready"
                )
                yield error(port, why, f"write port: {listens}")


@rule(ServeConfig, "serve-host", "Ray Serve 2.60: http_options.host")
def reachable(config: ServeConfig) -> Iterator[Problem]:
    """Serve listens on all addresses of a Pod, not on its loopback alone."""
    host = config.node["http_options"]["host"] if config.node else None
    if host and host.text in ("127.0.0.1", "localhost", "::1") and not _on(config.cluster.head_env.get(_HA_PROXY)):
        yield error(host, f"{host.text} is inside of the Pod: every request from outside is refused", "write 0.0.0.0")


@rule(ServeConfig, "serve-service", _SERVICE)
def service(config: ServeConfig) -> Iterator[Problem]:
    """serveService changes the operator's own Service: ports of other names are dropped, a selector is ignored."""
    cluster = config.cluster
    custom = cluster.manifest.spec["serveService"]
    if not custom.present or not cluster.head_pod.containers:
        return
    if _incremental(cluster):
        yield note(custom, "is ignored with NewClusterWithIncrementalUpgrade", "take it out")
        return
    if custom["spec"]["selector"].present:
        yield note(custom["spec"]["selector"], "the KubeRay operator writes its own selector over it", "take it out")
    ports = _ports(cluster.head_pod.containers[0]) or {"serve": Node(custom.document, (), _DEFAULT)}
    known = {name for name in ports if _serving(name)}
    for port in custom["spec"]["ports"]:
        name = port["name"]
        if known and (name.text or "") not in known and not name.placeholder:
            yield warning(
                name if name.present else port,
                f"the head has no port of this name: the KubeRay operator drops {port['port'].value}, and the Service "
                f"has {', '.join(f'{ports[each].value} ({each})' for each in sorted(known))} alone",
                f"write name: {sorted(known)[0]}",
            )
        else:
            yield from _target(config, port)


def _target(config: ServeConfig, port: Node) -> Iterator[Problem]:
    """Where a port of the Service leads to."""
    cluster, target = config.cluster, port["targetPort"]
    node = target if target.present else port["port"]
    pods = [("the head", cluster.head_pod), *((f"group {group.name}", group.pod) for group in cluster.groups)]
    if node.text is not None and not node.text.isdigit():
        for who, pod in pods:
            if pod.containers and not any(node.text in _ports(container) for container in pod.containers):
                why = f"{who} names no port {node.text}: the Service sends nothing to its Pods"
                yield error(node, why, f"add the name to its port, or write targetPort: {config.http_port or _DEFAULT}")
        return
    number = node.number
    sidecars = {each["containerPort"].number for _, pod in pods for box in pod.containers[1:] for each in box["ports"]}
    if number is None or config.http_port is None or number in {config.http_port, config.grpc_port, *sidecars}:
        return
    yield error(
        node,
        f"leads to {number}"
        + ("" if target.present else ", for it has no targetPort")
        + f", and Serve listens on {config.http_port}: every request over the Service is refused",
        f"write targetPort: {config.http_port}",
    )


def _on(item: Node | None) -> bool:
    return item is not None and item["value"].value == "1"


@rule(Group, "serve-ha-proxy", "Ray Serve 2.60: RAY_SERVE_ENABLE_HA_PROXY, read by each process")
def ha_proxy(group: Group) -> Iterator[Problem]:
    """HAProxy is on for all nodes or none: the controller on the head and the replicas on workers each read it."""
    cluster = group.cluster
    if cluster.manifest.kind != "RayService" or not group.pod.containers:
        return
    here, there = group.pod.env(0).get(_HA_PROXY), cluster.head_env.get(_HA_PROXY)
    if _on(here) and not _on(there) and here is not None:
        yield warning(
            here,
            "is not set on the head, where Serve's controller decides by it: no HAProxy starts, and replicas open "
            "ports that nobody asks",
            f"set {_HA_PROXY} on the head too, or take it out here",
        )
    elif _on(there) and not _on(here):
        yield warning(
            here if here is not None else group.pod.containers[0]["env"],
            f"{_HA_PROXY} is set on the head and not on this group: HAProxy sends requests to ports that replicas here "
            "never open",
            f"set {_HA_PROXY} here too, or take it out of the head",
        )


@rule(Cluster, "probe-port", "KubeRay 1.7: the operator keeps a container's own probes")
def probes(cluster: Cluster) -> Iterator[Problem]:
    """A probe of one's own asks a port that Ray, Serve or a container of the Pod is known to listen on."""
    for pod, params in [
        (cluster.head_pod, cluster.head["rayStartParams"]),
        *((group.pod, group.node["rayStartParams"]) for group in cluster.groups),
    ]:
        if not pod.containers:
            continue
        known = {_DEFAULT, *(port.number for box in pod.containers for port in _ports(box).values())}
        for param, default in _PARAMS.items():
            if pod.role == "head" or param not in _HEAD_ONLY:
                text = str(params[param].value or default)
                known.add(int(text) if text.isdigit() else None)
        for kind in ("livenessProbe", "readinessProbe", "startupProbe"):
            for handler in ("httpGet", "tcpSocket", "grpc"):
                port = pod.containers[0][kind][handler]["port"]
                if port.number not in known and 1 <= (port.number or 0) <= 65535:
                    shown = ", ".join(str(each) for each in sorted(filter(None, known)))
                    yield warning(
                        port,
                        f"neither Ray nor a port of the Pod's containers is on {port.number}: if nobody listens there, "
                        + (
                            "the Pod never becomes Ready"
                            if kind == "readinessProbe"
                            else "the container is killed again and again"
                        ),
                        f"ask one of {shown}, or list the port under ports",
                    )
