"""Prepares a start: `python -m apps.jobs.prepare CONFIG --to FOLDER`, or of a model alone, `... MODEL OUTPUT`.

Weights are laid out as the engine keeps them in memory; the folder can then be the `model` of an LLMConfig, which loads
faster and with less memory. Of a config, programs are compiled too, for its slice. `apps.llm.engine.weights.prepared`
and `apps.arrays.stored_programs` document the formats.
"""

import errno
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

if TYPE_CHECKING:
    from apps.jobs.preparation import Summary

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

FAILED, WRONG = 1, 2
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Dtype(StrEnum):
    bfloat16 = "bfloat16"
    float32 = "float32"


class Quantization(StrEnum):
    none = "none"
    int8 = "int8"


@app.command()
def main(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL|CONFIG",
            help="A folder, a Hugging Face id or a URL (gs://...); with --to, a module or file that defines a Service.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Argument(metavar="OUTPUT", help="Folder or URL that becomes the model.", show_default=False),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|URL", help="Prepare CONFIG's weights and its compiled programs there, for its slice."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option("--app", help="Which application of CONFIG, of several.")] = None,
    emulated: Annotated[
        bool, typer.Option("--emulated", help="Programs for `podslice local` in place of TPUs, with CONFIG.")
    ] = False,
    slice: Annotated[
        str | None, typer.Option(help="Lay it out for this slice, such as v5e:2x4:8t; others can read it too.")
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(min=1, help="The same, by the number of devices that share each layer.")
    ] = None,
    quantize_weights: Annotated[
        Quantization, typer.Option(help="int8: done here once, as the engine would at each start.")
    ] = Quantization.none,
    dtype: Annotated[Dtype, typer.Option(help="As in the service's config.")] = Dtype.bfloat16,
    verify: Annotated[
        str | None, typer.Option(metavar="OUTPUT", help="Check every file of a prepared model instead.")
    ] = None,
) -> None:
    """Lay MODEL out as the engine keeps it in memory, in OUTPUT; or CONFIG's, and compile its programs: a replica that
    finds both compiles nothing. Run it again to resume after an interruption.

    Exit status: 0 done; 1 failed, and worth a retry; 2 an argument is wrong.
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("podslice").setLevel(logging.INFO)
    os.environ["JAX_PLATFORMS"] = "cpu"  # set before JAX starts: leave any chips to others
    if to is not None:
        others = {
            "OUTPUT": output,
            "--slice": slice,
            "--tensor-parallel": tensor_parallel,
            "--verify": verify,
            "--quantize-weights": quantize_weights if quantize_weights is not Quantization.none else None,
            "--dtype": dtype if dtype is not Dtype.bfloat16 else None,
        }
        if given := [option for option, value in others.items() if value is not None]:
            _end(f"{', '.join(given)}: with --to, CONFIG says what is prepared", WRONG)
        _prepare_config(model, to, name, emulated)
        return
    if name is not None or emulated:
        _end("--app and --emulated are for a config: python -m apps.jobs.prepare CONFIG --to FOLDER", WRONG)
    if verify is not None:
        if model is not None or output is not None:
            _end("--verify takes only the folder that it checks, no MODEL or OUTPUT", WRONG)
        _verify(verify)
        return
    if model is None or output is None:
        missing = "MODEL" if model is None else "OUTPUT"
        _end(f"{missing} is missing: python -m apps.jobs.prepare MODEL OUTPUT (or --verify OUTPUT)", WRONG)
    if slice is not None and tensor_parallel is not None:
        _end("--slice and --tensor-parallel set the same thing; give one of them", WRONG)
    _prepare(model, output, slice, tensor_parallel, quantize_weights, dtype)


def _prepare(
    model: str,
    output: str,
    slice: str | None,
    tensor_parallel: int | None,
    quantize_weights: Quantization,
    dtype: Dtype,
) -> None:
    from pydantic import TypeAdapter, ValidationError

    from apps.jobs.preparation import PrepareArguments, prepare
    from ray_configs.tpu import SliceField

    with _explaining(output):
        try:
            parsed = None if slice is None else TypeAdapter(SliceField).validate_python(slice)
        except ValidationError as error:
            _end(f"--slice: {error.errors()[0]['msg'].removeprefix('Value error, ')}", WRONG)
        wanted = PrepareArguments(model, output, dtype.value, quantize_weights.value, parsed, tensor_parallel)
        _say_prepared(output, prepare(wanted))


def _prepare_config(source: str | None, to: str, name: str | None, emulated: bool) -> None:
    from ray_configs.llm import LLMConfig
    from ray_configs.loading import ConfigError, application
    from ray_configs.stable_diffusion import StableDiffusionConfig

    if source is None:
        _end("CONFIG is missing: python -m apps.jobs.prepare CONFIG --to FOLDER", WRONG)
    try:
        config = application(source, LLMConfig, StableDiffusionConfig, name=name)
    except ConfigError as error:
        _end(str(error), WRONG)
    assert isinstance(config, LLMConfig | StableDiffusionConfig)
    if emulated and config.slice is None:
        _end(f"--emulated: {source} has no slice, so its programs are this machine's anyway; leave it out", WRONG)
    from apps.jobs.preparation import config as preparation

    with _explaining(to):
        done = preparation.prepare_config(config, to, emulated)
    if done.weights is not None:
        _say_prepared(to, done.weights)
    typer.echo(done.said(to))


@contextmanager
def _explaining(output: str) -> Iterator[None]:
    """End the command with a message for what may go wrong."""
    from apps.arrays.model_folder import CheckpointError
    from apps.arrays.stored_programs.seal import Unusable
    from apps.jobs.preparation.output import PreparationRefused
    from apps.serving.files import Busy

    try:
        yield
    except typer.Exit:  # a RuntimeError, too
        raise
    except (PreparationRefused, Unusable, ImportError) as error:  # of ImportError: a URL whose package is absent
        _end(str(error), WRONG)
    except (CheckpointError, Busy, RuntimeError) as error:
        _end(str(error), FAILED)
    except OSError as error:
        said = (
            f"cannot write {output}: {error.strerror}. Make room"
            if error.errno in FULL
            else f"stopped: {error}. Fix that"
        )
        _end(f"{said} and run the same command again: it keeps the files written so far and resumes", FAILED)


def _say_prepared(output: str, summary: "Summary") -> None:
    if summary.renewed:
        typer.echo(f"rewritten because they were damaged: {', '.join(summary.renewed)}")
    kept = f"; {summary.kept} existed already" if summary.kept else ""
    typer.echo(f"{output} is ready: {summary.files} files, {summary.nbytes / 1e9:.2f} GB{kept}")


def _verify(location: str) -> None:
    from apps.arrays.model_folder import CheckpointError
    from apps.jobs.preparation import verify

    try:
        problems = verify(location)
    except (CheckpointError, ImportError) as error:
        _end(str(error), WRONG)
    for problem in problems:
        typer.echo(problem)
    if problems:
        _end(f"{location}: {len(problems)} files are damaged; the command that made it rewrites them", FAILED)
    typer.echo(f"{location} is intact")


def _end(said: str, status: int) -> NoReturn:
    typer.echo(f"error: {said}", err=True)
    raise typer.Exit(status)


if __name__ == "__main__":
    app()
