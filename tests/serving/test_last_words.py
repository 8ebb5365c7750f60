"""Why a replica's process died. Oracle: what Ray 2.60 wrote of one that XLA aborted, and of one that was killed."""

import os
import subprocess
import sys
from pathlib import Path

from apps.serving.logs.last_words import of_a_replica

BEGINNING = ":job_id:01000000\n:actor_name:ServeReplica:default:LLMServer\n"
ABORTED = "F1127 17:40:34.823464    1677 parse_flags_from_env.cc:234] Unknown flag in XLA_FLAGS: --xla_nope"


def worker(logs: Path, pid: int, said: str, seconds: float = 0) -> None:
    file = logs / f"worker-a84e8b35ae576acd962303ec0296d8c049fa1593727360637a90fb28-01000000-{pid}.err"
    file.write_text(said)
    os.utime(file, (seconds, seconds))


def gone() -> int:
    """The pid of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_the_last_line_of_the_replica_that_is_gone(tmp_path: Path) -> None:
    worker(tmp_path, os.getpid(), BEGINNING + "still alive\n", 3)
    worker(tmp_path, gone(), BEGINNING.replace("ServeReplica", "ServeController") + "no replica\n", 2)
    worker(tmp_path, gone(), BEGINNING + ABORTED + "\n\n", 1)
    worker(tmp_path, gone(), BEGINNING + "an earlier one\n", 0)
    assert of_a_replica(tmp_path) == f"a replica's process died: {ABORTED}"


def test_one_that_was_killed(tmp_path: Path) -> None:
    worker(tmp_path, gone(), BEGINNING)
    assert "may have been killed" in of_a_replica(tmp_path)
