"""The command line of `python -m kuberay`. Each command reads a config or YAML.

Exit status: 0 done; 1 the answer is no (errors found, differences, not ready); 2 the command could not run.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from kuberay import Refusal
from kuberay.check_command import check, findings_of, show
from kuberay.local.command import local
from kuberay.options import Bucket, Config, Context, Kubeconfig, Namespace, Project, read_config, read_source
from kuberay.source import Placeholders, Source
from ray_configs.loading import ConfigError, catalog

app = typer.Typer(
    help="From one Python config to GKE: render, check and apply.\n\n"
    "CONFIG is a module such as ray_configs.catalog.llama3_8b_v5e, a file such as my_service.py (CONFIG:NAME picks one "
    "of several in it) or, for `check` and the commands that need a cluster, any YAML. "
    "`python -m kuberay catalog` lists the ready ones.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("catalog")
def list_catalog(names: Annotated[bool, typer.Option("--names", help="Only the names, for scripts.")] = False) -> None:
    """List the ready configs."""
    from importlib import import_module

    modules = catalog()
    for module in modules:
        about = (import_module(module).__doc__ or "").strip().splitlines()
        typer.echo(module if names else f"{module:{max(map(len, modules))}}  {about[0] if about else ''}")


@app.command()
def render(
    configs: Annotated[
        list[str],
        typer.Argument(metavar="CONFIG", help="Modules or files of configs; see above.", show_default=False),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for CONFIG.yaml instead of standard output.", show_default=False),
    ] = None,
    serve_config: Annotated[
        bool, typer.Option("--serve-config", help="Only Serve's part: what `serve run FILE` takes.")
    ] = False,
    project: Project = None,
    bucket: Bucket = None,
) -> None:
    """Print the manifests as YAML.

    python -m kuberay render ray_configs.catalog.stable_diffusion_v4 --project my-project | kubectl apply -f -
    """
    from kuberay.render.manifests import file_name, manifest

    placeholders = Placeholders(project, bucket)
    texts = {}
    for config in configs:  # render all before writing the first
        source = read_config(config, placeholders)
        texts[config] = _serve_config(source) if serve_config else manifest(config, source.objects)
    if output is None:
        typer.echo("---\n".join(texts.values()), nl=False)
        return
    for config, text in texts.items():
        path = output / file_name(config)
        try:
            output.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        except OSError as error:
            raise Refusal(f"cannot write {path}: {error.strerror}") from error
        typer.echo(f"wrote {path}", err=True)


@app.command("node-pools")
def node_pools(
    config: Config,
    project: Project = None,
    bucket: Bucket = None,
    format: Annotated[
        Literal["gcloud", "terraform"],
        typer.Option(help="A script of gcloud commands, or a main.tf.json for Terraform."),
    ] = "gcloud",
    delete: Annotated[bool, typer.Option("--delete", help="The commands that delete all of it.")] = False,
) -> None:
    """Print the commands that create the cluster, its node pools, bucket and permissions.

    python -m kuberay node-pools ray_configs.catalog.spmd_175b --project my-project > create.sh
    """
    from kuberay.node_pools import commands, teardown, terraform

    filled = read_config(config, Placeholders(project, bucket)).config
    assert filled is not None  # read_config has refused YAML
    if format == "terraform":
        if delete:
            raise Refusal("Terraform deletes what it created: run terraform destroy")
        text = terraform(filled)
    else:
        text = (teardown if delete else commands)(filled)
    typer.echo(text, nl=False)


app.command()(check)
app.command()(local)


@app.command()
def apply(
    config: Config,
    project: Project = None,
    bucket: Bucket = None,
    dry_run: Annotated[
        Literal["none", "server"],
        typer.Option("--dry-run", help="server: have the cluster check everything, and change nothing."),
    ] = "none",
    force: Annotated[bool, typer.Option("--force", help="Apply despite errors that `check` finds.")] = False,
    force_conflicts: Annotated[
        bool, typer.Option("--force-conflicts", help="Take over fields that other managers have set.")
    ] = False,
    recreate: Annotated[
        bool, typer.Option("--recreate", help="Delete and recreate: rolls everything out, with minutes of downtime.")
    ] = False,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Check, then apply to the cluster (server-side apply, field manager podslice). Applying twice changes nothing.

    For a running service, says first what will and will not be rolled out. Exit status 1, with nothing changed, if
    the change would stop it.
    """
    from kuberay import cluster

    source = read_source(config, Placeholders(project, bucket))
    if (open_ones := source.open_placeholders()) and not force:
        options = {"PROJECT_ID": "--project", "BUCKET_NAME": "--bucket"}
        raise Refusal(
            f"{' and '.join(open_ones)} must be filled in: add "
            + " ".join(f"{options[name]} YOUR_{name}" for name in open_ones)
        )
    found = findings_of(source)
    errors = [finding for finding in found if finding.severity == "error"]
    show(found, err=True)
    if errors and not force:
        raise Refusal(f"not applied: {len(errors)} error{'s' * (len(errors) > 1)} above (--force applies anyway)")
    objects = source.each()
    connected = cluster.Cluster.connect(context, namespace, kubeconfig)
    cluster.apply(connected, objects, dry_run == "server", force_conflicts, recreate, say=typer.echo)


