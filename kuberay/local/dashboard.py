"""Client of the Ray dashboard's HTTP API, which KubeRay uses too: nodes, applications, deployment."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import httpx
from ruamel.yaml import YAML

from kuberay.local import ServiceFailed
from kuberay.local.hosts import HOST_LABEL, Host
from ray_configs.cluster.labels import NODE_ID

PATIENCE_S = 90
"""Timeout for the dashboard's first answer: on a busy machine it takes half a minute to start."""


@dataclass(frozen=True)
class DashboardNode:
    """A live node, as Ray lists it."""

    labels: dict[str, str]
    resources: dict[str, float]


@dataclass(frozen=True)
class App:
    """A Serve application."""

    name: str
    status: str
    message: str
    replicas: dict[str, int]
    """Number in each state, such as RUNNING, without those that are stopping."""
    wanted: int
    declared: bool
    """Whether it is in serveConfigV2. KubeRay ignores others, such as the models that a cell publishes."""


class Dashboard:
    def __init__(self, port: int, token: str | None):
        self.url = f"http://127.0.0.1:{port}"
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # trust_env: ignore proxies in the environment for this local call.
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=30, trust_env=False)

    def close(self) -> None:
        self._client.close()

    def nodes(self) -> dict[str, DashboardNode]:
        """Live nodes, by host name."""
        reply = self._client.get("/api/v0/nodes", params={"detail": "true", "limit": 10000})
        reply.raise_for_status()
        found = {}
        for node in reply.json()["data"]["result"]["result"]:
            if node["state"] == "ALIVE":
                labels = dict(node["labels"])
                found[labels.pop(HOST_LABEL)] = DashboardNode(labels, node["resources_total"])
        return found

    def deploy(self, serve_config: str, port: int, head_lives: Callable[[], bool]) -> bool:
        """Deploy declaratively, as KubeRay does, but listen only on `port` of 127.0.0.1, not on the laptop's network.

        Returns False if the head ended meanwhile.

        Raises:
            ServiceFailed: Serve rejects the config or cannot be reached.
        """
        config = YAML(typ="safe").load(serve_config)
        config["http_options"] = config.get("http_options", {}) | {"host": "127.0.0.1", "port": port}
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                reply = self._client.put("/api/serve/applications/", json=config, timeout=120)
            except httpx.TransportError as error:
                text = str(error)
            else:
                if reply.is_success:
                    return True
                text = reply.text
                if reply.is_client_error:
                    raise ServiceFailed(f"Serve rejects the config: {text}")
            if not head_lives():
                return False
            if time.monotonic() > deadline:
                raise ServiceFailed(f"Serve cannot be reached through {self.url}: {text}")
            time.sleep(0.5)

    def apps(self) -> list[App]:
        """Applications known to Serve's controller; none before it has started."""
        reply = self._client.get("/api/serve/applications/")
        reply.raise_for_status()
        found = []
        for name, app in reply.json()["applications"].items():
            deployments = app["deployments"].values()
            states = Counter(replica["state"] for deployment in deployments for replica in deployment["replicas"])
            del states["STOPPING"]
            wanted = sum(deployment["target_num_replicas"] for deployment in deployments)
            message = next(filter(None, [app["message"], *(deployment["message"] for deployment in deployments)]), "")
            found.append(App(name, app["status"], message, states, wanted, app["source"] == "declarative"))
        return found


def differences(hosts: tuple[Host, ...], nodes: dict[str, DashboardNode]) -> list[str]:
    """Labels and resources that Ray's nodes lack or have in excess compared with GKE, one line each."""
    expected = {fact for host in hosts for fact in _facts(host.name, host.seen_labels, host.seen_resources)}
    seen = {fact for name, node in nodes.items() for fact in _facts(name, node.labels, node.resources)}
    missing, excess = sorted(expected - seen), sorted(seen - expected)
    return [*(f"{fact} on GKE, and not here" for fact in missing), *(f"{fact} here, and not on GKE" for fact in excess)]


def _facts(host: str, labels: dict[str, str], resources: dict[str, float]) -> Iterator[str]:
    """A host's labels and resources as text, except those unique to a node: id, address and object store."""
    for name, value in labels.items():
        if name != NODE_ID:
            yield f"{host}: label {name} is {value}"
    for name, amount in resources.items():
        if not name.startswith("node:") and name != "object_store_memory":
            yield f"{host}: resource {name} is {amount}"
