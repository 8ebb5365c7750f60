"""What a replica said before its process died. Serve knows of the death alone; native code says why, and aborts."""

from pathlib import Path

import psutil

DIED = "ActorDiedError()"
"""All that Serve tells of it."""
REPLICA = ":actor_name:ServeReplica:"
"""With this line Ray begins what an actor's process says."""


def of_a_replica(logs: Path) -> str:
    """Why a replica's process died: the last line of its standard error.

    Args:
        logs: Ray's folder, which has `worker-ID-JOB-PID.err` of each process.
    """
    dead = [file for file in logs.glob("worker-*-*.err") if not psutil.pid_exists(int(file.stem.rpartition("-")[2]))]
    for file in sorted(dead, key=lambda file: file.stat().st_mtime, reverse=True):
        said = [line for line in file.read_text(errors="replace").splitlines() if line.strip()]
        if any(line.startswith(REPLICA) for line in said) and not said[-1].startswith(":"):
            return f"a replica's process died: {said[-1].strip()}"
    return "a replica's process died without a word: it may have been killed for the memory that it took"
