"""The command `podslice`: what `serve run`, `python -m kuberay`, `python -m apps.plan` and the jobs do, by one name."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

import apps.batch.generate
import apps.batch.prepare
import apps.batch.smoke
import apps.plan.commandline
import kuberay.commandline
from kuberay.options import Refusal
from ray_configs.loading import load
from ray_configs.service import Service

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
    typer.Argument(metavar="[CONFIG | FIELD=VALUE...]", help="A service to run whole, or fields of a model's config."),
]


@app.command()
def serve(arguments: Arguments = None) -> None:
    """Serve a language model on http://localhost:8000: the demo, one by its fields, or a whole CONFIG.

    podslice serve model=google/gemma-2b max_batch_size=8
    """
    _serve("apps.llm", arguments or [])


@app.command()
def serve_images(arguments: Arguments = None) -> None:
    """Serve Stable Diffusion on http://localhost:8000: the demo, one by its fields, or a whole CONFIG."""
    _serve("apps.stable_diffusion", arguments or [])


# What is the whole command line of a module, and what `python -m kuberay` has.
for name, module in (
    ("plan", apps.plan.commandline),
    ("prepare", apps.batch.prepare),
    ("generate", apps.batch.generate),
    ("smoke", apps.batch.smoke),
):
    (whole,) = module.app.registered_commands
    app.command(name)(whole.callback)
app.registered_commands += kuberay.commandline.app.registered_commands


def _serve(package: str, arguments: Sequence[str]) -> None:
    """`serve run`, as its own documentation has it; its exit status becomes this process's."""
    run = [sys.executable, "-m", "ray.serve.scripts", "run"]
    configs = [argument for argument in arguments if "=" not in argument]
    if not configs:
        raise typer.Exit(subprocess.call([*run, f"{package}:build" if arguments else f"{package}:app", *arguments]))
    if len(arguments) > 1:
        raise Refusal(f"{configs[0]} is a config, which says everything: name nothing beside it")
    from kuberay.render import serve_config, to_yaml

    service = load(configs[0])
    if not isinstance(service, Service):
        raise Refusal(f"{configs[0]} is a job; only a service can be served")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "serve.yaml")
        file.write_text(to_yaml([serve_config(service)]))
        raise typer.Exit(subprocess.call([*run, str(file)]))


def main() -> None:
    kuberay.commandline.main(app, "podslice")
