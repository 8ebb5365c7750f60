"""One Pod, from its placement on a Node until all of it is cleaned up."""

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.kubernetes.harness.async_api import ApiError, gone_is_fine
from tests.kubernetes.harness.kubelet.container import RETRY_S, Container, KillAt, now
from tests.kubernetes.harness.kubelet.environment import NotYet, Sources
from tests.kubernetes.harness.kubelet.sandbox import Sandbox
from tests.kubernetes.harness.kubelet.volumes import Volumes
from tests.kubernetes.harness.namespace import NODE_ADDRESS

if TYPE_CHECKING:
    from tests.kubernetes.harness.kubelet.kubelet import Kubelet


class Pod:
    def __init__(self, kubelet: "Kubelet", item: dict[str, Any], ip: str):
        self._kubelet = kubelet
        self.meta, self.spec, self.uid, self.ip = item["metadata"], item["spec"], item["metadata"]["uid"], ip
        self.name, self.namespace = self.meta["name"], self.meta["namespace"]
        self.node = self.spec["nodeName"]
        self.path = f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"
        self.starting = kubelet.starting
        self.logs = kubelet.folder / "logs" / f"{self.namespace}_{self.name}_{self.uid}"
        self.logs.mkdir(parents=True, exist_ok=True)
        folder = kubelet.folder / "pods" / self.uid
        self.sources = Sources(kubelet.api, item, kubelet.nodes[self.node], ip)
        self.volumes = Volumes(self.sources, folder / "volumes", kubelet.folder / "buckets")
        self.sandbox = Sandbox(folder, ip)
        self.inits = [Container(self, spec, init=True) for spec in self.spec.get("initContainers") or ()]
        self.mains = [Container(self, spec) for spec in self.spec["containers"]]
        self._phase = "Pending"
        self._began = now()
        self._since: dict[str, tuple[str, str]] = {}
        self._ending = asyncio.Event()
        self._kill_at = KillAt()
        self.vanished = False
        self._changed = asyncio.Event()

    def container(self, name: str | None) -> Container | None:
        """The container of this name; None means the first."""
        return next((one for one in (*self.mains, *self.inits) if name in (None, "", one.name)), None)

    def changed(self) -> None:
        """Requests a report of its status."""
        self._changed.set()

    def end(self, grace_s: float) -> None:
        """Terminates it: it has been deleted."""
        self._kill_at.no_later_than(grace_s)
        self._ending.set()

    def vanish(self) -> None:
        """Kills it without a grace period or a report, as when its machine is lost."""
        self.vanished = True
        self.end(0)

    def event(self, kind: str, reason: str, message: str) -> None:
        """Records an Event about it, of type Normal or Warning."""
        self._kubelet.say(self, f"{reason}: {message}")
        self._kubelet.event(self, kind, reason, message)

    async def run(self) -> None:
        """Runs it; returns when it is cleaned up."""
        reporting = asyncio.create_task(self._report_changes())
        living = asyncio.create_task(self._live())
        ending = asyncio.create_task(self._ending.wait())
        await asyncio.wait((living, ending), return_when=asyncio.FIRST_COMPLETED)
        if living.done() and living.exception():
            raise living.exception()
        await self._ending.wait()
        all_of_them = (*self.inits, *self.mains)
        await asyncio.gather(*(one.stop(self._kill_at) for one in all_of_them))
        living.cancel()
        reporting.cancel()
        await asyncio.gather(living, reporting, return_exceptions=True)
        await self.sandbox.remove()
        if self.vanished:
            return
        if self.mains and all(one.code is not None for one in self.mains):
            self._phase = "Succeeded" if all(one.code == 0 for one in self.mains) else "Failed"
            await self._report()
        await self._kubelet.api.delete(self.path, {"gracePeriodSeconds": 0, "preconditions": {"uid": self.uid}})

    async def _live(self) -> None:
        self.changed()
        subdomain = self.spec.get("subdomain")
        domain = f"{subdomain}.{self.namespace}.svc.cluster.local" if subdomain else None
        await self.sandbox.make((self.spec.get("hostname") or self.name)[:63], domain, self.namespace)
        said = ""
        while True:
            try:
                await self.volumes.make()
                break
            except (NotYet, ApiError, aiohttp.ClientError, TimeoutError) as error:
                if str(error) != said:
                    said = str(error)
                    self.event("Warning", "FailedMount", f"MountVolume.SetUp failed: {said}")
                await asyncio.sleep(RETRY_S)
        if self.inits:
            # Hosts wait for their head here, asking again and again with a program of a second or two each time: few at
            # once. They are not in the way of the head, which starts in another turn.
            async with self._kubelet.waiting:
                for container in self.inits:
                    await container.run()
                    if container.over and container.code != 0:
                        self._phase = "Failed"
                        self.changed()
                        return
        await self._run_mains()

    async def _run_mains(self) -> None:
        async with asyncio.TaskGroup() as group:
            for container in self.mains:
                group.create_task(container.run())
        self._phase = "Succeeded" if all(one.code == 0 for one in self.mains) else "Failed"
        self.changed()

    async def _report_changes(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._report()
            await asyncio.sleep(0.1)

    async def _report(self) -> None:
        if self.vanished:
            return
        if self._phase == "Pending" and any(one.starts for one in self.mains):
            self._phase = "Running"
        initialized = all(one.code == 0 for one in self.inits)
        ready = self._phase == "Running" and all(one.ready for one in self.mains)
        conditions = {"PodScheduled": True, "Initialized": initialized, "ContainersReady": ready, "Ready": ready}
        status = {
            "phase": self._phase,
            "podIP": self.ip,
            "podIPs": [{"ip": self.ip}, {"$patch": "replace"}],
            "hostIP": NODE_ADDRESS,
            "startTime": self._began,
            "conditions": [self._condition(kind, value) for kind, value in conditions.items()],
            "initContainerStatuses": [one.status() for one in self.inits],
            "containerStatuses": [one.status() for one in self.mains],
        }
        try:
            with gone_is_fine():
                await self._kubelet.api.patch(f"{self.path}/status", {"metadata": {"uid": self.uid}, "status": status})
        except (ApiError, aiohttp.ClientError, TimeoutError) as error:
            print(f"{self.name}: its status was not taken: {error}", file=sys.stderr, flush=True)
            self.changed()

    def _condition(self, kind: str, value: bool) -> dict[str, str]:
        word = str(value)
        if self._since.get(kind, ("", ""))[0] != word:
            self._since[kind] = (word, now())
        return {"type": kind, "status": word, "lastTransitionTime": self._since[kind][1]}
