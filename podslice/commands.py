"""The commands of `podslice`: servers, the playground, and all of `python -m kuberay`, `apps.plan` and the jobs."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import apps.batch.generate
import apps.batch.prepare
import apps.batch.smoke
import apps.plan.commandline
import apps.playground.commandline
import kuberay.commandline

app = typer.Typer(
    help="Language models and Stable Diffusion on TPU slices, from one Python config.\n\n"
    "CONFIG is a module such as ray_configs.catalog.llama3_8b_v5e or a file such as my_service.py. "
    "`podslice catalog` lists the ready ones.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Arguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="[CONFIG | FIELD=VALUE...]", help="A service config, or fields of a model's config."),
]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.  [8000]", show_default=False)]


@app.command()
def serve(arguments: Arguments = None, port: Port = None) -> None:
    """Serve a language model on http://localhost:8000: the demo, a model given by its fields, or all of CONFIG.

    podslice serve model=google/gemma-2b max_batch_size=8
    """
    _serve("llm", arguments or [], port)


@app.command()
def serve_images(arguments: Arguments = None, port: Port = None) -> None:
    """Serve Stable Diffusion on http://localhost:8000: the demo, a model given by its fields, or all of CONFIG."""
    _serve("images", arguments or [], port)


# Modules with one command each, then the commands of `python -m kuberay`.
for name, module in (
    ("plan", apps.plan.commandline),
    ("prepare", apps.batch.prepare),
    ("generate", apps.batch.generate),
    ("smoke", apps.batch.smoke),
    ("playground", apps.playground.commandline),
):
    (whole,) = module.app.registered_commands
    app.command(name)(whole.callback)
app.registered_commands += kuberay.commandline.app.registered_commands


def _serve(kind: str, arguments: Sequence[str], port: int | None) -> None:
    """Runs the server in its own process; exits with that process's outcome."""
    from podslice.own_folder import with_own_folder
    from podslice.served import read
    from podslice.supervisor import ServerFailed, Supervisor

    serving = with_own_folder(read(kind, arguments, port))
    try:
        status = Supervisor(serving).run([sys.executable, "-m", "podslice.server", kind, str(serving.port), *arguments])
    except ServerFailed as failure:
        typer.secho(f"podslice: {failure}", err=True, fg="red" if sys.stderr.isatty() else None)
        status = 1
    raise typer.Exit(status)
