"""An asyncio client with the few Kubernetes API verbs that the test kubelet and network need."""

import asyncio
import contextlib
import json
import ssl
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
from kubernetes.client import Configuration
from kubernetes.config import load_kube_config

Object = dict[str, Any]
See = Callable[[str, list[Object]], None]
"""Watch callback: LIST with all objects (again after each reconnect), or ADDED, MODIFIED or DELETED with one."""
LARGEST_EVENT = 2**24
GONE = (404, 409)


class ApiError(Exception):
    """The API server refused a request."""

    def __init__(self, request: str, status: int, said: str):
        super().__init__(f"{request}: {status} {said[:800]}")
        self.status = status


class Api:
    """A client of the API server that a kubeconfig names."""

    def __init__(self, kubeconfig: Path):
        settings = Configuration()
        load_kube_config(str(kubeconfig), client_configuration=settings)
        context = ssl.create_default_context(cafile=settings.ssl_ca_cert)
        if settings.cert_file:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        bearer = settings.auth_settings().get("BearerToken")
        self._http = aiohttp.ClientSession(
            base_url=settings.host,
            headers={bearer["key"]: bearer["value"]} if bearer else {},
            connector=aiohttp.TCPConnector(ssl=context, limit=0),
            timeout=aiohttp.ClientTimeout(total=60),
            read_bufsize=LARGEST_EVENT,
        )

    async def close(self) -> None:
        await self._http.close()

    async def get(self, path: str) -> Object:
        return await self._ask("GET", path)

    async def post(self, path: str, body: Object) -> Object:
        return await self._ask("POST", path, body)

    async def patch(self, path: str, body: Object, kind: str = "strategic-merge") -> Object:
        return await self._ask("PATCH", path, body, f"application/{kind}-patch+json")

    async def delete(self, path: str, options: Object | None = None) -> None:
        with gone_is_fine():
            await self._ask("DELETE", path, {"apiVersion": "v1", "kind": "DeleteOptions"} | (options or {}))

    async def watch(self, path: str, see: See) -> None:
        """Calls `see` for every change. Never returns."""
        while True:
            try:
                await self._watch(path, see)
            except (aiohttp.ClientError, ApiError, TimeoutError, OSError) as error:
                print(f"watch of {path}: {error!r:.300}; again in a second", file=sys.stderr, flush=True)
            await asyncio.sleep(1)

    async def _watch(self, path: str, see: See) -> None:
        listed = await self.get(path)
        see("LIST", listed["items"])
        query = {"watch": "1", "resourceVersion": listed["metadata"]["resourceVersion"], "timeoutSeconds": "600"}
        async with self._http.get(path, params=query, timeout=aiohttp.ClientTimeout(total=None)) as answer:
            if answer.status >= 400:
                raise ApiError(f"watch {path}", answer.status, await answer.text())
            async for line in answer.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(f"watch {path}", event["object"].get("code", 0), json.dumps(event["object"]))
                see(event["type"], [event["object"]])

    async def _ask(
        self, method: str, path: str, body: Object | None = None, content: str = "application/json"
    ) -> Object:
        data = None if body is None else json.dumps(body)
        async with self._http.request(method, path, data=data, headers={"Content-Type": content}) as answer:
            if answer.status >= 400:
                raise ApiError(f"{method} {path}", answer.status, await answer.text())
            return await answer.json()


@contextlib.contextmanager
def gone_is_fine() -> Iterator[None]:
    """Ignores the errors for an object that was deleted or replaced in the meantime."""
    try:
        yield
    except ApiError as error:
        if error.status not in GONE:
            raise
