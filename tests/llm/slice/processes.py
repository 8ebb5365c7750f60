"""A slice of plain processes, each with a few pretended devices: the lockstep without Ray around it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from apps.arrays.layout import Devices, Layout
from apps.llm.engine.hosts.lockstep import LockstepExecutor, SliceWorkers
from apps.llm.engine.hosts.wire import Listener
from apps.llm.engine.weights.model import Model
from ray_configs.llm import EngineConfig
from tests.llm.engine import tiny_models
from tests.ports import free_port

REPOSITORY = Path(__file__).parents[3]


class Processes:
    """A `ExecutorProvider`: `Engine.load(config, Processes(2, 4))`. Hosts go wrong by `trouble`: see host_process. What
    they log goes to files of `logs`, if it is a folder."""

    def __init__(
        self,
        hosts: int,
        devices: int,
        deadline_s: float = 60,
        trouble: dict | None = None,
        logs: Path | None = None,
        **orders: Any,
    ):
        self.count, self.of_host, self.deadline_s = hosts, devices, deadline_s
        self.orders = orders | {"hosts": hosts, "trouble": trouble or {}}
        self.processes: list[subprocess.Popen[str]] = []
        self.logs = [logs / f"host-{rank}.log" for rank in range(hosts)] if logs else []

    def devices(self, config: EngineConfig) -> Devices:
        flags = tiny_models.xla_flags(self.of_host)
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "PYTHONPATH": path}
        command = [sys.executable, str(Path(__file__).with_name("host_process.py"))]
        listener = Listener("127.0.0.1")
        orders = self.orders | {
            "config": config.model_dump(mode="json"),
            "leader": listener.address,
            "secret": listener.secret.hex(),
            "coordinator": f"127.0.0.1:{free_port()}",
        }
        for rank in range(self.count):
            log = self.logs[rank].open("w") if self.logs else None
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )
            if log:
                log.close()
            process.stdin.write(json.dumps(orders | {"rank": rank}) + "\n")
            process.stdin.flush()
            self.processes.append(process)
        self.slice = SliceWorkers(listener, self.count, 60, self.deadline_s, self.ended)
        devices = self.slice.devices(config)
        assert devices == Devices(self.count * self.of_host, self.count)
        return devices

    def load(self, config: EngineConfig, model: Model, layout: Layout) -> list[LockstepExecutor]:
        return self.slice.load(config, model, layout)

    def bytes_read(self) -> list[dict[str, int]]:
        """By host, how many bytes of each tensor it has read."""
        for process in self.processes:
            process.stdin.write("\n")
            process.stdin.flush()
        lines = [process.stdout for process in self.processes]
        return [
            json.loads(next(line for line in out if line.startswith("{"))) for out in lines
        ]  # gloo prints there too

    def ended(self) -> None:
        """Every host's process ends by itself when the engine lets go of it."""
        self.left = [process.wait(timeout=120) for process in self.processes]
        for process in self.processes:
            process.stdin.close()
            process.stdout.close()
