"""The commands of `podslice`: servers, the playground, and all of `python -m kuberay`, `apps.plan` and the jobs."""

import sys
from typing import Annotated, Any

import typer

import apps.jobs.generate
import apps.jobs.prepare
import apps.jobs.smoke
import apps.plan.commandline
import apps.playground.commandline
import kuberay.commandline
from ray_configs.cluster.release import PODSLICE_VERSION

app = typer.Typer(
    help="Language models and Stable Diffusion on TPU slices, from one Python config.\n\n"
    "CONFIG is a module such as ray_configs.catalog.llama3_8b_v5e or a file such as my_service.py. "
    "`podslice catalog` lists the ready ones.\n\n"
    "The fields of a model: `podslice serve --fields`, `podslice serve-images --fields`, docs/configs.md.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Arguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL | CONFIG] [FIELD=VALUE...]",
        help="A model of the hub or a folder, a service config, or fields of a model's config (--fields lists them; "
        "--field VALUE does too).",
    ),
]
Port = Annotated[int | None, typer.Option(min=1, max=65535, help="Port to listen on.  [8000]", show_default=False)]
Host = Annotated[str | None, typer.Option(help="Address to listen on; 0.0.0.0: all.  [127.0.0.1]", show_default=False)]
Fields = Annotated[bool, typer.Option("--fields", help="List the fields of the model's config, and stop.")]
# `--model X` and the like reach `arguments` as they are.
HABITS: dict[str, Any] = {"ignore_unknown_options": True}


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"podslice {PODSLICE_VERSION}")
        raise typer.Exit()


@app.callback()
def whole(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, is_eager=True, help="Print the version, and stop.")
    ] = False,
) -> None:
    pass


@app.command(context_settings=HABITS)
def serve(arguments: Arguments = None, port: Port = None, host: Host = None, fields: Fields = False) -> None:
    """Serve a language model on http://localhost:8000: the demo, a model, one given by its fields, or all of CONFIG.

    podslice serve Qwen/Qwen3-8B max_batch_size=8
    """
    _serve("llm", arguments or [], port, host, fields)


@app.command(context_settings=HABITS)
def serve_images(arguments: Arguments = None, port: Port = None, host: Host = None, fields: Fields = False) -> None:
    """Serve Stable Diffusion on http://localhost:8000: the demo, a model, one given by its fields, or all of CONFIG."""
    _serve("images", arguments or [], port, host, fields)


# Modules with one command each, then the commands of `python -m kuberay`.
for name, module in (
    ("plan", apps.plan.commandline),
    ("prepare", apps.jobs.prepare),
    ("generate", apps.jobs.generate),
    ("smoke", apps.jobs.smoke),
    ("playground", apps.playground.commandline),
):
    (only,) = module.app.registered_commands
    app.command(name)(only.callback)
app.registered_commands += kuberay.commandline.app.registered_commands


def _serve(kind: str, arguments: list[str], port: int | None, host: str | None, fields: bool) -> None:
    """Runs the server in its own process; exits with that process's outcome."""
    from podslice.own_folder import with_own_folder
    from podslice.served import KINDS, read
    from podslice.supervisor import ServerFailed, Supervisor

    if fields:
        from ray_configs.applications.fields import listing

        typer.echo(listing(KINDS[kind]), nl=False)
        return
    if host:
        arguments = [*arguments, f"--host={host}"]
    serving = with_own_folder(read(kind, arguments, port))
    try:
        status = Supervisor(serving).run([sys.executable, "-m", "podslice.server", kind, str(serving.port), *arguments])
    except ServerFailed as failure:
        typer.secho(f"podslice: {failure}", err=True, fg="red" if sys.stderr.isatty() else None)
        status = 1
    raise typer.Exit(status)
