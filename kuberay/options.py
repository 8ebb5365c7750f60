"""Options shared by several commands, and reading their CONFIG argument."""

from collections.abc import Callable
from typing import Annotated

import typer

from kuberay import Refusal
from kuberay.source import Placeholders, Source, read
from ray_configs.cloud import bucket_name, project_id
from ray_configs.loading import ConfigError


def _checked(rule: Callable[[str], str]) -> Callable[[str | None], str | None]:
    """A callback that holds an option's value against the rule of the config's field that it fills."""

    def callback(value: str | None) -> str | None:
        try:
            return rule(value) if value else value
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error

    return callback


Config = Annotated[
    str, typer.Argument(metavar="CONFIG", help="Module or file of a config; see above.", show_default=False)
]
Project = Annotated[
    str | None,
    typer.Option(
        help="Replaces PROJECT_ID.", envvar="PODSLICE_PROJECT", show_default=False, callback=_checked(project_id)
    ),
]
Bucket = Annotated[
    str | None,
    typer.Option(
        help="Replaces BUCKET_NAME (without gs://).",
        envvar="PODSLICE_BUCKET",
        show_default=False,
        callback=_checked(bucket_name),
    ),
]
Context = Annotated[str | None, typer.Option(help="kubectl context; default: the current one.", show_default=False)]
Namespace = Annotated[
    str | None, typer.Option("--namespace", "-n", help="For objects without a namespace.", show_default=False)
]
Kubeconfig = Annotated[str | None, typer.Option(help="Default: $KUBECONFIG or ~/.kube/config.", show_default=False)]


def read_source(source: str, placeholders: Placeholders) -> Source:
    """Read a config or manifests. Raises Refusal if that fails."""
    try:
        return read(source, placeholders)
    except (ConfigError, ValueError) as error:
        raise Refusal(str(error)) from error


def read_config(source: str, placeholders: Placeholders) -> Source:
    """Like `read_source`, for a typed config only."""
    found = read_source(source, placeholders)
    if found.config is None:
        raise Refusal(f"{source} is YAML; this command needs a Python config")
    return found
