"""The kubelet of every Node in the test cluster: runs the Pods that the scheduler places."""

import asyncio
import itertools
import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import aiohttp

from tests.kubernetes.harness.async_api import Api, ApiError, gone_is_fine
from tests.kubernetes.harness.kubelet.container import now
from tests.kubernetes.harness.kubelet.pod import Pod
from tests.kubernetes.harness.namespace import NETWORK, NODE_ADDRESS

STARTING_AT_ONCE = max(1, (os.cpu_count() or 1) // 2)
WAITING_AT_ONCE = 3
"""How many Pods may run their init containers at the same time."""
VERSION = "v1.36.3"


class Kubelet:
    """One kubelet for all Nodes, since they are all this machine.

    A new Node is reported ready. When a Node is deleted, its Pods vanish with it, as if the machine had been
    switched off.
    """

    def __init__(self, api: Api, folder: Path, port: int):
        """`port`: where the HTTPS server listens; reported to the API server."""
        self.api, self.folder, self._port = api, folder, port
        self.nodes: dict[str, dict[str, Any]] = {}
        self.pods: dict[str, Pod] = {}
        """By uid."""
        self.starting = asyncio.Semaphore(STARTING_AT_ONCE)
        self.waiting = asyncio.Semaphore(WAITING_AT_ONCE)
        self._addresses = (f"{NETWORK}.{n // 250 + 1}.{n % 250 + 1}" for n in itertools.count())  # none is used twice
        self._seen: dict[str, dict[str, Any]] = {}
        self._ended: set[str] = set()
        """Pods of which nothing is left here, by uid."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._events = itertools.count()

    async def run(self) -> None:
        """Watches Nodes and Pods. Never returns."""
        await asyncio.gather(
            self.api.watch("/api/v1/nodes", self._see_nodes),
            self.api.watch("/api/v1/pods", self._see_pods),
        )

    async def stop(self) -> None:
        """Stops all processes, without reporting it to the API server."""
        self.nodes.clear()
        for pod in list(self.pods.values()):
            pod.vanish()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def find(self, namespace: str, name: str) -> Pod | None:
        return next((pod for pod in self.pods.values() if (pod.namespace, pod.name) == (namespace, name)), None)

    def say(self, pod: Pod, words: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {pod.name}: {words}", file=sys.stderr, flush=True)

    def event(self, pod: Pod, kind: str, reason: str, message: str) -> None:
        stamp = now()
        body = {
            "metadata": {"name": f"{pod.name}.{next(self._events):x}", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1", "kind": "Pod", "name": pod.name, "namespace": pod.namespace, "uid": pod.uid,
            },
            "type": kind, "reason": reason, "message": message[:1000], "count": 1,
            "firstTimestamp": stamp, "lastTimestamp": stamp,
            "source": {"component": "kubelet", "host": pod.node},
        }  # fmt: skip
        self._start(self.api.post(f"/api/v1/namespaces/{pod.namespace}/events", body))

    def _see_nodes(self, kind: str, nodes: list[dict[str, Any]]) -> None:
        names = {node["metadata"]["name"] for node in nodes}
        if kind == "DELETED" or kind == "LIST":
            gone = names if kind == "DELETED" else set(self.nodes) - names
            for name in gone:
                self.nodes.pop(name, None)
                for pod in self.pods.values():
                    if pod.node == name:
                        pod.vanish()
            if kind == "DELETED":
                return
        for node in nodes:
            name = node["metadata"]["name"]
            new = name not in self.nodes
            self.nodes[name] = node
            if new:
                self._start(self._register(name))
        for item in list(self._seen.values()):
            self._see_pod(item)

    async def _register(self, name: str) -> None:
        status = {
            "addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._port}},
            # The API server then passes WebSockets on, and need not speak SPDY with us.
            "declaredFeatures": ["ExtendWebSocketsToKubelet"],
            "conditions": [
                {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "",
                 "lastHeartbeatTime": now(), "lastTransitionTime": now()},
            ],
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": VERSION, "osImage": "none",
                "containerRuntimeVersion": "namespaces://1", "kernelVersion": "", "bootID": "", "machineID": name,
                "systemUUID": name, "kubeProxyVersion": "",
            },
        }  # fmt: skip
        with gone_is_fine():
            await self.api.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    def _see_pods(self, kind: str, items: list[dict[str, Any]]) -> None:
        if kind == "LIST":
            there = {item["metadata"]["uid"] for item in items}
            for uid in set(self.pods) - there:
                self.pods[uid].end(0)
            self._seen.clear()
        for item in items:
            uid = item["metadata"]["uid"]
            if kind == "DELETED":
                self._seen.pop(uid, None)
                self._ended.discard(uid)
                if uid in self.pods:
                    self.pods[uid].end(0)
            else:
                self._seen[uid] = item
                self._see_pod(item)

    def _see_pod(self, item: dict[str, Any]) -> None:
        meta, uid = item["metadata"], item["metadata"]["uid"]
        if item["spec"].get("nodeName") not in self.nodes or uid in self._ended:
            return
        pod = self.pods.get(uid)
        ending = "deletionTimestamp" in meta
        if pod is not None:
            pod.meta = meta
            pod.sources.pod = item
            if ending:
                pod.end(meta.get("deletionGracePeriodSeconds", 30))
        elif ending:
            options = {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}}
            self._start(self.api.delete(f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}", options))
        elif item["status"].get("phase") not in ("Succeeded", "Failed"):
            pod = self.pods[uid] = Pod(self, item, next(self._addresses))
            self._start(self._run(pod))

    async def _run(self, pod: Pod) -> None:
        try:
            await pod.run()
        finally:
            del self.pods[pod.uid]
            if not pod.vanished:
                self._ended.add(pod.uid)
            elif item := self._seen.get(pod.uid):
                self._see_pod(item)  # its Node may be back: another machine of that name, which starts it again

    def _start(self, work: Any) -> None:
        async def guarded() -> None:
            try:
                await work
            except (ApiError, aiohttp.ClientError, TimeoutError) as error:
                print(error, file=sys.stderr, flush=True)
            except Exception:
                traceback.print_exc()

        task = asyncio.create_task(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
