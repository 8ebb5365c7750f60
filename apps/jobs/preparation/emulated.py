"""Prepares programs for a slice that this machine's CPUs stand in for: a process for each of its hosts.

    parent --order--> python -m apps.jobs.preparation.emulated <--one JAX program--> the other hosts'
    parent <--a line for each program-- the first host of each DP rank

Orders and lines are JSON. The hosts stay until the parent closes their input: JAX ends those whose peer is gone.
"""

import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack, closing
from typing import Any

from apps.arrays import distributed
from apps.arrays.stored_programs.fingerprint import COUNT
from apps.arrays.stored_programs.folder import ProgramFolder, ProgramManifest, StoredProgram
from apps.jobs.preparation.output import PreparationRefused
from apps.jobs.preparation.programs import Preparing, ProgramSummary, TargetDevices, seal_key
from ray_configs.llm import LLMConfig

DONE = {"done": True}


def prepare_on_hosts(config: LLMConfig, location: str) -> ProgramSummary:
    """As `prepare_programs`, for the emulation of the config's slice.

    Raises:
        PreparationRefused: the config does not fit the slice.
        RuntimeError: a host's process ended.
    """
    assert config.slice is not None
    with closing(socket.create_server(("127.0.0.1", 0))) as probe:
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    order = {"config": config.model_dump(mode="json"), "location": location, "coordinator": coordinator}
    with ExitStack() as stack:
        hosts = []
        for rank in range(config.slice.hosts):
            host = stack.enter_context(_Host(config.slice.chips_per_host))
            host.begin({**order, "rank": rank, "hosts": config.slice.hosts})
            hosts.append(host)
        first, *_ = headers = [host.line() for host in hosts]
        assert all(header == first for header in headers), headers  # one config, one slice
        folder = ProgramFolder(location, seal_key())
        stack.enter_context(folder.locked())
        summary = ProgramSummary(folder, ProgramManifest(**first))
        for host in hosts:
            while (line := host.line()) != DONE:
                summary.record(StoredProgram(**line["program"]), line["kept"])
        summary.finish()
    return summary


class _Host:
    """A host's process."""

    def __init__(self, devices: int):
        flags = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(COUNT)]
        environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join([*flags, f"{COUNT}{devices}"])}
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __enter__(self) -> "_Host":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # what it has written is whole
        self._process.wait()

    def begin(self, order: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        if not text:
            raise RuntimeError(f"an emulated host ended with status {self._process.wait()} as it compiled")
        found: dict[str, Any] = json.loads(text)
        if "refused" in found:
            raise PreparationRefused(found["refused"])
        return found


# -- in a host's process ---------------------------------------------------------------------------------------------


def main() -> None:
    order = json.loads(sys.stdin.readline())
    config = LLMConfig(**order["config"])
    distributed.join(order["coordinator"], order["rank"], order["hosts"])
    try:
        preparing = Preparing.of(config, order["location"], TargetDevices.of(config, emulated=True))
    except PreparationRefused as error:
        _say({"refused": str(error)})
    else:
        _say(preparing.manifest.model_dump(mode="json"))
        preparing.run(lambda program, kept: _say({"program": program.model_dump(mode="json"), "kept": kept}))
        _say(DONE)
    sys.stdin.read()
    os._exit(0)  # JAX's shutdown would wait for hosts that have ended


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
