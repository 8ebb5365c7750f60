"""Prepares an engine's programs: compiles the whole list for a slice that need not be there, and keeps it in files.

For TPUs the compiler runs without one. For CPUs, and for a slice that CPUs stand in for, devices are this machine's.
A set is written program by program, and its manifest after each: the same command goes on where it was stopped.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from apps.arrays import distributed
from apps.arrays.layout import Devices, Layout
from apps.arrays.programs import Key, ProgramSet, ProgramSpec
from apps.arrays.stored_programs import fingerprint
from apps.arrays.stored_programs.folder import ProgramFolder, ProgramManifest, StoredProgram
from apps.arrays.stored_programs.loading import compiled_anew, serialized
from apps.arrays.stored_programs.seal import KEY_VARIABLE, MAKE_A_KEY, Unusable, key
from apps.jobs.preparation.output import PreparationRefused
from apps.llm.engine import kernels
from apps.llm.engine.execute import layout_choice, memory, stored
from apps.llm.engine.execute.programs import EnginePrograms
from apps.llm.engine.loading import calibration_tokens
from apps.llm.engine.weights.model import Model
from apps.llm.text.model_files import tokenizer_of
from apps.serving.progress import bar
from ray_configs.applications.replicas import AppConfig
from ray_configs.llm import LLMConfig
from ray_configs.tpu import TpuSlice

CUSTOM_CALL = re.compile(r'custom_call_target="(podslice_\w+)"')
SPARE = 0.03
"""Part of a chip's memory that is left out of the number of pages: what a real one has free is known only there."""


class ListedPrograms(Protocol):
    """Programs to be prepared, all on one mesh."""

    @property
    def mesh(self) -> Mesh: ...

    def listed(self) -> Iterable[ProgramSpec]: ...


@dataclass(frozen=True)
class TargetDevices:
    """Where the programs will run.

    Args:
        devices: all of them; they need not exist.
    """

    slice: TpuSlice | None
    devices: Sequence[jax.Device]

    @classmethod
    def of(cls, config: AppConfig, emulated: bool) -> "TargetDevices":
        """The config's slice; this machine's CPUs if it has none, or is emulated."""
        if config.slice is None or emulated:
            return cls(config.slice, jax.devices())
        from apps.plan import topology

        try:
            return cls(config.slice, topology.devices(config.slice))
        except topology.NoCompiler as error:
            raise PreparationRefused(str(error)) from error

    @property
    def exists(self) -> bool:
        return self.devices[0] in jax.devices()

    @property
    def hosts(self) -> int:
        return len({device.process_index for device in self.devices})

    def layout(self, config: LLMConfig, model: Model) -> Layout:
        """How a replica shares them. Raises PreparationRefused if the config does not fit."""
        found = Devices(len(self.devices), self.hosts, self.devices[0].platform)
        try:
            return layout_choice.choose(config, model.arch, found, self.slice)
        except ValueError as error:
            raise PreparationRefused(str(error)) from error


class ProgramSummary:
    """What a preparation has done so far, which the set's manifest says at any moment."""

    def __init__(self, folder: ProgramFolder, manifest: ProgramManifest):
        self.manifest = manifest
        self.done: dict[str, StoredProgram] = {}
        """By digest."""
        self.kept = 0
        """Programs that existed already."""
        self._folder, self._before = folder, _before(folder, manifest)

    def record(self, program: StoredProgram, kept: bool) -> None:
        self.kept += kept
        self.done[program.digest] = program
        self._write(self._before | self.done)

    def finish(self) -> None:
        """Forget programs of an earlier run that nothing needs any more."""
        self._write(self.done)

    def _write(self, programs: Mapping[str, StoredProgram]) -> None:
        self._folder.write_manifest(self.manifest.model_copy(update={"programs": tuple(programs.values())}))


def _before(folder: ProgramFolder, manifest: ProgramManifest) -> dict[str, StoredProgram]:
    """What an earlier run has left of a set, by digest."""
    try:
        return {program.digest: program for program in folder.manifest(manifest.name).programs}
    except Unusable:
        return {}


