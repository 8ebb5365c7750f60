"""The cluster's Services and their endpoints, from the real EndpointSlices."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.kubernetes.harness.async_api import Api, See

Key = tuple[str, str]


@dataclass(frozen=True)
class Endpoint:
    ip: str
    hostname: str | None
    ports: dict[str, int]
    """Keyed by the Service port's name, which is empty for a single unnamed port."""
    ready: bool
    serving: bool
    """EndpointSlice's `serving`: ready, even if terminating."""


class Services:
    """Watches Services and EndpointSlices, and answers from the latest state."""

    def __init__(self, api: Api):
        self._api = api
        self.services: dict[Key, dict[str, Any]] = {}
        self._slices: dict[Key, dict[str, Any]] = {}

    async def watch(self, changed: Callable[[], None]) -> None:
        """Calls `changed` after each change of a Service. Never returns."""
        await asyncio.gather(
            self._api.watch("/api/v1/services", self._into(self.services, changed)),
            self._api.watch("/apis/discovery.k8s.io/v1/endpointslices", self._into(self._slices, lambda: None)),
        )

    def cluster_ip(self, namespace: str, name: str) -> str | None:
        """The Service's address; None if it does not exist or is headless."""
        ip = self.services.get((namespace, name), {}).get("spec", {}).get("clusterIP")
        return None if ip in ("", "None") else ip

    def endpoints(self, namespace: str, name: str) -> list[Endpoint]:
        found = []
        for (where, _), piece in self._slices.items():
            if where != namespace or piece["metadata"]["labels"].get("kubernetes.io/service-name") != name:
                continue
            ports = {port.get("name") or "": port["port"] for port in piece.get("ports") or ()}
            for one in piece.get("endpoints") or ():
                conditions = one.get("conditions", {})
                ready, serving = conditions.get("ready", True), conditions.get("serving", True)
                found += (Endpoint(ip, one.get("hostname"), ports, ready, serving) for ip in one["addresses"])
        return found

    @staticmethod
    def _into(store: dict[Key, dict[str, Any]], changed: Callable[[], None]) -> See:
        def see(kind: str, objects: list[dict[str, Any]]) -> None:
            if kind == "LIST":
                store.clear()
            for item in objects:
                key = (item["metadata"]["namespace"], item["metadata"]["name"])
                if kind == "DELETED":
                    store.pop(key, None)
                else:
                    store[key] = item
            changed()

        return see
