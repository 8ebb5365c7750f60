"""Prepares all that a replica of a config reads at its start: its weights and its programs."""

from dataclasses import dataclass

from apps.arrays.stored_programs.seal import KEY_VARIABLE
from apps.jobs import preparation
from apps.jobs.preparation import programs
from apps.jobs.preparation.output import PreparationRefused
from apps.jobs.preparation.programs import TargetDevices
from apps.llm.engine.execute import stored
from apps.llm.engine.weights.model import Model
from apps.llm.engine.weights.prepared import Prepared
from ray_configs.llm import LLMConfig
from ray_configs.stable_diffusion import StableDiffusionConfig


@dataclass(frozen=True)
class PreparedStart:
    """What was prepared."""

    weights: preparation.Summary | None
    """None: they are random, or were prepared before."""
    programs: programs.ProgramSummary

    def said(self, to: str) -> str:
        """The programs in a sentence, and what to do with them."""
        done, manifest = self.programs.done.values(), self.programs.manifest
        size, seconds = sum(each.size for each in done) / 1e6, sum(each.compile_s for each in done)
        kept = f"; {self.programs.kept} existed already" if self.programs.kept else ""
        setting = f"model={to}" if self.weights else f"prepared_programs={stored.below(to)}"
        return (
            f"{len(done)} programs for {manifest.made_for['devices']}, {size:.1f} MB, which took {seconds:.0f} s to "
            f"compile{kept}\n"
            f"set {setting} in the config, and {KEY_VARIABLE} for its replicas, to the key of this command"
        )


def prepare_config(config: LLMConfig | StableDiffusionConfig, to: str, emulated: bool) -> PreparedStart:
    """Write what a replica of the config reads, below `to`, or what is missing of it. Of pictures: programs alone.

    Args:
        emulated: for the emulation of its slice by CPUs.

    Raises:
        PreparationRefused: the config does not fit its slice, or there is no key to seal with; nothing was written.
        Busy, CheckpointError, OSError: see `preparation.prepare`.
    """
    if isinstance(config, StableDiffusionConfig):
        return _prepare_pictures(config, stored.below(to), emulated)
    if config.engine != "jax":
        raise PreparationRefused(f"engine={config.engine!r} reads checkpoints as they are: there is nothing to prepare")
    programs.seal_key()
    weights, location = None, stored.below(to)
    model = _open(config)
    if model.checkpoint is not None and not model.random_weights and not isinstance(model.checkpoint, Prepared):
        machine = None if emulated else TargetDevices.of(config, emulated)
        slice = config.slice if machine is None else None
        tensor = None if machine is None else machine.layout(config, model).tensor
        wanted = preparation.PrepareArguments(config.model, to, config.dtype, config.quantize_weights, slice, tensor)
        weights = preparation.prepare(wanted)
        config = config.model_copy(update={"model": to})
    if not emulated:
        return PreparedStart(weights, programs.prepare_programs(config, location, TargetDevices.of(config, emulated)))
    from apps.jobs.preparation.emulated import prepare_on_hosts

    return PreparedStart(weights, prepare_on_hosts(config, location))


def _prepare_pictures(config: StableDiffusionConfig, location: str, emulated: bool) -> PreparedStart:
    from apps.jobs.preparation.pictures import prepare_pictures

    if emulated:
        raise PreparationRefused("--emulated is for language models: pictures' programs are prepared for TPUs, or CPUs")
    programs.seal_key()
    return PreparedStart(None, prepare_pictures(config, location, TargetDevices.of(config, emulated)))


def _open(config: LLMConfig) -> Model:
    from apps.arrays.model_folder import CheckpointError
    from apps.llm.engine.model.rope import UnsupportedModel

    try:
        return Model.open(config, weights=False)
    except (CheckpointError, UnsupportedModel, ValueError) as error:
        raise PreparationRefused(str(error)) from error
