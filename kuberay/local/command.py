"""`python -m kuberay local`: the command's options."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kuberay import Refusal
from kuberay.options import Bucket, Config, Project, read_config
from kuberay.source import Placeholders

if TYPE_CHECKING:
    from ray_configs.job import Job


def local(
    config: Config,
    port: Annotated[int, typer.Option(min=1024, max=65535, help="The service's port on 127.0.0.1.")] = 8000,
    tiny: Annotated[
        bool, typer.Option("--tiny", help="A tiny random model of the same architecture and shards for each model.")
    ] = False,
    hosts_per_slice: Annotated[
        int | None, typer.Option(min=1, help="Smaller slices, of this many hosts.", show_default=False)
    ] = None,
    slices: Annotated[
        int | None,
        typer.Option(min=1, help="Slices of each group that scales; default: its minimum.", show_default=False),
    ] = None,
    kill_host: Annotated[
        str | None,
        typer.Option(
            metavar="SLICE:HOST",
            help="Start nothing: kill a host of the run on --port, which is in another terminal.",
            show_default=False,
        ),
    ] = None,
    kill_slice: Annotated[
        int | None,
        typer.Option(
            metavar="SLICE",
            min=0,
            help="Kill a slice while streams are answered, say what became of them, and end: 0 if none was harmed.",
            show_default=False,
        ),
    ] = None,
    preempt_slice: Annotated[
        int | None,
        typer.Option(
            metavar="SLICE",
            min=0,
            help="The same, but the slice is preempted: it is told first, and has its Pods' grace period.",
            show_default=False,
        ),
    ] = None,
    upgrade: Annotated[
        bool,
        typer.Option("--upgrade", help="The same, but every process is replaced by one of a new version."),
    ] = False,
    from_zero: Annotated[
        bool,
        typer.Option(
            "--from-zero",
            help="The same, but nobody asks until the last slice is given back, and then all do. Needs min_replicas 0.",
        ),
    ] = False,
    times: Annotated[int, typer.Option("--times", "--kills", min=1, help="How often that is done.")] = 1,
    counts: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="Where the counts add up: the same command goes on after a stop.",
            show_default=False,
        ),
    ] = None,
    autoscale: Annotated[
        bool,
        typer.Option("--autoscale", help="Let Ray's autoscaler add and remove slices, as on GKE."),
    ] = False,
    insist: Annotated[bool, typer.Option("--insist", help="Start although the memory is too small.")] = False,
    project: Project = None,
    bucket: Bucket = None,
) -> None:
    """Run the service here as GKE would: a raylet for each host, CPU devices for chips. Ctrl-C ends everything.

    python -m kuberay local ray_configs.catalog.spmd_175b --tiny
    """
    from kuberay.local import running
    from kuberay.local.drill.blows import DrillOptions
    from ray_configs.service import Service

    if kill_host is not None:
        running.kill_host(kill_host, port)
        return
    service = read_config(config, Placeholders(project, bucket)).config
    if not isinstance(service, Service):
        assert service is not None  # read_config has refused YAML
        raise Refusal(rehearsal(config, service))
    drills = [
        *([DrillOptions("kill", kill_slice, times, counts)] if kill_slice is not None else []),
        *([DrillOptions("preempt", preempt_slice, times, counts)] if preempt_slice is not None else []),
        *([DrillOptions("upgrade", times=times, counts=counts)] if upgrade else []),
        *([DrillOptions("zero", times=times, counts=counts)] if from_zero else []),
    ]
    names = "--kill-slice, --preempt-slice, --upgrade and --from-zero"
    if len(drills) > 1:
        raise Refusal(f"{names} are drills of their own: leave all but one out")
    if not drills and (times != 1 or counts is not None):
        raise Refusal(f"--times and --counts belong to {names.replace(' and ', ' or ')}: add one, or leave them out")
    drill = drills[0] if drills else None
    running.run(service, running.LocalOptions(port, tiny, hosts_per_slice, slices, autoscale, insist, drill))


def rehearsal(source: str, job: "Job") -> str:
    """Why a job is not emulated, and what to run instead."""
    command = shlex.join(job.command)
    where = "TPUs" if job.slice else "the cluster"
    return (
        f"{source} is a job; only a service runs locally. A job ends by itself, on {where}, with what it wrote. To "
        f"rehearse it, run its own command on this machine, with small inputs: {command}\n"
        f"What would be applied: podslice check {source}, podslice render {source}"
    )
