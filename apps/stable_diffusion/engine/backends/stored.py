"""Which prepared programs are for a server of pictures, its config and its devices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax

from apps.arrays.stored_programs import fingerprint, loading, trial
from apps.arrays.stored_programs.loading import PreparedPrograms
from apps.stable_diffusion.engine.backends.program_list import ProgramList

SOURCES = "arrays", "stable_diffusion/engine", "llm/engine"
"""Packages that the programs are made by; the last has Z-Image's text encoder."""


@dataclass(frozen=True)
class StoredPictures:
    """Where they are, and the settings that tell sets apart before any device is seen.

    Args:
        location: of a `ProgramFolder`.
        settings: of the config, by name.
    """

    location: str
    settings: dict[str, str]

    def try_sets(self) -> None:
        """Call it before JAX's backend starts: see `trial.try_sets`."""
        trial.try_sets(self.location, known(self.settings), register)

    def find(self, programs: ProgramList) -> PreparedPrograms | None:
        """Begin to load those for this process's devices; None: there are none, which is logged."""
        here = made_for(self.settings, programs, list(programs.mesh.devices.flat))
        return loading.find(self.location, here, register)


def known(settings: dict[str, str]) -> dict[str, str]:
    """The part of `made_for` that is known before the devices are."""
    return {"podslice": fingerprint.sources(*SOURCES)[: fingerprint.SHORT], **fingerprint.versions(), **settings}


def made_for(settings: dict[str, str], programs: ProgramList, devices: Sequence[jax.Device]) -> dict[str, str]:
    """What the programs hang on, by name: see `ProgramManifest.made_for`."""
    model, controls = programs.programs, programs.controls
    sizes = fingerprint.digest((model.encoder, model.denoiser, model.vae, controls and controls.kinds))
    return {
        **known(settings),
        **fingerprint.machine(devices),
        "model's sizes": sizes[: fingerprint.SHORT],
        "batch sizes": ", ".join(map(str, programs.batch_sizes)),
    }


def register(targets: Iterable[str]) -> None:
    """Register a CPU's kernels of these names, which only language models have."""
    if targets:
        from apps.stable_diffusion.engine.conditioning.language import register_kernels

        register_kernels(targets)