@app.command()
def diff(
    config: Config,
    project: Project = None,
    bucket: Bucket = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show what `apply` would change. Exit status 1 if anything."""
    from kuberay import cluster

    objects = read_source(config, Placeholders(project, bucket)).each()
    connected = cluster.Cluster.connect(context, namespace, kubeconfig)
    text = cluster.diff(connected, objects, say=lambda line: typer.echo(line, err=True))
    typer.echo(text or "no difference", nl=not text, err=not text)
    if text:
        raise typer.Exit(1)


@app.command()
def status(
    config: Config,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Follow until Ctrl-C.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Follow until it is ready (or a job has ended).")] = False,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds until --wait gives up; default: never.", show_default=False)
    ] = None,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Show the status in words: which slice waits for which node pool, which replica is loading.

    Exit status 1 if it is not ready.
    """
    from kuberay import cluster
    from kuberay.progress import StatusDisplay

    objects = read_source(config, Placeholders()).each()
    connected = cluster.Cluster.connect(context, namespace, kubeconfig)
    with StatusDisplay() as display:
        if watch or wait:
            state = cluster.watch(connected, objects, display.show, until_ready=wait, timeout_s=timeout)
        else:
            state = cluster.observe(connected, objects)
            display.show(cluster.describe(state))
    if not state.ready:
        raise typer.Exit(1)


@app.command()
def delete(
    config: Config,
    wait: Annotated[bool, typer.Option(help="Wait until everything is gone.")] = True,
    timeout: Annotated[float, typer.Option(help="Seconds to wait.")] = 600,
    force: Annotated[bool, typer.Option("--force", help="Also delete what podslice did not apply.")] = False,
    context: Context = None,
    namespace: Namespace = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """Delete the rendered objects from the cluster, except those that other workloads use.

    Node pools stay: `node-pools --delete` prints their commands.
    """
    from kuberay import cluster

    objects = read_source(config, Placeholders()).each()
    connected = cluster.Cluster.connect(context, namespace, kubeconfig)
    cluster.delete(connected, objects, wait, timeout, force, progress=typer.echo)


def main(commands: typer.Typer = app, name: str = "python -m kuberay") -> None:
    """Run one of `commands`. Errors that the user can fix are printed without a traceback."""
    try:
        commands(prog_name=name, standalone_mode=True)
    except (Refusal, ConfigError) as refusal:
        _fail(str(refusal), getattr(refusal, "status", 2))
    except KeyboardInterrupt:
        _fail("interrupted", 130)
    except BrokenPipeError:  # `| head`
        sys.stderr.close()
        sys.exit(0)


def _fail(text: str, status: int) -> None:
    typer.secho(f"podslice: {text}", err=True, fg="red" if sys.stderr.isatty() else None)
    sys.exit(status)


def _serve_config(source: Source) -> str:
    from kuberay.render import serve_config, to_yaml
    from ray_configs.service import Service

    if not isinstance(source.config, Service):
        raise Refusal(f"{source.name} is a job; only a service has a Serve config")
    return to_yaml([serve_config(source.config)])
