"""Tests that all chips of a slice work together: `python -m apps.jobs.smoke` on each of its hosts.

With several hosts, GKE lists them in TPU_WORKER_HOSTNAMES, and TPU_WORKER_ID is this host's index; they meet at host 0.
Each prints the same facts, and exits with 0 only if a sum over all devices is correct.
"""

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, NoReturn

import typer

from apps.jobs import roll_call

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FAILED, WRONG = 1, 2
PORT = 8476
"""JAX's own default for the coordinator of a Cloud TPU slice."""
SHARE = 2**20
"""float32 numbers that each device contributes to the sum."""
ROUNDS = 5


class Platform(StrEnum):
    tpu = "tpu"
    cpu = "cpu"
    any = "any"


class SmokeFailed(RuntimeError):
    """What is wrong, in a sentence."""


@dataclass(frozen=True)
class Hosts:
    """The hosts of the slice, by name, and which of them this is."""

    names: tuple[str, ...]
    own: int

    @classmethod
    def of(cls, environment: "os._Environ[str] | dict[str, str]") -> "Hosts":
        """Read GKE's variables. Raises ValueError if they are inconsistent."""
        names = tuple(name.strip() for name in environment.get("TPU_WORKER_HOSTNAMES", "").split(",") if name.strip())
        if len(names) < 2:
            return cls(names or ("localhost",), 0)
        own = environment.get("TPU_WORKER_ID", "")
        if not own.isdecimal() or int(own) >= len(names):
            raise ValueError(
                f"TPU_WORKER_ID is {own!r}; TPU_WORKER_HOSTNAMES has {len(names)} hosts, so it must be from 0 to "
                f"{len(names) - 1}. GKE sets both in an Indexed Job with a headless Service"
            )
        return cls(names, int(own))

    def __str__(self) -> str:
        return f"{len(self.names)}, this is {self.own} ({self.names[self.own]})"


class Watch:
    """Ends the process when a stage takes too long: a collective without one of its hosts never returns by itself."""

    def __init__(self, hosts: Hosts, timeout_s: float):
        self._hosts, self._timeout_s = hosts, timeout_s

    @contextmanager
    def over(self, stage: str) -> Iterator[None]:
        timer = threading.Timer(self._timeout_s, self._end, [stage])
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _end(self, stage: str) -> None:
        typer.echo(f"error: {stage} has not ended after {self._timeout_s:g} s on host {self._hosts}", err=True)
        os._exit(FAILED)