@dataclass(frozen=True)
class Preparing:
    """A set to be written, and what an earlier run has left of it."""

    folder: ProgramFolder
    manifest: ProgramManifest
    ranks: Sequence[ListedPrograms]
    """Of each DP rank."""
    before: dict[str, StoredProgram]
    """Programs by their digests."""

    @classmethod
    def of(cls, config: LLMConfig, location: str, machine: TargetDevices) -> "Preparing":
        """What a replica of this config needs on this machine.

        Raises:
            PreparationRefused: the config does not fit the slice, or there is no key to seal with.
        """
        ranks = of_config(config, machine)
        return cls.at(location, machine, stored.made_for(ranks[0], machine.devices), ranks, ranks[0].pages)

    @classmethod
    def at(
        cls,
        location: str,
        machine: TargetDevices,
        made_for: dict[str, str],
        ranks: Sequence[ListedPrograms],
        pages: int = 0,
    ) -> "Preparing":
        """See `ProgramManifest`. Raises PreparationRefused: there is no key to seal with."""
        folder = ProgramFolder(location, seal_key())
        manifest = ProgramManifest(
            made_for=made_for,
            platform=machine.devices[0].platform,
            slice=machine.slice and str(machine.slice),
            pages=pages,
        )
        return cls(folder, manifest, ranks, _before(folder, manifest))

    def written(self) -> ProgramSummary:
        """Compile and write what is not there yet.

        Raises:
            Busy: another process is preparing there.
            OSError: the disk is full, the bucket cannot be written.
        """
        with self.folder.locked():
            summary = ProgramSummary(self.folder, self.manifest)
            self.run(summary.record)
            summary.finish()
        return summary

    def run(self, record: Callable[[StoredProgram, bool], None]) -> None:
        """Compile and write the programs that are not there, of the ranks that begin on this host.

        Args:
            record: called for each program, and whether an earlier run had written it.
        """
        for rank in self.ranks:
            first = min(device.process_index for device in rank.mesh.devices.flat)
            if first == jax.process_index() or rank.mesh.devices.flat[0] not in jax.devices():
                self._run(rank, record)

    def _run(self, programs: ListedPrograms, record: Callable[[StoredProgram, bool], None]) -> None:
        agreeing = [distributed.least(programs.mesh)] if distributed.spans_hosts(programs.mesh) else []
        specs = {fingerprint.program(spec): spec for spec in (*programs.listed(), *agreeing)}
        missing = {}
        for digest, spec in specs.items():
            program = self.before.get(digest)
            if program is not None and self.folder.is_whole(self.manifest, program):
                record(program, True)
            else:
                missing[spec.key] = digest
        compiling = ProgramSet(specs[digest] for digest in missing.values())
        with bar("compiling programs", len(missing)) as advance, _chip(programs.mesh), compiled_anew():

            def keep(key: Key, seconds: float) -> None:
                program, content = _stored(key, missing[key], compiling.once(key), programs.mesh, seconds)
                self.folder.write(self.manifest, program.file, content)
                record(program, False)
                advance()

            compiling.compile(keep)


def prepare_programs(config: LLMConfig, location: str, machine: TargetDevices) -> ProgramSummary:
    """Compile and write what a replica of this config needs, and what is not there yet.

    Raises:
        PreparationRefused: see `Preparing.of`.
        Busy, OSError: see `Preparing.written`.
    """
    return Preparing.of(config, location, machine).written()


def seal_key() -> bytes:
    found = key()
    if found is None:
        raise PreparationRefused(
            f"{KEY_VARIABLE} is not set. Programs run where they are loaded, so they are sealed with a key, which "
            f"the replicas must have too: {MAKE_A_KEY}"
        )
    return found


def of_config(config: LLMConfig, machine: TargetDevices) -> list[EnginePrograms]:
    """The programs of each DP rank.

    Raises:
        PreparationRefused: the config does not fit the machine.
    """
    try:
        model = Model.open(config, weights=False)
        settled = model.settle(config)
        layout = machine.layout(config, model)
        model = model.at_size(settled, layout.tensor)
        meshes = distributed.meshes(layout, machine.devices)
        of_rank = layout.of_dp_rank(settled, machine.hosts)
        skips = machine.hosts == 1 and kernels.skips_padding(
            meshes, jnp.dtype(settled.dtype), settled.quantize_weights == "int8"
        )
        int8_cache = settled.quantize_kv_cache == "int8"
        calibration = len(calibration_tokens(settled, tokenizer_of(model), model.arch.vocab_size)) if int8_cache else 0
        first = stored.listed(of_rank, model, meshes[0], skips)
        pages = of_rank.pages or memory.pages_to_expect(first, _free(first, machine))
    except (ValueError, MemoryError) as error:
        raise PreparationRefused(str(error)) from error
    longest = first.shapes[0].max_pages * of_rank.page_size
    return [replace(first, mesh=mesh, pages=pages, calibration=min(calibration, longest)) for mesh in meshes]


def _free(programs: EnginePrograms, machine: TargetDevices) -> int | None:
    """Bytes that the weights leave of each device's memory; None on a CPU, which can be asked."""
    if machine.exists:
        return None
    from apps.plan import topology

    assert machine.slice is not None
    return int(topology.usable_hbm(machine.slice) * (1 - SPARE)) - programs.weight_bytes()


def _stored(
    key: Key, digest: str, compiled: jax.stages.Compiled, mesh: Mesh, seconds: float
) -> tuple[StoredProgram, bytes]:
    """A program's entry in the manifest, and its file."""
    name, content, on_cpu = " ".join(map(str, key)), serialized(compiled), mesh.devices.flat[0].platform == "cpu"
    program = StoredProgram(
        name=name,
        digest=digest,
        file=f"{name.replace(' ', '-')}-{digest[: fingerprint.SHORT]}.program",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        devices=tuple(device.id for device in mesh.devices.flat),
        targets=tuple(sorted(set(CUSTOM_CALL.findall(compiled.as_text() or "")))) if on_cpu else (),
        compile_s=round(seconds, 3),
    )
    return program, content


def _chip(mesh: Mesh) -> AbstractContextManager[Any]:
    """Kernels ask the mesh in use what kind of chip they are for; on one chip no shard_map sets it."""
    if mesh.devices.flat[0].platform == "cpu":
        return nullcontext()
    return jax.sharding.use_abstract_mesh(mesh.abstract_mesh)
