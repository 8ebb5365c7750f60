"""Loads the programs that were prepared for this machine and config, beside the weights.

What cannot be used is compiled as ever, and one line says why.
"""

import logging
import pickle
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import jax
from jax.experimental import serialize_executable
from jax.experimental.compilation_cache import compilation_cache

from apps.arrays.programs import ProgramSpec
from apps.arrays.stored_programs import fingerprint, seal
from apps.arrays.stored_programs.folder import ProgramFolder, ProgramManifest, StoredProgram
from apps.arrays.stored_programs.seal import Unusable

log = logging.getLogger("podslice")

Register = Callable[[Iterable[str]], None]
"""Registers the kernels behind custom calls of these names."""
READERS = 8
SAID = 300
"""Characters of an error that are logged."""


@contextmanager
def compiled_anew() -> Iterator[None]:
    """Keep JAX's cache out of this process: on a CPU, a program that came from there lacks its functions once it is
    serialized again."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # whether it is used is decided once
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def serialized(program: jax.stages.Compiled) -> bytes:
    """A program as `loaded` takes it, if it was `compiled_anew`. Two compilations of one may differ."""
    return zlib.compress(pickle.dumps(serialize_executable.serialize(program)))  # a TPU's: to a sixth


def loaded(content: bytes, devices: Sequence[jax.Device]) -> jax.stages.Compiled:
    """The program, on these devices. Runs what is in `content`: it must come from someone who is trusted.

    Raises:
        Exception: whatever the unpickler and the runtime raise. A wrong order of devices can end the process.
    """
    program, in_tree, out_tree = pickle.loads(zlib.decompress(content))
    return serialize_executable.deserialize_and_load(program, in_tree, out_tree, execution_devices=list(devices))


class PreparedPrograms:
    """A set's programs, which threads read and load from now on.

    Args:
        manifest: of a set for these devices.
        register: called first, with the names that all of the programs need.
    """

    def __init__(self, stored: ProgramFolder, manifest: ProgramManifest, register: Register):
        self.location, self.manifest = f"{stored.location}/{manifest.name}", manifest
        self._stored, self._register, self._told = stored, register, False
        every = {device.id: device for device in jax.devices()}
        own = {device.id for device in jax.local_devices()}
        pool = ThreadPoolExecutor(READERS, "podslice-programs")
        registered = pool.submit(self._register_targets)
        self._loading: dict[str, Future[jax.stages.Compiled]] = {}
        for program in manifest.programs:
            if own.intersection(program.devices):
                devices = [every[each] for each in program.devices]
                self._loading[program.digest] = pool.submit(self._load, program, devices, registered)
        pool.shutdown(wait=False)

    @property
    def pages(self) -> int:
        """Of the KV cache that the programs were made for."""
        return self.manifest.pages

    def take(self, spec: ProgramSpec) -> jax.stages.Compiled | None:
        """The program, once; waits until it is loaded. None: it is not here, or cannot be used, which is logged."""
        try:
            loading = self._loading.pop(fingerprint.program(spec))
        except KeyError:
            self._tell(f"has no program {spec.key} of these sizes")
            return None
        try:
            return loading.result()
        except Exception as error:  # the runtime's own, of another version for one
            self._tell(f"program {spec.key} cannot be used: {type(error).__name__}: {error}".splitlines()[0][:SAID])
            return None

    def _tell(self, said: str) -> None:
        """Log the first that must be compiled: there are dozens where it is all of them."""
        if not self._told:
            self._told = True
            log.warning("%s: %s; it is compiled, as are others like it", self.location, said)

    def _register_targets(self) -> None:
        names = {target for program in self.manifest.programs for target in program.targets}
        if names:
            self._register(sorted(names))

    def _load(
        self, program: StoredProgram, devices: Sequence[jax.Device], registered: Future[None]
    ) -> jax.stages.Compiled:
        content = self._stored.read(self.manifest, program)
        registered.result()
        return loaded(content, devices)


def find(location: str, here: Mapping[str, str], register: Register) -> PreparedPrograms | None:
    """Begin to load the set that was made for what is here. None: there is none, which is logged unless nothing is.

    Args:
        location: of a `ProgramFolder`.
        here: this machine and config, as `ProgramManifest.made_for` has it.
    """
    try:
        stored = opened(location)
        if stored is None:
            return None
        manifests, wrong = stored.manifests()
        manifest = min(manifests, key=lambda each: len(differences(each, here)), default=None)
        if manifest is None:
            raise Unusable(wrong[0])
        if differs := differences(manifest, here):
            besides = f". Besides, {wrong[0]}" if wrong else ""
            nearest = f"the nearest were made for {differs[0]}{besides}"
            raise Unusable(f"{location} has none for this machine and config; {nearest}")
        if not stored.is_tried(manifest):
            raise Unusable(f"{location}/{manifest.name} has not been tried on such a machine: see `podslice smoke`")
    except Unusable as error:
        log.warning("compiling programs: those prepared cannot be used. %s", error)
        return None
    log.info("loading %d programs from %s/%s", len(manifest.programs), location, manifest.name)
    return PreparedPrograms(stored, manifest, register)


def opened(location: str) -> ProgramFolder | None:
    """The folder there; None: there is none.

    Raises:
        Unusable: it cannot be read, or the environment has no key for it.
    """
    try:
        there = bool(ProgramFolder(location, b"").sets())
        key = seal.key() if there else None
    except Unusable:
        raise
    except Exception as error:  # remote file systems raise their clients' own
        raise Unusable(f"{location} cannot be read: {error}") from error
    if there and key is None:
        raise Unusable(f"{location} is sealed, and {seal.KEY_VARIABLE} is not set: set it to the key it was made with")
    return ProgramFolder(location, key) if key is not None else None


def differences(manifest: ProgramManifest, here: Mapping[str, str]) -> list[str]:
    """What a set was made for that is otherwise here, in words."""
    made_for = manifest.made_for
    return [
        f"{name} {made_for.get(name, 'unsaid')!r}, where here it is {here.get(name, 'unsaid')!r}"
        for name in dict.fromkeys((*made_for, *here))
        if made_for.get(name) != here.get(name)
    ]
