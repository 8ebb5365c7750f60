"""Lays a checkpoint out as the engine keeps it in memory: `python -m apps.jobs.prepare MODEL OUTPUT`.

OUTPUT can then be the `model` of an LLMConfig, which loads faster and with less memory. Its format is documented in
`apps.llm.engine.weights.prepared`.
"""

import errno
import logging
import os
from enum import StrEnum
from typing import Annotated, NoReturn

import typer

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
        typer.Argument(metavar="MODEL", help="A folder, a Hugging Face id or a URL (gs://...).", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Argument(metavar="OUTPUT", help="Folder or URL that becomes the model.", show_default=False),
    ] = None,
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
    """Lay MODEL out as the engine keeps it in memory, in OUTPUT. Run it again to resume after an interruption.

    Exit status: 0 done; 1 failed, and worth a retry; 2 an argument is wrong.
    """
    logging.basicConfig(format="%(message)s")
    logging.getLogger("podslice").setLevel(logging.INFO)
    os.environ["JAX_PLATFORMS"] = "cpu"  # set before JAX starts: leave any chips to others
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

    from apps.arrays.model_folder import CheckpointError
    from apps.jobs.preparation import PrepareArguments, prepare
    from apps.jobs.preparation.output import PreparationRefused
    from apps.serving.files import Busy
    from ray_configs.tpu import SliceField

    try:
        parsed = None if slice is None else TypeAdapter(SliceField).validate_python(slice)
        summary = prepare(PrepareArguments(model, output, dtype.value, quantize_weights.value, parsed, tensor_parallel))
    except ValidationError as error:
        _end(f"--slice: {error.errors()[0]['msg'].removeprefix('Value error, ')}", WRONG)
    except (PreparationRefused, ImportError) as error:  # of ImportError: a URL whose package is absent
        _end(str(error), WRONG)
    except (CheckpointError, Busy) as error:
        _end(str(error), FAILED)
    except OSError as error:
        said = (
            f"cannot write {output}: {error.strerror}. Make room"
            if error.errno in FULL
            else f"stopped: {error}. Fix that"
        )
        _end(f"{said} and run the same command again: it keeps the files written so far and resumes", FAILED)
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
