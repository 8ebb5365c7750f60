"""Startup, liveness and readiness probes of a running container."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import aiohttp

from tests.kubernetes.harness.kubelet.sandbox import Process

CLOCK = 4
"""Factor on the probes' timeouts, which are meant for machines with more cores."""
Object = Mapping[str, Any]


class Probe:
    """One probe with its thresholds."""

    def __init__(self, spec: Object, container: Object, process: Process, ip: str):
        self._spec, self._container, self._process, self._ip = spec, container, process, ip
        self._passed = self._failed = 0
        self.said = ""

    async def verdicts(self) -> AsyncIterator[bool]:
        """Probes for ever; yields True or False whenever the success or failure threshold is reached."""
        await asyncio.sleep(self._spec.get("initialDelaySeconds", 0))
        while True:
            good, self.said = await self._ask()
            self._passed, self._failed = (self._passed + 1, 0) if good else (0, self._failed + 1)
            if self._passed >= self._spec.get("successThreshold", 1):
                yield True
            elif self._failed >= self._spec.get("failureThreshold", 3):
                yield False
            await asyncio.sleep(self._spec.get("periodSeconds", 10))

    async def _ask(self) -> tuple[bool, str]:
        timeout_s = self._spec.get("timeoutSeconds", 1) * CLOCK
        if "exec" in self._spec:
            ended = await self._process.run(self._spec["exec"]["command"], timeout_s)
            return ended.code == 0, ended.said.strip() or f"exit code {ended.code}"
        try:
            async with asyncio.timeout(timeout_s):
                if "httpGet" in self._spec:
                    return await http_get(self._spec["httpGet"], self._container, self._ip)
                if "tcpSocket" in self._spec:
                    port = port_number(self._spec["tcpSocket"]["port"], self._container)
                    _, writer = await asyncio.open_connection(self._ip, port)
                    writer.close()
                    return True, ""
        except (OSError, TimeoutError, aiohttp.ClientError) as error:
            return False, repr(error)
        return False, f"this kubelet has no such probe: {dict(self._spec)}"


async def http_get(action: Object, container: Object, ip: str) -> tuple[bool, str]:
    """Makes the request of an httpGet in a probe or a lifecycle hook."""
    url = f"http://{action.get('host') or ip}:{port_number(action['port'], container)}{action.get('path', '/')}"
    headers = {header["name"]: header["value"] for header in action.get("httpHeaders", ())}
    async with aiohttp.ClientSession() as http, http.get(url, headers=headers) as answer:
        return 200 <= answer.status < 400, f"HTTP probe failed with statuscode: {answer.status}"


def port_number(port: int | str, container: Object) -> int:
    if isinstance(port, int):
        return port
    with contextlib.suppress(StopIteration):
        return next(one["containerPort"] for one in container.get("ports", ()) if one.get("name") == port)
    raise OSError(f"the container has no port named {port}")
