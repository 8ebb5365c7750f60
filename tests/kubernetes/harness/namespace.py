"""Runs one command in its own network, mount and PID namespaces: it is isolated and leaves nothing behind.

    command_line (in the namespace, process 2, and whatever it starts)
      init (process 1: passes signals on, reaps orphans)
        launcher (in the namespaces of whoever called)

When the launcher ends for any reason, init gets a signal and ends the command; when init ends, the kernel kills what
is left.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import time

BRIDGE = "podslice0"
NETWORK = (
    "10.201"  # Pods' addresses are NETWORK.1.1 and up; the bridge, which is the Node's own address, is NETWORK.0.1
)
NODE_ADDRESS = f"{NETWORK}.0.1"
MARK = "PODSLICE_NAMESPACE"  # set inside, to a process of it as the caller numbers processes
GRACE_S = 30

_CLONE_NEWNS, _CLONE_NEWPID, _CLONE_NEWNET = 0x00020000, 0x20000000, 0x40000000
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str | None:
    """An error message naming what this machine lacks to run a cluster, or None."""
    if os.geteuid() != 0:
        return "root is needed to give Pods their own network and file system: run it as root (sudo make ...)"
    programs = {"ip": "iproute2", "openssl": "openssl", "unshare": "util-linux", "wget": "wget"}
    for program, package in programs.items():
        if shutil.which(program) is None:
            return f"the program {program} is needed: apt-get install {package}"
    return None


def run(command: list[str]) -> int:
    """Runs the command and returns its exit status. SIGINT and SIGTERM reach it as one SIGINT, so that it cleans up."""
    _unshare(_CLONE_NEWNET | _CLONE_NEWNS | _CLONE_NEWPID)
    init = os.fork()
    if init == 0:
        _die_with_parent()
        os.setsid()  # a terminal's Ctrl-C reaches the launcher alone, which passes it on once
        os._exit(_init(command))
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: os.kill(init, signal.SIGTERM))
    return os.waitstatus_to_exitcode(os.waitpid(init, 0)[1])


def _unshare(flags: int) -> None:
    if _libc.unshare(flags):
        reason = os.strerror(ctypes.get_errno())
        raise SystemExit(f"this machine does not allow new namespaces ({reason}): in a container, run it privileged")


def _die_with_parent() -> None:
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _init(command: list[str]) -> int:
    outside = os.readlink("/proc/self")
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    for step in (
        "link set lo up",
        f"link add {BRIDGE} type bridge",
        f"addr add {NODE_ADDRESS}/16 dev {BRIDGE}",
        f"link set {BRIDGE} up",
    ):
        subprocess.run(["ip", *step.split()], check=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job ignores it, and so would the command
    main = subprocess.Popen(command, env=os.environ | {MARK: outside})
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: main.poll() is None and os.kill(main.pid, signal.SIGINT))
    status = _reap_until(main.pid)
    _end_the_rest()
    return status if status >= 0 else 128 - status


def _reap_until(pid: int) -> int:
    while True:
        ended, status = os.wait()
        if ended == pid:
            return os.waitstatus_to_exitcode(status)


def _end_the_rest() -> None:
    """Sends SIGTERM to what outlived the command and waits; the kernel kills the rest when process 1 ends."""
    try:
        os.kill(-1, signal.SIGTERM)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.1)
    except (ChildProcessError, ProcessLookupError):
        return
