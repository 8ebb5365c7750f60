"""Prepares the programs of a server of pictures. Its weights are read as they are."""

from apps.arrays.model_folder import CheckpointError
from apps.jobs.preparation.output import PreparationRefused
from apps.jobs.preparation.programs import Preparing, ProgramSummary, TargetDevices
from apps.stable_diffusion.engine.backends import stored
from apps.stable_diffusion.engine.backends.assembly import ServedPictures, tokenizing_of
from apps.stable_diffusion.engine.ldm.opening import open_checkpoint
from ray_configs.stable_diffusion import StableDiffusionConfig


def prepare_pictures(config: StableDiffusionConfig, location: str, machine: TargetDevices) -> ProgramSummary:
    """Compile and write what a replica of this config needs, and what is not there yet.

    Raises:
        PreparationRefused: the config does not fit the model or the slice, or there is no key to seal with.
        Busy, OSError: see `Preparing.written`.
    """
    if config.backend not in ("auto", "jax"):
        raise PreparationRefused(f"backend={config.backend!r} has no programs of its own: there is nothing to prepare")
    if machine.hosts > 1:
        raise PreparationRefused(f"slice {machine.slice} has {machine.hosts} hosts, and a picture model fits on one")
    try:
        checkpoint = open_checkpoint(config.model, config.tokenizer, config.prediction, config.vae)
        wanted = ServedPictures.of(config, checkpoint.kind)
        lengths = tokenizing_of(checkpoint, wanted.prompt_chunks).lengths
        programs, _ = wanted.programs(checkpoint, lengths, machine.devices)
    except (CheckpointError, ValueError) as error:
        raise PreparationRefused(str(error)) from error
    made_for = stored.made_for(wanted.settings, programs, machine.devices)
    return Preparing.at(location, machine, made_for, [programs]).written()
