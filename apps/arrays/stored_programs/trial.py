"""The first load of a set of programs, in a process of its own: `python -m apps.arrays.stored_programs.trial`.

A program that does not suit its devices can end the process that loads or runs it, in C++, where nothing is caught (an
order of devices that is not the one it was compiled for, for one). So a set is first loaded, and each program run with
zeros, in a child process; once all have run, the set is marked as tried, for good. The parent must not hold the chips
meanwhile: it tries before its own backend starts. On a slice each host has such a child, and they join one program.
"""

import importlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from apps.arrays import distributed
from apps.arrays.stored_programs import fingerprint, seal
from apps.arrays.stored_programs.folder import ProgramFolder, ProgramManifest
from apps.arrays.stored_programs.loading import SAID, Register, differences, loaded, opened
from apps.arrays.stored_programs.seal import Unusable

log = logging.getLogger("podslice")

LIMIT_S = 900
"""For a child to load and run all programs of a set."""
TRIED, FAILED, ANOTHER = 0, 1, 3
"""Exit statuses of the child; ANOTHER: the set was made for another machine."""

UNMARKED = "That cannot be written down"
"""Begins the child's word that it has left no mark."""


@dataclass(frozen=True)
class TrialHosts:
    """How a host's processes join the slice's JAX program; see `distributed.join`."""

    coordinator: str
    rank: int
    hosts: int


def try_sets(location: str, known: Mapping[str, str], register: Register, joins: TrialHosts | None = None) -> None:
    """Try the sets that nobody has, in child processes, if they may be for this machine. What fails is logged.

    Call it before this process's JAX backend starts: a child needs the chips.

    Args:
        known: the parts of `ProgramManifest.made_for` that are known before the devices are.
        register: a module's function; see `loading`.
        joins: on a slice of several hosts, each of which calls this.
    """
    try:
        stored = opened(location)
    except Unusable:
        return  # `loading.find` says so
    if stored is None:
        return
    for manifest in stored.manifests()[0]:
        if not known.items() <= manifest.made_for.items() or not may_suit(manifest) or stored.is_tried(manifest):
            continue
        log.info("trying the programs of %s/%s in a process of their own, once", location, manifest.name)
        status, said = try_set(stored, manifest, register, joins)
        if status == FAILED:
            log.warning("prepared programs do not run on trial: %s", said)
        elif status == TRIED:
            log.info("%s", said)


def may_suit(manifest: ProgramManifest) -> bool:
    """Whether a set is for the kind of device that this process asks for."""
    platform = (jax.config.values["jax_platforms"] or manifest.platform).split(",")[0]
    return bool(platform == manifest.platform)


def try_set(
    stored: ProgramFolder, manifest: ProgramManifest, register: Register, joins: TrialHosts | None = None
) -> tuple[int, str]:
    """Load and run a set in a child process; returns TRIED, ANOTHER or FAILED, and what is to be said of it."""
    began = time.monotonic()
    function = f"{register.__module__}:{register.__name__}"
    command = [sys.executable, "-m", __name__, stored.location, manifest.name, function]
    if joins is not None:
        command += [joins.coordinator, str(joins.rank), str(joins.hosts)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, errors="replace")
    except subprocess.TimeoutExpired:
        return FAILED, f"they have not ended within {LIMIT_S} s"
    lines = [line for line in ended.stderr.strip().splitlines() if line.strip()] or ["it said nothing"]
    if ended.returncode == TRIED:
        stored.note_tried(manifest)
        unmarked = next((f". {line[:SAID]}" for line in lines if line.startswith(UNMARKED)), "")
        return TRIED, f"all {len(manifest.programs)} loaded and ran, in {time.monotonic() - began:.1f} s{unmarked}"
    if ended.returncode == ANOTHER:
        return ANOTHER, lines[-1][:SAID]
    how = f"by signal {-ended.returncode}" if ended.returncode < 0 else f"with status {ended.returncode}"
    return FAILED, f"their process ended {how}: {lines[-1][:SAID]}"


# -- in the child -----------------------------------------------------------------------------------------------------


def main(location: str, name: str, register: str, *joins: str) -> int:
    if joins:
        coordinator, rank, hosts = joins
        distributed.join(coordinator, int(rank), int(hosts))
    key = seal.key()
    assert key is not None  # of the parent's environment
    stored = ProgramFolder(location, key)
    manifest = stored.manifest(name)
    here = fingerprint.machine(jax.devices())
    if any(manifest.made_for.get(part) != value for part, value in here.items()):
        print("; ".join(differences(manifest, {**manifest.made_for, **here})), file=sys.stderr)
        return ANOTHER
    module, _, function = register.partition(":")
    getattr(importlib.import_module(module), function)(
        sorted({target for program in manifest.programs for target in program.targets})
    )
    run_all(stored, manifest)
    try:  # on each host: they may have a folder each
        stored.mark_tried(manifest)
    except Exception as error:  # remote file systems raise their clients' own
        print(f"{UNMARKED}, so each start tries these programs again: {location}: {error}", file=sys.stderr)
    if joins:  # waits for the others: JAX ends a process whose peer has gone
        jax.distributed.shutdown()
    return TRIED


def run_all(stored: ProgramFolder, manifest: ProgramManifest) -> None:
    """Load each program that has a part here, and run it with zeros. In one order on all hosts."""
    every = {device.id: device for device in jax.devices()}
    own = {device.id for device in jax.local_devices()}
    for program in manifest.programs:
        if not own.intersection(program.devices):
            continue
        found = loaded(stored.read(manifest, program), [every[each] for each in program.devices])
        jax.block_until_ready(found(*_zeros(found)))


def _zeros(program: jax.stages.Compiled) -> Sequence[Any]:
    args, shardings = program.args_info[0], program.input_shardings[0]

    def zeros(info: Any, sharding: Any) -> Any:
        if sharding is None:  # the program makes no use of it
            return np.zeros(info.shape, info.dtype)
        shard = np.zeros(sharding.shard_shape(info.shape), info.dtype)
        return jax.make_array_from_callback(info.shape, sharding, lambda _: shard)

    made: Sequence[Any] = jax.tree.map(zeros, args, shardings)
    return made


if __name__ == "__main__":
    logging.basicConfig(format="%(message)s")
    status = main(*sys.argv[1:])
    sys.stderr.flush()
    os._exit(status)  # JAX's shutdown would wait for hosts that have ended
