"""The command `podslice playground`: opens a page to try a running service."""

import asyncio
import importlib.util
import os
import signal
import tempfile
from typing import Annotated

import typer

from kuberay import Refusal
from kuberay.local.ports import refuse_unusable

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    url: Annotated[str, typer.Option(help="The service's address.")] = "http://localhost:8000",
    api_key: Annotated[
        str, typer.Option(envvar=["PODSLICE_API_KEY", "OPENAI_API_KEY"], help="The service's key.", show_envvar=True)
    ] = "",
    host: Annotated[str, typer.Option(help="Address to listen on; 0.0.0.0 for all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 7860,
) -> None:
    """Open a page to try a running service: chat, pictures, a cell.

    Whoever can reach the page can use the service, with this key.
    """
    from apps.playground.client import Client, ServiceProblem, applications

    refuse_unusable(port, host)
    if importlib.util.find_spec("gradio") is None:
        raise Refusal("the playground needs Gradio: pip install 'podslice[playground]'")
    try:
        client = Client(url, api_key.strip())
        found, problems = asyncio.run(applications(client))
    except ServiceProblem as problem:
        raise Refusal(str(problem)) from None
    for sentence in problems:
        typer.echo(f"podslice: {sentence}", err=True)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Gradio's own folder, /tmp/gradio, belongs to the first user of the machine: others could write nothing there.
    with tempfile.TemporaryDirectory(prefix="podslice-playground-") as folder:
        os.environ.setdefault("GRADIO_TEMP_DIR", folder)
        from apps.playground.app import playground, run

        pages = ", ".join(page for application in found for page in application.pages)
        typer.echo(f"The playground of {client.url} ({pages}) is at http://{host}:{port}. Ctrl-C stops it.")
        try:
            run(playground(client.url, found, problems), host, port)
        except OSError as error:
            raise Refusal(f"the playground cannot listen on {host}:{port}: {error}. Try another --port.") from None
