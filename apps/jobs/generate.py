"""Offline generation: a file of prompts in, a file of answers out.

    python -m apps.jobs.generate INPUT.jsonl OUTPUT.jsonl                             # the demo model, one replica
    python -m apps.jobs.generate meta-llama/Llama-3.2-1B-Instruct INPUT OUTPUT --set max_batch_size=64
    python -m apps.jobs.generate ray_configs.catalog.llama3_8b_v5e gs://b/in.jsonl gs://b/out.jsonl --replicas 4

INPUT has a JSON object in each line, in OpenAI's terms (any field of /v1/completions or /v1/chat/completions but
`stream`; `id`, if there is one, is repeated in the answer):

    {"id": "q1", "prompt": "How many days are in a week?", "max_tokens": 32, "temperature": 0}
    {"prompt": [1, 15043, 29892]}
    {"messages": [{"role": "user", "content": "Hello"}], "n": 2, "stop": ["\\n"]}

OUTPUT has a line for each line of INPUT, in its order; `index` counts from 0. With n, logprobs, reasoning or tool
calls, `choices` is OpenAI's list instead of `text` and `finish_reason`:

    {"index": 0, "id": "q1", "text": " Seven.", "finish_reason": "stop", "usage": {"prompt_tokens": 8, ...}}
    {"index": 1, "choices": [{"index": 0, ...}, {"index": 1, ...}], "usage": {...}}
    {"index": 2, "error": {"message": "line 3: temperature must be between 0 and 100, not -1.0", "param": ...}}

A file for OpenAI's batch API works too, and is answered in that API's format, with the server's `response.body`:

    {"custom_id": "q1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [...]}}

A bad line does not affect the others: its answer is an error, and the exit status at the end is 1.

A run that was killed, ran out of disk or lost its cluster is resumed by the same command: answers are saved in
OUTPUT.parts as they come, and OUTPUT appears, complete, at the end. Replicas, slice and batch size may change in
between; what the answers depend on (input, model, its precision, --max-tokens ...) may not. Sampled answers differ from
run to run unless they have a seed.

The model runs in replicas of the project's own engine, each on the slice that the config names (or on CPUs), in the Ray
cluster of --address or RAY_ADDRESS, or else in one on this machine that is started for the run. Ray Data feeds them:
`apps.jobs.generation`.
"""

import contextlib
import importlib.util
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Annotated, Any, NoReturn

import fsspec
import typer
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from rich.console import Console
from rich.logging import RichHandler

from apps.jobs.generation.parts import OutputRefused, RunParts, folder_of, held
from apps.jobs.generation.progress import shown
from apps.jobs.generation.requests import BadLine, Defaults, read
from apps.jobs.generation.source import language_model
from apps.llm.api import RequestError
from apps.llm.batch_api.input_file import InputFile, missing, scan
from apps.llm.batch_api.parts import PartDamaged
from apps.llm.text.requests.validation import check_params
from apps.serving.files import Busy
from ray_configs.llm import LLMConfig
from ray_configs.loading import ConfigError

log = logging.getLogger("podslice")
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

ANSWERS_DEPEND_ON = (
    *("model", "model_id", "dtype", "quantize_weights", "quantize_kv_cache"),
    *("random_weights", "tiny", "tiny_layers", "max_model_len"),
)
"""Fields of the config that must not change when a run is resumed."""
SHOWN_PROBLEMS = 10


class Stopped(BaseException):
    """SIGTERM was received: the Pod is being stopped."""


@app.command()
def main(
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="[CONFIG_OR_MODEL] INPUT OUTPUT",
            help="A config (module or file) with a language model, or a model (folder, hub id, gs://); without it, "
            "the demo model. Then two JSONL files, here or in a bucket.",
        ),
    ],
    name: Annotated[str | None, typer.Option("--app", help="Which application, if there are several.")] = None,
    set: Annotated[list[str] | None, typer.Option(help="Change a field: --set max_batch_size=64")] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Engines, each on a slice; default: min_replicas.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(envvar="RAY_ADDRESS", help="A Ray cluster, such as auto; else one is started here.")
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Default for lines without it.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Default for lines without it.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Default for lines without it.")] = None,
    seed: Annotated[int | None, typer.Option(help="For lines without one: line i gets SEED + i.")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Check every line first; start only if all are valid.")
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Start over, whatever exists.")] = False,
) -> None:
    """Answer every line of INPUT into OUTPUT; the same command resumes an interrupted run."""
    console = Console(stderr=True)
    _log_to(console)
    if len(arguments) not in (2, 3):
        _fail("give INPUT and OUTPUT, and before them a config or a model if it is not the demo model")
    model, (input_url, output_url) = arguments[0] if len(arguments) == 3 else None, arguments[-2:]
    try:
        config = language_model(model, name, set or ())
    except ConfigError as error:
        _fail(str(error))
    if importlib.util.find_spec("pyarrow") is None or importlib.util.find_spec("pandas") is None:
        _fail("Ray Data is not installed; pip install 'podslice[batch]', or -e '.[batch]' in a checkout")
    defaults = Defaults(max_tokens, temperature, top_p, seed)
    try:
        fs, output = _place(output_url)
        if fs.isdir(output):
            _fail(f"OUTPUT {output_url} is a folder; name a file in it")
        source = _scanned(input_url, fs, output)
        if strict:
            _refuse_bad_lines(source, defaults)
        run = {
            "input": {"lines": source.lines, "sha256": source.sha256},
            "model": {field: getattr(config, field) for field in ANSWERS_DEPEND_ON},
            "defaults": vars(defaults),
        }
        with held(fs, folder_of(output)):
            parts = RunParts.open(fs, output, source.lines, run, overwrite)
            _run(parts, source, config, defaults, replicas or max(1, config.min_replicas), address, console)
            status = _finish(parts, output_url)
    except (OutputRefused, PartDamaged, Busy) as error:
        _fail(f"{output_url}: {error}" if isinstance(error, Busy) else str(error))
    except OSError as error:
        log.error("%s cannot be written: %s. Answers saved so far are safe; %s", output_url, error, GO_ON)
        status = 1
    except KeyboardInterrupt:
        log.warning("stopped; %s", GO_ON)
        status = 128 + signal.SIGINT
    except Stopped:
        log.warning("received SIGTERM; %s", GO_ON)
        status = 128 + signal.SIGTERM
    except Failed as error:
        log.error("%s. Answers so far are saved; %s", error, GO_ON)
        status = 1
    raise typer.Exit(status)


