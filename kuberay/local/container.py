"""The first process of an emulated host, like a container's init: starts Ray; when it ends, so does the host.

    python container.py PARENT COMMAND...

Writes `up` to standard output when COMMAND (`ray start`, which starts Ray's processes and exits) has succeeded. Ends
when one of those processes ends, on SIGTERM, or when PARENT is gone for any reason. First it kills every process of the
host, detached ones too: it is the subreaper (PR_SET_CHILD_SUBREAPER), so Linux reparents orphans to it. It imports
little, because there is one for every host.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Iterator

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}


def main(parent: int, command: list[str]) -> int:
    become_subreaper()
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # the parent ended before the signal was set up
        return 1
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP | {signal.SIGCHLD})
    starter = os.posix_spawn(command[0], command, os.environ, setsigmask=[], file_actions=[(os.POSIX_SPAWN_DUP2, 2, 1)])
    vital: dict[int, str] = {}
    reason = None
    while reason is None:
        if signal.sigwait(STOP | {signal.SIGCHLD}) != signal.SIGCHLD:
            kill_descendants()
            return 0
        for pid, status in _ended():
            if pid == starter and status == 0:
                vital = {child: _name(child) for child in children()[os.getpid()]}
                print("up", flush=True)
            elif pid == starter:
                reason = f"ray start ended with status {status}"
            elif pid in vital:
                reason = f"Ray's {vital[pid]} ended with status {status}"
    print(f"podslice: {reason}; the host goes down", file=sys.stderr, flush=True)
    kill_descendants()
    return 1


def _name(pid: int) -> str:
    """A process's name, such as gcs_server."""
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:  # it has just ended
        return f"process {pid}"


def become_subreaper() -> None:
    """Make orphaned descendants of this process its children."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def children() -> dict[int, list[int]]:
    """Children of each process, by its pid."""
    found = defaultdict(list)
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    parent = int(file.read().rpartition(")")[2].split()[1])
            except (OSError, IndexError):  # it has just ended
                continue
            found[parent].append(int(entry))
    return found


def descendants(root: int, besides: frozenset[int] = frozenset()) -> Iterator[int]:
    """Descendants of `root`, without the subtrees at `besides`."""
    tree = children()
    open_ones = [root]
    while open_ones:
        for pid in tree.get(open_ones.pop(), ()):
            if pid not in besides:
                yield pid
                open_ones.append(pid)


def kill_descendants(timeout_s: float = 10) -> bool:
    """SIGKILL descendants until this process has no child left. False if some remain after timeout_s."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        for pid in descendants(os.getpid()):
            kill(pid)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        time.sleep(0.02)
    return False


def kill(pid: int, number: int = signal.SIGKILL) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _ended() -> Iterator[tuple[int, int]]:
    """Reap children that have ended: (pid, exit status)."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid, os.waitstatus_to_exitcode(status)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