@app.command()
def main(
    expect: Annotated[int | None, typer.Option(min=1, help="Devices that all hosts must have in total.")] = None,
    platform: Annotated[Platform, typer.Option(help="Kind of device that they must be.")] = Platform.any,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds to wait for the hosts, and for the sum.")] = 300,
    port: Annotated[int, typer.Option(min=1, max=65535, help="On host 0, where the hosts meet.")] = PORT,
    programs: Annotated[
        str | None, typer.Option(metavar="FOLDER|URL", help="Also load and run what `podslice prepare CONFIG` wrote.")
    ] = None,
) -> None:
    """Count the devices of all hosts of a slice, and sum a number from each of them.

    Exit status: 0 all is well; 1 it is not, and a message says what; 2 an option or the environment is wrong.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        hosts = Hosts.of(os.environ)
    except ValueError as error:
        _end(str(error), WRONG)
    if platform is Platform.cpu:
        os.environ["JAX_PLATFORMS"] = "cpu"  # set before JAX starts
    watch = Watch(hosts, timeout)
    try:
        tried = [] if programs is None else list(_try(programs, hosts, port, timeout))
        _meet(hosts, port, timeout, watch)
        with watch.over("finding the devices (a host that is missing, or a chip that another process holds?)"):
            devices = _devices(platform)
        for line in _facts(hosts, devices):
            typer.echo(line)
        if expect is not None and len(devices) != expect:
            raise SmokeFailed(
                f"there are {len(devices)} devices over {len(hosts.names)} hosts, not {expect} (--expect)"
            )
        with watch.over("the sum over all devices"):
            typer.echo(_sum(devices))
        for line in tried:
            typer.echo(line)
    except SmokeFailed as error:
        _end(str(error), FAILED)


def _try(location: str, hosts: Hosts, port: int, timeout: float) -> Iterator[str]:
    """Try the prepared programs in child processes, before this one takes the chips: a line for each set."""
    from apps.arrays.stored_programs import trial
    from apps.arrays.stored_programs.loading import opened
    from apps.arrays.stored_programs.seal import Unusable
    from apps.llm.engine.execute.stored import below
    from apps.llm.engine.kernels import register

    try:
        stored = opened(below(location)) or opened(location)
    except Unusable as error:
        raise SmokeFailed(str(error)) from error
    if stored is None:
        raise SmokeFailed(f"{location} has no programs: `podslice prepare CONFIG --to {location}` writes them")
    manifests, wrong = stored.manifests()
    joins = None
    if len(hosts.names) > 1:
        _call_roll(hosts, port, timeout)
        joins = trial.TrialHosts(f"{hosts.names[0]}:{port}", hosts.own, len(hosts.names))
    ran = 0
    for manifest in filter(trial.may_suit, manifests):
        status, said = trial.try_set(stored, manifest, register, joins)
        if status == trial.FAILED:
            raise SmokeFailed(f"programs {manifest.name}: {said}. Replicas will compile their own")
        ran += status == trial.TRIED
        yield f"programs {manifest.name}: {said if status == trial.TRIED else 'not for this machine: ' + said}"
    if not ran:
        why = f": {wrong[0]}" if wrong else ""
        count = len(manifests) + len(wrong)
        raise SmokeFailed(f"none of the {count} sets of programs is for this machine{why}; replicas will compile")


def _call_roll(hosts: Hosts, port: int, timeout: float) -> None:
    try:
        roll_call.take(hosts.names, hosts.own, port, timeout)
    except roll_call.HostsAbsent as error:
        raise SmokeFailed(str(error)) from error


def _meet(hosts: Hosts, port: int, timeout: float, watch: Watch) -> None:
    """Join all hosts in one JAX program."""
    if len(hosts.names) == 1:
        return
    _call_roll(hosts, port, timeout)
    from apps.arrays import distributed

    with watch.over("joining the hosts"):
        # JAX's own timeout aborts without a message, so the watch's must come first.
        start_timeout_s = timeout + 60
        distributed.join(f"{hosts.names[0]}:{port}", hosts.own, len(hosts.names), start_timeout_s)


def _devices(platform: Platform) -> list[Any]:
    import jax

    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise SmokeFailed(f"JAX could not start: {str(error).strip().splitlines()[0]}") from error
    found = devices[0].platform
    if platform is Platform.tpu and found != "tpu":
        raise SmokeFailed(
            f"a TPU was asked for (--platform tpu), but JAX runs on {len(devices)} {found} devices: is google.com/tpu "
            "among the Pod's limits, libtpu installed, and the chips free?"
        )
    if platform is Platform.cpu and found != "cpu":
        raise SmokeFailed(f"the CPU was asked for (--platform cpu), but JAX runs on {len(devices)} {found} devices")
    return devices


def _facts(hosts: Hosts, devices: list[Any]) -> Iterator[str]:
    import jax

    if devices[0].platform == "tpu":
        yield f"TPU cores: {len(devices)}"
    else:
        yield f"no TPU: JAX runs on {len(devices)} {devices[0].platform} devices"
    yield f"device kind: {devices[0].device_kind}"
    yield f"hosts: {hosts}"
    yield f"devices of this host: {jax.local_device_count()}"
    if jax.process_count() != len(hosts.names):
        raise SmokeFailed(f"JAX has {jax.process_count()} processes where the slice has {len(hosts.names)} hosts")


def _sum(devices: list[Any]) -> str:
    """Sum SHARE copies of each device's number over all devices; each device must get the same result."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    count = len(devices)
    mesh = Mesh(np.array(devices), ("all",))
    split = NamedSharding(mesh, PartitionSpec("all"))
    place = {device: i for i, device in enumerate(devices)}
    own = [jax.device_put(np.full((1, SHARE), place[d] + 1, np.float32), d) for d in jax.local_devices()]
    numbers = jax.make_array_from_single_device_arrays((count, SHARE), split, own)
    add = jax.jit(
        jax.shard_map(
            lambda share: jax.lax.psum(share, "all"),
            mesh=mesh,
            in_specs=PartitionSpec("all"),
            out_specs=PartitionSpec(),
        )
    )
    total = jax.block_until_ready(add(numbers))  # compiles
    seconds = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        jax.block_until_ready(add(numbers))
        seconds.append(time.perf_counter() - began)
    expected = count * (count + 1) / 2
    for shard in total.addressable_shards:
        if not (np.asarray(shard.data) == expected).all():
            raise SmokeFailed(
                f"the sum over all devices is wrong on {shard.device}: it should be {expected:g} everywhere"
            )
    return f"sum over {count} devices, {SHARE * 4 / 2**20:g} MiB each: right, {min(seconds) * 1e3:.2f} ms"


def _end(said: str, status: int) -> NoReturn:
    typer.echo(f"error: {said}", err=True)
    raise typer.Exit(status)


if __name__ == "__main__":
    app()
