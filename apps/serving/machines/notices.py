"""Compute Engine's notices, from a machine's metadata server: it is preempted, or goes for maintenance.

Source: Compute Engine's pages on `instance/preempted` and `instance/maintenance-event`. Where GKE puts its own metadata
server in front of it, these may not be there; then SIGTERM is the only notice.
"""

import logging
import os
import threading
import time

import httpx

from apps.serving import private_ray

log = logging.getLogger("podslice")

HOST = "GCE_METADATA_HOST"
"""Environment variable with the metadata server's address, as Google's client libraries have it."""
NOBODY = "TPU_SKIP_MDS_QUERY"
"""Environment variable of libtpu, `1` where there is no metadata server."""
LAST_WORDS = {"preempted": ("TRUE",), "maintenance-event": ("TERMINATE_ON_HOST_MAINTENANCE",)}
"""What says that a machine goes, by entry. Live migration, which TPU machines have not, ends nothing."""
LOOK_PERIOD_S = 1.0
NOBODY_S = 60.0
"""Time between two looks where no such server answers."""


def pass_on() -> None:
    """Drain this Ray node, from a thread, once its machine is about to go. Call it on machines with chips."""
    if os.environ.get(NOBODY) == "1" and HOST not in os.environ:
        return
    threading.Thread(target=_watch, args=(private_ray.own_node(),), name="podslice-notices", daemon=True).start()


def _watch(node: str) -> None:
    root = f"http://{os.environ.get(HOST) or 'metadata.google.internal'}/computeMetadata/v1/instance"
    # trust_env: no proxy is between a machine and its own metadata.
    with httpx.Client(base_url=root, headers={"Metadata-Flavor": "Google"}, timeout=5, trust_env=False) as server:
        while not (notice := _notice(server)):
            time.sleep(NOBODY_S if notice is None else LOOK_PERIOD_S)
    log.warning("this machine is about to go (%s): its node is drained", notice)
    private_ray.drain(node, notice)


def _notice(server: httpx.Client) -> str | None:
    """`preempted: TRUE`, or an empty string while the machine stays; None if nobody can say."""
    known = None
    for entry, last in LAST_WORDS.items():
        try:
            answer = server.get(entry)
        except httpx.HTTPError:
            return None
        if answer.status_code == 200:
            known = ""
            if answer.text.strip() in last:
                return f"{entry}: {answer.text.strip()}"
    return known
