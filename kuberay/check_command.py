"""`python -m kuberay check`: options and output."""

from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from kuberay import Refusal
from kuberay.options import Bucket, Project, read_source
from kuberay.source import Placeholders, Source

if TYPE_CHECKING:
    from kuberay.check import Finding

ReportFormat = Literal["text", "json", "sarif", "github"]


def check(
    configs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG",
            help="Configs, YAML files, folders of them, or - for standard input.",
            show_default=False,
        ),
    ] = None,
    project: Project = None,
    bucket: Bucket = None,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    ignore: Annotated[
        list[str] | None, typer.Option("--ignore", metavar="RULE", help="A rule to leave out; may be repeated.")
    ] = None,
    format: Annotated[ReportFormat, typer.Option(help="How findings are printed.")] = "text",
    list_rules: Annotated[bool, typer.Option("--list", help="List the rules.")] = False,
    explain: Annotated[
        str | None, typer.Option(metavar="RULE", help="Explain a rule and name its source.", show_default=False)
    ] = None,
) -> None:
    """Find what KubeRay, GKE or Ray would refuse or silently get wrong, without a cluster.

    python -m kuberay check some-rayservice.yaml

    A comment in the YAML silences a rule on its line: # podslice: ignore RULE: the reason
    """
    from kuberay.check import RULES, UnreadableYaml, catalog, ordered
    from kuberay.check.rules import meant

    if unknown := [name for name in [*(ignore or ()), *([explain] if explain else ())] if name not in RULES]:
        instead = meant(unknown[0], RULES, "see python -m kuberay check --list")
        raise Refusal(f"there is no rule {unknown[0]}: {instead}")
    if list_rules or explain:
        typer.echo(catalog.explained(explain) if explain else catalog.listing())
        return
    if not configs:
        raise Refusal("name what to check: configs, YAML files, folders of them, or - for standard input")
    found = []
    for name in configs:
        try:
            found += findings_of(read_source(name, Placeholders(project, bucket)), ignore or ())
        except Refusal as refusal:
            if isinstance(refusal.__cause__, UnreadableYaml) and format != "text":
                found += findings_of(Source(name, [], beside=(refusal.__cause__,)), ignore or ())
                continue
            if len(configs) == 1:
                raise
            raise Refusal(f"{name}: {refusal}") from refusal
    found = ordered(found)
    show(found, format)
    counts = {grade: sum(finding.severity == grade for finding in found) for grade in ("error", "warning", "note")}
    said = [f"{count} {grade}{'' if count == 1 else 's'}" for grade, count in counts.items() if count]
    summary = ", ".join(said) if said else f"{', '.join(configs)}: no findings"
    typer.echo(summary, err=bool(said) or format != "text")
    if counts["error"] or (strict and counts["warning"]):
        raise typer.Exit(1)


def findings_of(source: Source, ignore: Collection[str] = ()) -> list["Finding"]:
    """Checks what was read."""
    from kuberay.check import check as check_objects

    return check_objects(source.objects, source.config, source.beside, ignore)


def show(found: list["Finding"], format: ReportFormat = "text", err: bool = False) -> None:
    """Prints findings; text is coloured on a terminal."""
    from rich.console import Console

    from kuberay.check import formats

    console = Console(stderr=err)
    if format == "json":
        typer.echo(formats.to_json(found))
    elif format == "sarif":
        typer.echo(formats.to_sarif(found))
    elif format == "text" and console.is_terminal:
        console.print(formats.to_terminal(found))
    else:
        for line in formats.to_github(found) if format == "github" else formats.to_lines(found):
            typer.echo(line, err=err)
