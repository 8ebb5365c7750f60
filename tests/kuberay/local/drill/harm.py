"""What happens to machines and processes: they end, they stand still, or nobody hears them any more."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator

import psutil

from kuberay.local.container import descendants

TABLE = "podslice_harm"
REFRESH_S = 0.2
"""How soon a connection that a process opens while it is cut off is cut too."""


class Victim:
    """A process, or a host or slice with all its processes, of a run of `podslice local`.

    Args:
        processes: what it consists of, just now.
        end: kills it, as a machine's end does.
    """

    def __init__(self, name: str, processes: Callable[[], set[int]], end: Callable[[], None]):
        self.name, self.processes, self.end = name, processes, end


def hosts(run: int) -> dict[str, int]:
    """The container processes of a run's hosts, by the hosts' names."""
    found = dict[str, int]()
    for child in psutil.Process(run).children():
        with contextlib.suppress(psutil.Error):
            line = " ".join(child.cmdline())
            if "podslice/host=" in line:
                found[line.partition("podslice/host=")[2].split(",")[0].split()[0]] = child.pid
    return found


def processes_named(run: int, part: str) -> list[int]:
    """The processes of a run whose command has this in it."""
    found = list[int]()
    for pid in descendants(run):
        with contextlib.suppress(psutil.Error):
            if part in " ".join(psutil.Process(pid).cmdline()):
                found.append(pid)
    return found


def of_process(name: str, pid: int) -> Victim:
    return Victim(name, lambda: {pid}, lambda: send(signal.SIGKILL, {pid}))


def of_hosts(name: str, containers: list[int]) -> Victim:
    """The container processes themselves stand for nothing that a machine has, and are only asked to end."""

    def inside() -> set[int]:
        return {pid for container in containers for pid in descendants(container)}

    return Victim(name, inside, lambda: send(signal.SIGTERM, set(containers)))


def send(number: int, pids: set[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@contextlib.contextmanager
def stopped(victim: Victim) -> Iterator[None]:
    """Its processes stand still, as on a machine that swaps or whose hypervisor has halted it."""
    pids = victim.processes()
    send(signal.SIGSTOP, pids)
    try:
        yield
    finally:
        send(signal.SIGCONT, pids)


@contextlib.contextmanager
def cut_off(victim: Victim) -> Iterator[None]:
    """Nothing reaches its TCP connections and nothing leaves them, without a word to either end. As root, with nft."""
    nft(f"add table inet {TABLE}")
    over = threading.Event()

    def keep_cut() -> None:
        while not over.is_set():
            pids = victim.processes()
            ports = {each.laddr.port for each in psutil.net_connections("tcp") if each.pid in pids and each.laddr}
            if ports:
                nft(f"add element inet {TABLE} ports {{ {', '.join(map(str, ports))} }}")
            over.wait(REFRESH_S)

    try:
        nft(f"add set inet {TABLE} ports {{ type inet_service; }}")
        nft(f"add chain inet {TABLE} in {{ type filter hook input priority 0; }}")
        for end in ("dport", "sport"):
            nft(f"add rule inet {TABLE} in tcp {end} @ports drop")
        thread = threading.Thread(target=keep_cut)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
    finally:
        nft(f"delete table inet {TABLE}")


def nft(command: str) -> None:
    subprocess.run(["nft", command], check=True, capture_output=True, text=True)


def do_harm(draw: random.Random, victim: Victim, say: Callable[[str], None]) -> None:
    """One of the three, for a time that is drawn: shorter and longer than what a router takes for silence."""
    how = draw.choice(("killed", "stopped", "cut off"))
    if how == "killed":
        say(f"{victim.name} is killed")
        victim.end()
        return
    seconds = draw.choice((0.3, 3.0, 15.0))
    say(f"{victim.name} is {how} for {seconds} s")
    with stopped(victim) if how == "stopped" else cut_off(victim):
        time.sleep(seconds)
