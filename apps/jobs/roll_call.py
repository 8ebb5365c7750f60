"""Checks that all hosts of a slice are up before JAX joins them: JAX ends the process when one is missing.

Host 0 listens; the others send it their rank, and wait for its reply that all hosts are up or which are missing.
"""

import selectors
import socket
import time
from collections.abc import Iterable, Sequence

PAUSE_S = 0.5
"""Between two attempts to reach host 0, whose name may not resolve yet."""
READ_S = 5.0
"""Timeout for a host to send its rank; stray connections send none."""
ALL_HERE = "all here"


class HostsAbsent(RuntimeError):
    """Not all hosts came up in time, or two claim the same rank."""


def take(names: Sequence[str], own: int, port: int, timeout_s: float) -> None:
    """Wait until all hosts are up. Called on every host.

    Args:
        names: of all hosts, in order of rank.
        own: this host's rank.
        port: where host 0 listens until then; free again afterwards.

    Raises:
        HostsAbsent: after `timeout_s`, on every host that is up; it names the others.
    """
    deadline = time.monotonic() + timeout_s
    if own == 0:
        _lead(names, port, deadline, timeout_s)
    else:
        _answer(names[0], own, port, deadline, timeout_s)


def _lead(names: Sequence[str], port: int, deadline: float, timeout_s: float) -> None:
    came: dict[int, socket.socket] = {}
    try:
        with socket.create_server(("", port), backlog=len(names)) as server, selectors.DefaultSelector() as ready:
            ready.register(server, selectors.EVENT_READ)
            while len(came) < len(names) - 1 and ready.select(max(0.0, deadline - time.monotonic())):
                caller, _ = server.accept()
                rank = _number(caller)
                if rank is None or not 0 < rank < len(names):
                    caller.close()
                elif rank in came:
                    said = f"two hosts say that they are host {rank} ({names[rank]}): see TPU_WORKER_ID"
                    _tell([*came.values(), caller], said)
                    caller.close()
                    raise HostsAbsent(said)
                else:
                    came[rank] = caller
        missing = [f"{rank} ({name})" for rank, name in enumerate(names) if rank and rank not in came]
        said = f"not all hosts came within {timeout_s:g} s; missing: {', '.join(missing)}" if missing else ALL_HERE
        _tell(came.values(), said)
        if missing:
            raise HostsAbsent(said)
    except OSError as error:
        raise HostsAbsent(
            f"host 0 cannot listen on port {port}: {error.strerror}; choose another with --port"
        ) from error
    finally:
        for caller in came.values():
            caller.close()


def _number(caller: socket.socket) -> int | None:
    caller.settimeout(READ_S)
    try:
        said = caller.makefile("rb").readline(16).strip()
    except OSError:
        return None
    return int(said) if said.isdigit() else None


def _tell(callers: Iterable[socket.socket], said: str) -> None:
    for caller in callers:
        try:
            caller.sendall(f"{said}\n".encode())
        except OSError:
            continue  # it is gone again: joining it will fail and say so


def _answer(leader: str, own: int, port: int, deadline: float, timeout_s: float) -> None:
    while True:
        try:
            with socket.create_connection((leader, port), timeout=max(1.0, deadline - time.monotonic())) as call:
                call.sendall(f"{own}\n".encode())
                # Host 0 may have started later, and so has a later deadline.
                call.settimeout(timeout_s + READ_S)
                line = call.makefile("rb").readline()
        except OSError as error:
            reason = error.strerror or str(error)
        else:
            said = line.decode(errors="replace").strip()
            if said == ALL_HERE:
                return
            if said:
                raise HostsAbsent(said)
            reason = "it hung up"
        if time.monotonic() + PAUSE_S > deadline:
            raise HostsAbsent(f"host 0 ({leader}) could not be reached within {timeout_s:g} s: {reason}")
        time.sleep(PAUSE_S)
