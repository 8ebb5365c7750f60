"""The server process that `podslice serve` supervises: starts Ray and Serve, deploys, and reports progress.

    python -m podslice.server KIND PORT ARGUMENTS...

It reports events (`apps.serving.progress`) and an exit status to the command; its output goes to a log. SIGINT stops
it.
"""

import ctypes
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import ApplicationStatus, ApplicationStatusOverview, LoggingConfig, ProxyStatus

from apps.serving import private_ray, shutdown
from apps.serving.logs import last_words
from apps.serving.progress import Event, reason, tell
from podslice.machine import logical_cpus
from podslice.own_folder import with_own_folder
from podslice.served import Serving, joins_a_cluster, read

POLL_S = 0.2
"""Time between two status checks during the start."""
POLL_LATER_S = 3.0
"""Time between two status checks after it."""
POLL_RAY_S = 1.0
"""Time between two looks at Ray's own processes."""
RAY_TOKEN = Path("~/.ray/auth_token").expanduser()
"""Whoever reads it may run code in the cluster."""
WELL = (ApplicationStatus.RUNNING.value, ProxyStatus.HEALTHY.value)
PROXY = "the HTTP proxy"
PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(kind: str, port: str, *arguments: str) -> None:
    keep_private()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells make background processes ignore SIGINT
    # If the command is killed, it cannot stop this process, so the kernel interrupts it when its parent dies.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGINT)
    parent = os.getppid()
    serving = with_own_folder(read(kind, arguments, int(port)))
    logs = None if serving.logging is None else LoggingConfig(**serving.logging)
    try:
        targets = [
            serve.RunTarget(_application(app.config), app.name, app.route_prefix, logging_config=logs)
            for app in serving.applications
        ]
        tell({"stage": "starting Ray"})
        # No dashboard: it adds eleven processes. `serve run` starts it.
        cpus = None if joins_a_cluster() else logical_cpus(serving)
        private_ray.start_ray(
            namespace="serve",
            num_cpus=cpus,
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False,
        )
    except Exception as error:
        address = os.environ.get("RAY_ADDRESS")
        unset = "; without RAY_ADDRESS, a Ray of its own is started" if address and address in str(error) else ""
        tell({"failure": reason(error) + unset})
        raise
    stopping = threading.Event()
    threading.Thread(target=_watch_ray, args=[stopping], daemon=True).start()
    try:
        _serve(serving, targets, logs)
    except KeyboardInterrupt:
        # After a kill of the command, nobody could cut short what takes long.
        shutdown.shut_down(finish=os.getppid() == parent)
    except Exception as error:
        tell({"failure": reason(error)})
        shutdown.shut_down(finish=False)
        raise
    finally:
        stopping.set()
        ray.shutdown()


def keep_private() -> None:
    """Leave what this process and Ray's write to its user alone: Ray's token, logs, batches, a cell's keys.

    A token that an earlier Ray left readable by others is closed to them.
    """
    os.umask(0o077)
    with suppress(OSError):
        RAY_TOKEN.chmod(0o600)


def _serve(serving: Serving, targets: list[serve.RunTarget], logs: LoggingConfig | None) -> None:
    tell({"stage": "starting Serve", "logs": private_ray.logs(), "joined": private_ray.joined()})
    # The proxies start in parallel with the replicas; requests need both.
    threading.Thread(target=_start_serve, args=[serving, logs], daemon=True).start()
    while not private_ray.controller_runs():
        time.sleep(POLL_S / 4)
    tell({"stage": "starting the replicas"})
    serve.run_many(targets, wait_for_applications_running=False)
    told: Event = {}
    while not all(map(_runs, apps := _status(serving))):
        if (event := _trouble(apps)) != told:
            tell(event)
            told = event
        time.sleep(POLL_S)
    tell({"port": private_ray.http_port()})
    ill: set[str] = set()
    while True:
        time.sleep(POLL_LATER_S)
        status = serve.status()
        states = {app.name: status.applications[app.name].status.value for app in serving.applications}
        states |= {PROXY: min(status.proxies.values(), default=ProxyStatus.UNHEALTHY, key=_is_well).value}
        for name, state in states.items():
            if (state in WELL) == (name in ill):
                ill ^= {name}
                tell({"app": name, "stage": "runs again" if state in WELL else f"is {state.lower()}"})


def _watch_ray(stopping: threading.Event) -> None:
    """Tells when one of Ray's processes has ended. In a thread of its own: calls to Ray may then hang for a minute."""
    while not stopping.wait(POLL_RAY_S):
        if ended := private_ray.ended_processes():
            tell({"over": f"Ray has lost {', '.join(ended)}, and cannot serve without: start the server again"})
            return


def _start_serve(serving: Serving, logs: LoggingConfig | None) -> None:
    try:
        private_ray.start_serve(http_options=HTTPOptions(**serving.http), logging_config=logs)
    except Exception as error:
        tell({"failure": reason(error)})
        raise


def _application(config: Any) -> serve.Application:
    """Builds the config's application with the builder that it names."""
    module, _, builder = config.import_path.partition(":")
    application: serve.Application = getattr(importlib.import_module(module), builder)(config)
    return application


def _status(serving: Serving) -> list[ApplicationStatusOverview]:
    found = serve.status().applications
    return [found[app.name] for app in serving.applications]


def _is_well(proxy: ProxyStatus) -> bool:
    return proxy.value in WELL


def _runs(app: ApplicationStatusOverview) -> bool:
    return app.status == ApplicationStatus.RUNNING


def _trouble(apps: Sequence[ApplicationStatusOverview]) -> Event:
    """An event about why applications do not run yet; empty if nothing is wrong."""
    for app in apps:
        for message in [app.message, *(deployment.message for deployment in app.deployments.values())]:
            _, failed, error = message.partition("Error:\n")
            if failed or app.status == ApplicationStatus.DEPLOY_FAILED:
                # The traceback's last line is the error. Serve would try twice more and fail the same way.
                said = (error or message).strip().splitlines()[-1]
                return {
                    "failure": last_words.of_a_replica(Path(private_ray.logs())) if said == last_words.DIED else said
                }
            if "to be scheduled" in message:
                needed = message.partition("Resources required")[2]
                return {"waiting": f"room for a replica: required{needed.partition('. Use')[0]}"}
    return {}


if __name__ == "__main__":
    main(*sys.argv[1:])