GO_ON = "the same command resumes the run"


class Failed(RuntimeError):
    """The run cannot continue; the answers so far are saved."""


def _place(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    try:
        return url_to_fs(url)
    except (ImportError, ValueError) as error:  # a package is missing, or there is no such kind of URL
        _fail(f"{url}: {error}")


def _scanned(url: str, output_fs: fsspec.AbstractFileSystem, output: str) -> InputFile:
    fs, path = _place(url)
    if type(fs) is type(output_fs) and path == output:
        _fail(f"INPUT and OUTPUT are the same file, {url}")
    try:
        source = scan(fs.unstrip_protocol(path))
    except FileNotFoundError:
        _fail(f"there is no file {url}")
    except (OSError, ImportError) as error:
        _fail(f"{url} cannot be read: {error}")
    if isinstance(output_fs, LocalFileSystem) and not os.path.isdir(parent := os.path.dirname(output)):
        _fail(f"there is no folder {parent} for OUTPUT")
    return source


def _refuse_bad_lines(source: InputFile, defaults: Defaults) -> None:
    """Check what can be checked without the model: JSON, fields, their types and ranges."""
    bad = 0
    for span in source.spans:
        for index, text in enumerate(source.span(span), span.first):
            try:
                check_params(read(index, text, defaults).body.params(), vocab_size=2**31)
            except (BadLine, RequestError) as error:
                bad += 1
                if bad <= SHOWN_PROBLEMS:
                    log.error("%s", error if isinstance(error, BadLine) else f"line {index + 1}: {error}")
    if bad:
        _fail(f"{bad} of {source.lines} lines are bad, and --strict was given: nothing was started")


def _run(
    parts: RunParts,
    source: InputFile,
    config: LLMConfig,
    defaults: Defaults,
    replicas: int,
    address: str | None,
    console: Console,
) -> None:
    """Answer the missing lines. However it ends, the answers so far are saved."""
    todo = missing(source, parts.done)
    already = int(parts.done.sum())
    if already:
        log.info("%d of %d lines were answered before", already, source.lines)
    if not todo:
        return
    import ray

    from apps.jobs.generation.cluster import connected
    from apps.jobs.generation.pipeline import answers

    with (
        connected(config, replicas, address),
        _stopping_at_sigterm(),  # inside: Ray sets its own handler when it connects
        shown(already, source.lines, console) as progress,
    ):
        log.info("%d lines for %d replica(s) of %s", source.lines - already, replicas, config.served_name)
        try:
            with contextlib.closing(answers(source, todo, config, defaults, replicas)) as chunks:
                for chunk in chunks:
                    if parts.add(chunk):
                        progress.take(chunk)
        except ray.exceptions.RayError as error:
            raise Failed(_cause(error)) from error
        finally:
            parts.save()
    counts = progress.counts
    log.info(
        "%d lines, %d prompt tokens, %d generated tokens in %.1f s: %.0f tokens/s (without the replicas' start)",
        *(counts.lines, counts.prompt_tokens, counts.completion_tokens, counts.elapsed_s, counts.tokens_per_s),
    )


def _finish(parts: RunParts, output_url: str) -> int:
    lines, errors = len(parts.done), parts.errors
    parts.finish()
    log.info("%s has all %d lines", output_url, lines)
    if errors:
        log.error('%d of them are errors: look for "error" in %s', errors, output_url)
    return 1 if errors else 0


@contextlib.contextmanager
def _stopping_at_sigterm() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise Stopped

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _cause(error: BaseException) -> str:
    """The last line of one of Ray's errors: the cause. Tracebacks come before it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def _log_to(console: Console) -> None:
    if console.is_terminal:
        handler: logging.Handler = RichHandler(console=console, show_path=False, show_level=False)
    else:
        handler = logging.StreamHandler()
        formatter = logging.Formatter("%(asctime)s %(message)s")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def _fail(message: str) -> NoReturn:
    typer.echo(f"error: {message}", err=True)
    raise typer.Exit(2)


if __name__ == "__main__":
    app()
