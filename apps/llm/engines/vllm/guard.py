"""Runs a command until its own standard input closes: `python guard.py COMMAND...`.

Whoever starts it holds the other end, so the command ends with that process, however it ends. The command and all that
it has started are ended together: asked by SIGTERM, then killed. That is done by a process that is no child of who
starts this: Ray kills a worker's own children, and would leave theirs.

A script of its own, without imports of the project, so that it starts at once.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

GRACE_S = 20
"""vLLM ends its engine's processes in this time, and gives the devices back."""
PR_SET_CHILD_SUBREAPER = 36
"""Of prctl(2): processes whose parents have ended become this one's children, in whatever group they are."""


def main(command: list[str]) -> int:
    """Run it; returns its exit status, or 128 and the signal that ended it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # who starts it closes its input instead
    if (second := os.fork()) != 0:
        return os.waitstatus_to_exitcode(os.waitpid(second, 0)[1])
    first = os.pidfd_open(os.getppid())
    os.setsid()
    os._exit(_guard(command, first))


def _guard(command: list[str], first: int) -> int:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_as_before)
    select.select([os.pidfd_open(child.pid), sys.stdin, first], [], [])
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_S)
        child.kill()
    status = child.wait()
    _end_the_rest()
    return status if status >= 0 else 128 - status


def _as_before() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _end_the_rest() -> None:
    """Kill what the command has left behind, and what that leaves behind."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    with contextlib.suppress(ChildProcessError):
        while True:
            for pid in map(int, children.read_text().split()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            os.waitpid(-1, 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
